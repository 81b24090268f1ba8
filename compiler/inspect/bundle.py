"""Summary of a bundle from its manifest and weights headers."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from safetensors import SafetensorError, safe_open

from vidc.compiler.report.prompts import prompts_text
from vidc.plugins.errors import GateError
from vidc.plugins.signature import TensorSpec
from vidc.runtime.files import Files
from vidc.runtime.manifest import Engine, Manifest, Target, Validation
from vidc.runtime.record import compare_record


@dataclass(frozen=True)
class Total:
    """Number of tensors and their bytes."""

    count: int
    bytes: int

    @classmethod
    def of(cls, tensors: Iterable[TensorSpec]) -> Self:
        """Sums over these tensors."""
        sizes = [tensor.nbytes for tensor in tensors]
        return cls(len(sizes), sum(sizes))


@dataclass(frozen=True)
class EngineSummary:
    """Engine of a bundle. ``files`` holds sizes in bytes by path."""

    component: str
    backend: str
    version: str
    precision: str
    files: dict[str, int]
    inputs: Total
    outputs: Total
    states: Total


@dataclass(frozen=True)
class WeightsSummary:
    """Weights file: bytes on disk, tensors, elements and number of tensors by dtype.

    ``source`` is the origin of the weights, JSON of any form. It has a seed as ``random_weights``
    if the weights were drawn, not trained.
    """

    path: str
    bytes: int
    tensors: int
    elements: int
    dtypes: dict[str, int]
    source: dict[str, Any]


@dataclass(frozen=True)
class SessionMemory:
    """Memory that one session with the first decoder allocates for its states.

    ``spares`` are the second buffers of states that an engine cannot write in place.
    """

    states: Total
    spares: Total


@dataclass(frozen=True)
class BundleSummary:
    """Summary of a bundle; ``bytes`` covers all files in its manifest.

    ``digest`` is the manifest's digest. ``signer`` is the public key of its signature, which is not
    verified here. ``record_error`` says why the manifest differs from the one that the build
    validated; None if it does not. ``conditions`` are the shapes of a session's inputs besides
    prompts, such as an image. ``decoders`` are the names of decoders that a session chooses from;
    empty if there is one alone.
    """

    name: str
    preset: str
    family: str
    target: Target
    validation: Validation
    calibration: dict[str, Any] | None
    prompts: str
    conditions: dict[str, list[int]]
    decoders: tuple[str, ...]
    bytes: int
    weights: dict[str, WeightsSummary]
    engines: tuple[EngineSummary, ...]
    session: SessionMemory
    tools: dict[str, str]
    digest: str
    signer: str | None
    record_error: str | None


def summarize_bundle(bundle: Path, manifest: Manifest) -> BundleSummary:
    """Summarizes the bundle in a folder whose files have been verified.

    Raises:
        GateError: ``VIDC-BUNDLE-MALFORMED``, a weights file is not safetensors.
    """
    return BundleSummary(
        name=manifest.name,
        preset=manifest.preset,
        family=manifest.family,
        target=manifest.target,
        validation=manifest.validation,
        calibration=manifest.calibration,
        prompts=prompts_text(manifest),
        conditions={n: [*shape] for n, shape in manifest.spec.condition_shapes.items()},
        decoders=manifest.spec.decoders,
        bytes=sum(entry.size for entry in manifest.files.values()),
        weights={
            group: _weights(bundle, weights.path, weights.source)
            for group, weights in manifest.weights.items()
        },
        engines=tuple(
            summarize_engine(name, engine, manifest) for name, engine in manifest.engines.items()
        ),
        session=_session_memory(manifest),
        tools=manifest.tools,
        digest=manifest.digest,
        signer=None if manifest.signature is None else manifest.signature.key,
        record_error=_record_error(bundle, manifest),
    )


def _record_error(bundle: Path, manifest: Manifest) -> str | None:
    try:
        with Files(bundle, manifest.files) as files:
            compare_record(files, manifest)
    except GateError as error:
        return error.message
    return None


def summarize_engine(component: str, engine: Engine, manifest: Manifest) -> EngineSummary:
    """Summarizes one engine of a bundle."""
    return EngineSummary(
        component=component,
        backend=engine.backend,
        version=engine.version,
        precision=engine.precision,
        files={path: manifest.files[path].size for path in engine.files},
        inputs=Total.of(engine.signature.inputs),
        outputs=Total.of(engine.signature.outputs),
        states=Total.of(engine.signature.states),
    )


def open_weights(file: Path) -> Any:
    """Opens a safetensors file, memory-mapped.

    Raises:
        GateError: ``VIDC-BUNDLE-MALFORMED``.
    """
    try:
        return safe_open(file, framework="pt")
    except SafetensorError as error:
        raise GateError(
            "VIDC-BUNDLE-MALFORMED",
            f"{file} is not a safetensors file: {error}",
            "copy the bundle again from where it was built, or build it again",
        ) from error


def _weights(bundle: Path, path: str, source: dict[str, Any]) -> WeightsSummary:
    file = bundle / path
    weights = open_weights(file)
    entries = [weights.get_slice(name) for name in weights.keys()]  # noqa: SIM118 (no mapping)
    return WeightsSummary(
        path=path,
        bytes=file.stat().st_size,
        tensors=len(entries),
        elements=sum(math.prod(entry.get_shape()) for entry in entries),
        dtypes=dict(Counter(entry.get_dtype() for entry in entries)),
        source=source,
    )


def _session_memory(manifest: Manifest) -> SessionMemory:
    components = manifest.spec.with_decoder(None).components
    states = [
        state
        for name, engine in manifest.engines.items()
        if name in components
        for state in engine.signature.states
    ]
    spares = [state for state in states if state.writes and not state.in_place]
    return SessionMemory(_distinct(states), _distinct(spares))


def _distinct(states: Iterable[TensorSpec]) -> Total:
    """Returns the total over distinct state names, which engines share."""
    return Total.of({state.name: state for state in states}.values())
