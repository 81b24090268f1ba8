"""Description of a TensorRT plan: bytes, layers and source network."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vidc.compiler.backends.tensorrt.built_layers import inspected_layers, require_gpu
from vidc.compiler.backends.tensorrt.engine_layers import (
    ENGINE,
    EngineLayer,
    EngineLayers,
    require_printable,
)
from vidc.compiler.backends.tensorrt.plan import LAYERS, Plan, describe_plan
from vidc.compiler.backends.tensorrt.product import PRODUCTS
from vidc.compiler.backends.tensorrt.quantized import QuantizedMatmul
from vidc.compiler.inspect.beside import read_beside
from vidc.compiler.inspect.changes import Sections, sections
from vidc.compiler.store.workers import alone
from vidc.plugins.errors import BuildError, GateError, UnavailableError
from vidc.runtime.strict import plain


@dataclass(frozen=True)
class Attention:
    """Attention of a network, ``[B, H, T, D]`` queries over ``[B, H, S, D]`` keys.

    Attributes:
        name: name of the layer.
        dtype: dtype of the queries.
        query: shape of the queries.
        keys: shape of the keys.
        reads_length: True if it reads the number of valid keys.
        must_fuse: True if an engine that does not fuse it is refused.
    """

    name: str
    dtype: str
    query: tuple[int, ...]
    keys: tuple[int, ...]
    reads_length: bool
    must_fuse: bool

    def __post_init__(self) -> None:
        require_printable(self.name, self.dtype)


@dataclass(frozen=True)
class Network:
    """Network of a plan; layers are counted by kind and by output type.

    ``rounding`` has the names of the ONNX nodes that are Q or DQ, or scale the input of a Q.
    ``plugins`` has the names of plugins by layer.
    """

    layers: dict[str, dict[str, int]]
    attentions: tuple[Attention, ...]
    quantized: tuple[QuantizedMatmul, ...] = ()
    rounding: tuple[str, ...] = ()
    plugins: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_printable(
            *self.layers, *(dtype for types in self.layers.values() for dtype in types),
            *self.rounding, *self.plugins, *self.plugins.values(),
        )  # fmt: skip
        for each in (self.attentions, self.quantized):
            names = [named.name for named in each]
            if len(set(names)) != len(names):
                raise ValueError("it names an attention or a product twice")


@dataclass(frozen=True)
class InspectedPlan:
    """Plan with the description that the backend writes beside it.

    Attributes:
        plan: header of the plan.
        network: source network; None if unknown.
        engine: layers of the engine: from the loaded engine, or else from the file that the build
            wrote; None if there is neither.
        not_loaded: why the plan was not loaded on this machine; None if it was.
    """

    plan: Plan
    network: Network | None
    engine: EngineLayers | None = None
    not_loaded: str | None = None

    @property
    def unfused(self) -> tuple[QuantizedMatmul, ...]:
        """Matmuls that should run in 8 bits and do not, because their Q and DQ did not fuse."""
        if self.network is None:
            return ()
        found = self.plan.products
        if self.engine is not None:
            found = tuple(p.name for p in self.network.quantized if self.engine.in_8_bits(p.name))
        if found is None:
            return ()
        meant = (product for product in self.network.quantized if product.computes)
        return tuple(product for product in meant if product.name not in found)

    @property
    def apart(self) -> tuple[EngineLayer, ...]:
        """Returns the layers that only quantize or dequantize."""
        if self.engine is None or self.network is None:
            return ()
        return self.engine.apart(frozenset(self.network.rounding))

    @property
    def fused(self) -> dict[str, bool] | None:
        """Returns for each attention whether it is one fused kernel; None if unknown."""
        if self.engine is None or self.network is None:
            return None
        return {each.name: self.engine.fused(each.name) for each in self.network.attentions}


def inspect_plan(path: Path) -> InspectedPlan:
    """Inspects the plan in a file and, if there is a GPU, loads it in a process of its own.

    Raises:
        GateError: as ``describe_plan``; ``VIDC-BUNDLE-MALFORMED`` or ``VIDC-BUNDLE-FIELD``, a file
            beside the plan does not describe its network or its layers.
    """
    plan = describe_plan(path)
    network = read_beside(path.with_suffix(LAYERS), Network, "a network")
    engine = read_beside(path.with_suffix(ENGINE), EngineLayers, "an engine's layers")
    not_loaded = None
    try:
        require_gpu(PRODUCTS[plan.product])
        engine = alone("inspect", _loaded_layers, path, plan.product)
    except BuildError:
        not_loaded = "loading it ended its process: it is damaged, or of another version"
    except (GateError, UnavailableError) as error:
        not_loaded = error.message
    return InspectedPlan(plan, network, engine, not_loaded)


def _loaded_layers(path: Path, product: str) -> EngineLayers:
    return inspected_layers(path.read_bytes(), PRODUCTS[product])


def compare_plans(old: InspectedPlan, new: InspectedPlan) -> Sections:
    """Returns the differences between two plans: builder, size, layers and attentions."""
    return sections(_subjects(old), _subjects(new))


def _subjects(found: InspectedPlan) -> dict[str, dict[str, Any]]:
    known = "there" if found.network is not None else "not there"
    subjects = {"plan": plain(found.plan) | {"description": known}}
    if found.network is not None:
        subjects["layers"] = dict(found.network.layers)
        subjects["attentions"] = {
            attention.name: plain(attention) for attention in found.network.attentions
        }
        subjects["fused"] = found.fused or {}
        subjects["plugins"] = dict(found.network.plugins)
        subjects["products"] = {product.name: plain(product) for product in found.network.quantized}
    if found.engine is not None:
        subjects["kernels"] = dict(found.engine.kinds)
        subjects["memory"] = dict(found.engine.memory)
    return subjects
