"""Layers of a built engine, parsed from the builder's log or from the engine inspector."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from vidc.plugins.errors import GateError

ENGINE = ".engine.json"
"""Suffix of the file that lists the layers of a plan."""
_HEAD = "Layers:\n"
_LAYER = re.compile(
    r"Name: (?P<name>.*?), LayerType: (?P<kind>[^,]*), Inputs: \[(?P<inputs>.*?)\], "
    r"(?:Constants: \[.*\], )?Outputs: \[(?P<outputs>.*?)\], "
    r"(?:PluginType: (?P<plugin>[^,]*), .*?)?Tactic(?:Name: (?P<tactic>.*?)|Value: \S+), StreamId: "
    r".*?Metadata: ?(?P<metadata>.*)"
)
_TENSOR = re.compile(
    r"\{ Name: (?P<name>.*?), (?:Location: \w+, )?Dimensions: \[(?P<shape>[-\d,]*)\],.*? "
    r"Datatype: (?P<dtype>[^,]*), Format: (?P<format>.*?) \}"
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
"""Dtype names of inspectors, with those of networks."""
_ATTENTION = "mha"
"""Part of the names of fused attention kernels: ``_gemm_mha_v2``, ``fmha``."""
_EIGHT_BITS = ("fp8", "int8")
_ROUNDING = ("quantize", "dequantize")
_NO_OPERATION = "NoOp"
"""Kind of a layer that only renames a tensor."""


@dataclass(frozen=True)
class EngineTensor:
    """Input or output of a layer; ``format`` is its memory layout."""

    dtype: str
    shape: tuple[int, ...]
    format: str
    name: str = ""

    def __post_init__(self) -> None:
        require_printable(self.dtype, self.format, self.name)


@dataclass(frozen=True)
class EngineLayer:
    """A layer of an engine.

    Attributes:
        name: its name.
        kind: layer type such as ``gemm``; empty if the plan was built without details.
        tactic: the chosen kernel.
        inputs: tensors from other layers.
        outputs: its results.
        nodes: ONNX nodes that it computes.
        plugin: name of its plugin; empty for TensorRT's own layers.
    """

    name: str
    kind: str = ""
    tactic: str = ""
    inputs: tuple[EngineTensor, ...] = ()
    outputs: tuple[EngineTensor, ...] = ()
    nodes: tuple[str, ...] = ()
    plugin: str = ""

    def __post_init__(self) -> None:
        require_printable(self.name, self.kind, self.tactic, self.plugin, *self.nodes)

    @property
    def is_attention(self) -> bool:
        """True if it is a fused attention."""
        return _ATTENTION in self.name.lower() or _ATTENTION in self.tactic.lower()


@dataclass(frozen=True)
class EngineLayers:
    """Layers of an engine in execution order, and its memory by kind, in bytes.

    ``said_by`` is their source: ``builder`` for a builder's log, ``inspector`` for a loaded engine.
    """

    said_by: str
    layers: tuple[EngineLayer, ...]
    memory: dict[str, int]

    def __post_init__(self) -> None:
        require_printable(self.said_by, *self.memory)

    @property
    def kinds(self) -> dict[str, dict[str, int]]:
        """Number of layers by type and output dtype."""
        found: dict[str, dict[str, int]] = {}
        for layer in self.layers:
            types = found.setdefault(layer.kind or "not said", {})
            dtype = layer.outputs[0].dtype if layer.outputs else "nothing"
            types[dtype] = types.get(dtype, 0) + 1
        return found

    def fused(self, attention: str) -> bool:
        """Returns True if the attention of an ONNX node became one kernel."""
        return any(layer.is_attention and attention in layer.nodes for layer in self.layers)

    def in_8_bits(self, product: str) -> bool:
        """Returns True if the matmul of an ONNX node has 8-bit operands."""
        return any(
            sum(tensor.dtype in _EIGHT_BITS for tensor in layer.inputs) >= 2
            for layer in self.layers
            if product in layer.nodes
        )

    def updates_in_place(self, state: str, output: str) -> bool:
        """Returns True if a plugin updates a state, and no layer copies it.

        Args:
            state: name of the state, an input of the network.
            output: name of the network's output that is the state after the update.
        """
        written = [(la, t) for la in self.layers for t in la.outputs if t.name == output]
        if len(written) != 1:
            return False
        update, tensor = written[0]
        whole = (tensor.dtype, tensor.shape)
        reads = any(t.name == state for t in update.inputs)
        copies = any(
            (made.dtype, made.shape) == whole
            for layer in self.layers
            if not layer.plugin and layer.kind != _NO_OPERATION
            for made in layer.outputs
        )
        return bool(update.plugin) and reads and not copies

    def apart(self, rounding: frozenset[str]) -> tuple[EngineLayer, ...]:
        """Returns the layers that only quantize or dequantize.

        Args:
            rounding: names of the ONNX nodes that do.
        """
        return tuple(
            layer
            for layer in self.layers
            if layer.kind.lower() in _ROUNDING or (layer.nodes and rounding.issuperset(layer.nodes))
        )


def is_layer_message(message: str) -> bool:
    """Returns True if ``layers_from_log`` uses a message."""
    return message.startswith(_HEAD) or _MEMORY.match(message) is not None


def layers_from_log(messages: Iterable[str]) -> EngineLayers | None:
    """Parses the layers that a builder logs at its end, at verbose severity.

    Returns None if it logs none, as before TensorRT 11, or if their format is unknown.
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
            except ValueError:  # A malformed number or an unprintable name.
                return None
            layers = tuple(found) if len(found) == len(matches) else None
    return None if layers is None else EngineLayers("builder", layers, memory)


def layers_from_json(text: str, memory: dict[str, int]) -> EngineLayers:
    """Parses the JSON that an engine inspector's ``get_engine_information`` returns.

    Args:
        text: JSON of TensorRT 10 or 11 or TensorRT-RTX, whose fields differ.
        memory: the engine's memory by kind, in bytes.

    Raises:
        GateError: ``VIDC-BUNDLE-MALFORMED``, it has an unknown format.
    """
    try:
        listed = json.loads(text)["Layers"]
        return EngineLayers("inspector", tuple(map(_from_json, listed)), memory)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise GateError(
            "VIDC-BUNDLE-MALFORMED",
            f"the engine inspector's description has an unknown format: {error!r:.200}",
            "use a version of TensorRT that this vidc was tested with",
        ) from error


def require_printable(*texts: str) -> None:
    """Raises ValueError if a text has characters that control a terminal."""
    if not all(text.isprintable() for text in texts):
        raise ValueError("a name has unprintable characters")


def nodes_of(metadata: str) -> tuple[str, ...]:
    """Returns the ONNX nodes in the metadata of a network's or an engine's layer."""
    return tuple(dict.fromkeys(_ONNX.findall(metadata)))


def _from_line(match: re.Match[str]) -> EngineLayer:
    inputs, outputs = (
        tuple(
            EngineTensor(
                _type(tensor["dtype"]),
                tuple(int(size) for size in tensor["shape"].split(",") if size),
                tensor["format"],
                tensor["name"],
            )
            for tensor in _TENSOR.finditer(match[side])
        )
        for side in ("inputs", "outputs")
    )
    return EngineLayer(
        match["name"],
        match["kind"],
        match["tactic"] or "",
        inputs,
        outputs,
        nodes_of(match["metadata"]),
        match["plugin"] or "",
    )


def _from_json(layer: Any) -> EngineLayer:
    if isinstance(layer, str):  # Built without details.
        return EngineLayer(layer)
    inputs, outputs = (tuple(map(_tensor, layer.get(side, []))) for side in ("Inputs", "Outputs"))
    # The origin tells reformat layers that quantize from others.
    kind = "Quantize" if layer.get("Origin") == "QDQ" else layer.get("LayerType", "")
    nodes = nodes_of(layer.get("Metadata") or "")
    tactic, plugin = layer.get("TacticName") or "", layer.get("PluginType") or ""
    return EngineLayer(layer["Name"], kind, tactic, inputs, outputs, nodes, plugin)


def _tensor(value: Any) -> EngineTensor:
    both = value.get("Format/Datatype", "")
    return EngineTensor(
        _type(value.get("Datatype") or both),
        tuple(int(size) for size in value.get("Dimensions", [])),
        value.get("Format") or both,
        value.get("Name") or "",
    )


def _type(text: str) -> str:
    """Returns the network's name of a dtype, which may be a word in a longer text."""
    return next((_TYPES[word] for word in text.lower().split() if word in _TYPES), text.lower())
