"""ONNX Runtime engines: a functional graph, with states passed in and handed back."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime
import torch
from torch import Tensor

from vidc.plugins.errors import GateError, UnavailableError
from vidc.plugins.signature import Signature, TensorSpec, state_output
from vidc.runtime import manifest
from vidc.runtime.states import Buffers, States, argument
from vidc.runtime.strict import read
from vidc.runtime.weights import Weights

_ELEMENT_TYPES = {
    "float32": 1,
    "int64": 7,
    "float16": 10,
    "bfloat16": 16,
}
"""onnx.TensorProto.DataType, which ONNX Runtime takes for types that numpy lacks."""
_TYPE_NAMES = {
    "float32": "tensor(float)",
    "int64": "tensor(int64)",
    "float16": "tensor(float16)",
    "bfloat16": "tensor(bfloat16)",
}


@dataclass(frozen=True)
class Options:
    """Options of an engine in a manifest, by ONNX Runtime's own names.

    Attributes:
        graph_optimization_level: a member of ``onnxruntime.GraphOptimizationLevel``.
        disable_prepacking: weights are read as they lie in the bundle, which sessions share;
            packed for a kernel, every session has a copy of its own.
    """

    graph_optimization_level: str
    disable_prepacking: bool

    def __post_init__(self) -> None:
        known = onnxruntime.GraphOptimizationLevel.__members__
        if self.graph_optimization_level not in known:
            raise ValueError(
                f"graph_optimization_level = {self.graph_optimization_level[:64]!r} is none of "
                f"{', '.join(known)}"
            )

    def session_options(self) -> onnxruntime.SessionOptions:
        """These as ONNX Runtime takes them."""
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        level = self.graph_optimization_level
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.__members__[level]
        options.add_session_config_entry(
            "session.disable_prepacking", str(int(self.disable_prepacking))
        )
        return options


class OnnxRuntimeEngine:
    """One inference session, bound to static buffers."""

    def __init__(self, session: onnxruntime.InferenceSession, signature: Signature) -> None:
        self.signature = signature
        self._session = session
        self._inputs = [s for s in signature.arguments if s.reads]
        self._flipped = [s.name for s in signature.states if s.writes and not s.in_place]

    def run(self, buffers: Buffers, states: States) -> None:
        """Runs the graph over these buffers."""
        binding = self._session.io_binding()
        for spec in self._inputs:
            tensor = argument(spec, buffers, states)
            binding.bind_input(spec.name, *_described(tensor, spec.dtype))
        for spec in self.signature.outputs:
            binding.bind_output(spec.name, *_described(buffers[spec.name], spec.dtype))
        for spec in self.signature.states:
            if spec.writes:
                tensor = states[spec.name] if spec.in_place else states.spare(spec.name)
                binding.bind_output(state_output(spec.name), *_described(tensor, spec.dtype))
        self._session.run_with_iobinding(binding)
        states.flip(self._flipped)


def _described(tensor: Tensor, dtype: str) -> tuple[str, int, int, tuple[int, ...], int]:
    device = tensor.device
    return (
        device.type,
        device.index or 0,
        _ELEMENT_TYPES[dtype],
        tuple(tensor.shape),
        tensor.data_ptr(),
    )


def load(
    folder: Path, entry: manifest.Engine, weights: Weights, device: torch.device
) -> OnnxRuntimeEngine:
    """Loads ``entry``'s graph; its weights are mapped from the bundle by ONNX Runtime itself.

    Raises:
        GateError: ``VIDC-BUNDLE-FIELD``, its options are not ``Options``;
            ``VIDC-ENGINE-SIGNATURE``, the graph's tensors are not those of the manifest.
        UnavailableError: ``VIDC-ENGINE-LOAD``, ONNX Runtime cannot load it.
    """
    file, signature = entry.files[0], entry.signature
    options: Options = read(entry.options, Options, f"options of {file}")
    try:
        session = onnxruntime.InferenceSession(
            str(folder / file), options.session_options(), providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        # Its exceptions have no base of their own.
        raise UnavailableError(
            "VIDC-ENGINE-LOAD",
            f"ONNX Runtime {onnxruntime.__version__} cannot load {file}: {str(error)[:300]}",
            f"run it with onnxruntime {entry.version}, which checked it, or build the bundle again",
        ) from error
    written = {state_output(state.name): state for state in signature.states if state.writes}
    _require(file, "inputs", session.get_inputs(), {s.name: s for s in signature if s.reads})
    _require(
        file, "outputs", session.get_outputs(), {s.name: s for s in signature.outputs} | written
    )
    return OnnxRuntimeEngine(session, signature)


def _require(file: str, kind: str, nodes: list[Any], specs: Mapping[str, TensorSpec]) -> None:
    found = [(node.name, tuple(node.shape), node.type) for node in nodes]
    expected = [(name, spec.shape, _TYPE_NAMES[spec.dtype]) for name, spec in specs.items()]
    if found != expected:
        raise GateError(
            "VIDC-ENGINE-SIGNATURE",
            f"{file}: its {kind} are not those of the manifest",
            "build the bundle again",
        )
