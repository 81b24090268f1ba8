"""Spec of a bundle's manifest, derived from the model."""

from vidc.exporters.families.family import Family
from vidc.runtime.programs.stream import StreamSpec
from vidc.runtime.strict import read


def stream_spec(model: Family) -> StreamSpec:
    """Returns the stream of a model, as its family describes it."""
    spec: StreamSpec = read(model.spec(), StreamSpec, "spec")
    return spec
