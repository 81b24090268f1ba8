"""What a plan of TensorRT's holds: its own bytes, and the network it was built from."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vidc.compiler.inspect.changes import Sections, sections
from vidc.compiler.tensorrt.plan import LAYERS, Plan, describe_plan
from vidc.plugins.errors import GateError
from vidc.runtime.strict import plain, read

MAX_DESCRIPTION_BYTES = 2**24


@dataclass(frozen=True)
class Attention:
    """An attention of a network, ``[B, H, T, D]`` queries over ``[B, H, S, D]`` keys.

    Attributes:
        name: of its layer.
        dtype: of its queries.
        query: their shape.
        keys: their shape.
        reads_length: whether it reads how many keys are valid.
        must_fuse: whether the engine is refused where it is not one fused kernel.
    """

    name: str
    dtype: str
    query: tuple[int, ...]
    keys: tuple[int, ...]
    reads_length: bool
    must_fuse: bool

    def __post_init__(self) -> None:
        _require_printable(self.name, self.dtype)


@dataclass(frozen=True)
class QuantizedProduct:
    """A matrix product of a network whose weight is in 8 bits.

    Attributes:
        name: of its layer.
        weight: that it reads, by its name in the bundle.
        weights: the weight's type.
        inputs: the input's, before it is dequantised if it is quantised.
        computes: whether it is meant to be computed in 8 bits.
    """

    name: str
    weight: str
    weights: str
    inputs: str
    computes: bool

    def __post_init__(self) -> None:
        _require_printable(self.name, self.weight, self.weights, self.inputs)


@dataclass(frozen=True)
class Network:
    """What a plan was built from; layers are counted by kind and by the type they give."""

    layers: dict[str, dict[str, int]]
    attentions: tuple[Attention, ...]
    quantized: tuple[QuantizedProduct, ...] = ()

    def __post_init__(self) -> None:
        _require_printable(
            *self.layers, *(dtype for types in self.layers.values() for dtype in types)
        )
        for each in (self.attentions, self.quantized):
            names = [named.name for named in each]
            if len(set(names)) != len(names):
                raise ValueError("it names an attention or a product twice")


@dataclass(frozen=True)
class InspectedPlan:
    """A plan, and the network that lies beside it as the backend leaves it, if it does."""

    plan: Plan
    network: Network | None

    @property
    def unfused(self) -> tuple[QuantizedProduct, ...]:
        """Products that are meant to be computed in 8 bits and are not: Q and DQ did not fuse."""
        if self.plan.products is None or self.network is None:
            return ()
        meant = (product for product in self.network.quantized if product.computes)
        return tuple(product for product in meant if product.name not in self.plan.products)


def inspect_plan(path: Path) -> InspectedPlan:
    """What is known of the plan in a file.

    Raises:
        GateError: what ``describe_plan`` raises; ``VIDC-BUNDLE-MALFORMED``, ``VIDC-BUNDLE-FIELD``:
            the description of its network is none.
    """
    described = path.with_suffix(LAYERS)
    plan = describe_plan(path)
    return InspectedPlan(plan, _network(described) if described.exists() else None)


def compare_plans(old: InspectedPlan, new: InspectedPlan) -> Sections:
    """What differs between two plans: what built them, their size, their layers and attentions."""
    return sections(_subjects(old), _subjects(new))


def _subjects(found: InspectedPlan) -> dict[str, dict[str, Any]]:
    known = "there" if found.network is not None else "not there"
    subjects = {"plan": plain(found.plan) | {"description": known}}
    if found.network is not None:
        subjects["layers"] = dict(found.network.layers)
        subjects["attentions"] = {
            attention.name: plain(attention) for attention in found.network.attentions
        }
        subjects["products"] = {product.name: plain(product) for product in found.network.quantized}
    return subjects


def _network(path: Path) -> Network:
    try:
        if path.stat().st_size > MAX_DESCRIPTION_BYTES:
            raise ValueError("it is too large")
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise GateError(
            "VIDC-BUNDLE-MALFORMED",
            f"{path} does not describe a network: {str(error)[:200]}",
            "copy it again from where it was built, or delete it to see the plan alone",
        ) from error
    network: Network = read(document, Network, path.name)
    return network


def _require_printable(*texts: str) -> None:
    if not all(text.isprintable() for text in texts):
        raise ValueError("a name holds what cannot be printed")
