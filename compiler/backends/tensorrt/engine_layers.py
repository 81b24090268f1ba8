"""The layers of a built engine, as its builder or TensorRT's engine inspector says them."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from vidc.plugins.errors import GateError

ENGINE = ".engine.json"
"""Ends the name of the file that describes the layers of a plan."""
_HEAD = "Layers:\n"
_LAYER = re.compile(
    r"Name: (?P<name>.*?), LayerType: (?P<kind>[^,]*), Inputs: \[(?P<inputs>.*)\], "
    r"Constants: \[.*\], Outputs: \[(?P<outputs>.*)\], TacticName: (?P<tactic>.*?), StreamId: "
    r".*?Metadata: ?(?P<metadata>.*)"
)
_TENSOR = re.compile(
    r"\{ Name: .*?, Dimensions: \[(?P<shape>[-\d,]*)\],.*? Datatype: (?P<dtype>[^,]*), "
    r"Format: (?P<format>.*?) \}"
)
_MEMORY = re.compile(
    r"(?:Total|Max) (Host Persistent|Device Persistent|Scratch|Activation|Weights) Memory: (\d+)"
)
_ONNX = re.compile(r"\[ONNX Layer: (.*?)\](?=[\x1e\x1f\[]|$)")
_TYPES = {
    "half": "half", "fp16": "half", "float": "float", "fp32": "float", "bfloat16": "bf16",
    "bf16": "bf16", "fp8": "fp8", "int8": "int8", "int32": "int32", "int64": "int64",
    "bool": "bool", "uint8": "uint8", "fp4": "fp4", "int4": "int4",
}  # fmt: skip
"""What inspectors call types, with what networks do."""
_ATTENTION = "mha"
"""In the names of kernels that are a whole attention: ``_gemm_mha_v2``, ``fmha``."""
_EIGHT_BITS = ("fp8", "int8")
_ROUNDING = ("quantize", "dequantize")


@dataclass(frozen=True)
class EngineTensor:
    """What a layer takes or gives; ``format`` is how its values lie in memory."""

    dtype: str
    shape: tuple[int, ...]
    format: str

    def __post_init__(self) -> None:
        require_printable(self.dtype, self.format)


@dataclass(frozen=True)
class EngineLayer:
    """A layer of an engine.

    Attributes:
        name: its name.
        kind: such as ``gemm``; empty where the plan was built without details.
        tactic: the kernel that was chosen.
        inputs: what it takes from other layers.
        outputs: what it gives.
        nodes: of the ONNX graph that became it.
    """

    name: str
    kind: str = ""
    tactic: str = ""
    inputs: tuple[EngineTensor, ...] = ()
    outputs: tuple[EngineTensor, ...] = ()
    nodes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_printable(self.name, self.kind, self.tactic, *self.nodes)

    @property
    def is_attention(self) -> bool:
        """Whether it is a whole attention."""
        return _ATTENTION in self.name.lower() or _ATTENTION in self.tactic.lower()


@dataclass(frozen=True)
class EngineLayers:
    """The layers of an engine in the order they run, and the memory that they take, in bytes.

    ``said_by`` is ``builder``, which says them while it builds, or ``inspector``, which reads them
    from an engine that was loaded.
    """

    said_by: str
    layers: tuple[EngineLayer, ...]
    memory: dict[str, int]

    def __post_init__(self) -> None:
        require_printable(self.said_by, *self.memory)

    @property
    def kinds(self) -> dict[str, dict[str, int]]:
        """How many there are of each kind, by the type they give."""
        found: dict[str, dict[str, int]] = {}
        for layer in self.layers:
            types = found.setdefault(layer.kind or "not said", {})
            dtype = layer.outputs[0].dtype if layer.outputs else "nothing"
            types[dtype] = types.get(dtype, 0) + 1
        return found

    def fused(self, attention: str) -> bool:
        """Whether the attention that a node of ONNX is became one kernel."""
        return any(layer.is_attention and attention in layer.nodes for layer in self.layers)

    def in_8_bits(self, product: str) -> bool:
        """Whether the product that a node of ONNX is multiplies what is in 8 bits."""
        return any(
            sum(tensor.dtype in _EIGHT_BITS for tensor in layer.inputs) >= 2
            for layer in self.layers
            if product in layer.nodes
        )

    def apart(self, rounding: frozenset[str]) -> tuple[EngineLayer, ...]:
        """The layers that only quantize or dequantize, by the names of the nodes that do."""
        return tuple(
            layer
            for layer in self.layers
            if layer.kind.lower() in _ROUNDING or (layer.nodes and rounding.issuperset(layer.nodes))
        )


def says_layers(message: str) -> bool:
    """Whether ``layers_from_log`` reads something from a message."""
    return message.startswith(_HEAD) or _MEMORY.match(message) is not None


def layers_from_log(messages: Iterable[str]) -> EngineLayers | None:
    """What a builder says at its end, to a log that takes everything.

    None where it does not, as products before TensorRT 11 do, or says it in other words.
    """
    memory: dict[str, int] = {}
    layers: tuple[EngineLayer, ...] | None = None
    for message in messages:
        if named := _MEMORY.match(message):
            memory[named[1].lower()] = int(named[2])
        if message.startswith(_HEAD):
            lines = message.removeprefix(_HEAD).partition("\n\n")[0].split("\n")
            matches = [_LAYER.fullmatch(line) for line in lines if line]
            try:
                found = [_from_line(match) for match in matches if match is not None]
            except ValueError:  # A number that is none, or a name that cannot be shown.
                return None
            layers = tuple(found) if len(found) == len(matches) else None
    return None if layers is None else EngineLayers("builder", layers, memory)


def layers_from_json(text: str, memory: dict[str, int]) -> EngineLayers:
    """What ``get_engine_information`` of an engine inspector gives as JSON.

    Args:
        text: of TensorRT 10 or 11, or TensorRT-RTX, whose fields differ.
        memory: of the engine.

    Raises:
        GateError: ``VIDC-BUNDLE-MALFORMED``, it is nothing of the kind.
    """
    try:
        listed = json.loads(text)["Layers"]
        return EngineLayers("inspector", tuple(map(_from_json, listed)), memory)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise GateError(
            "VIDC-BUNDLE-MALFORMED",
            f"the engine inspector describes no layers as this vidc knows them: {error!r:.200}",
            "use a version of TensorRT that this vidc was tested with",
        ) from error


def require_printable(*texts: str) -> None:
    """Raises ValueError where a text would do something to a terminal."""
    if not all(text.isprintable() for text in texts):
        raise ValueError("a name holds what cannot be printed")


def nodes_of(metadata: str) -> tuple[str, ...]:
    """The nodes of the ONNX graph in a layer's metadata, of a network or of an engine."""
    return tuple(dict.fromkeys(_ONNX.findall(metadata)))


def _from_line(match: re.Match[str]) -> EngineLayer:
    inputs, outputs = (
        tuple(
            EngineTensor(
                _type(tensor["dtype"]),
                tuple(int(size) for size in tensor["shape"].split(",") if size),
                tensor["format"],
            )
            for tensor in _TENSOR.finditer(match[side])
        )
        for side in ("inputs", "outputs")
    )
    return EngineLayer(
        match["name"], match["kind"], match["tactic"], inputs, outputs, nodes_of(match["metadata"])
    )


def _from_json(layer: Any) -> EngineLayer:
    if isinstance(layer, str):  # Built without details.
        return EngineLayer(layer)
    inputs, outputs = (tuple(map(_tensor, layer.get(side, []))) for side in ("Inputs", "Outputs"))
    # A reformat that quantizes is told from others by where it comes from.
    kind = "Quantize" if layer.get("Origin") == "QDQ" else layer.get("LayerType", "")
    nodes = nodes_of(layer.get("Metadata") or "")
    return EngineLayer(layer["Name"], kind, layer.get("TacticName") or "", inputs, outputs, nodes)


def _tensor(value: Any) -> EngineTensor:
    both = value.get("Format/Datatype", "")
    return EngineTensor(
        _type(value.get("Datatype") or both),
        tuple(int(size) for size in value.get("Dimensions", [])),
        value.get("Format") or both,
    )


def _type(text: str) -> str:
    """A type's own name, of one that stands in a sentence as well."""
    return next((_TYPES[word] for word in text.lower().split() if word in _TYPES), text.lower())
