"""ONNX Runtime engines: a functional graph, with states passed in and handed back."""

from pathlib import Path

import onnxruntime
import torch
from torch import Tensor

from vidc.plugins.errors import GateError
from vidc.plugins.signature import Signature, state_output
from vidc.runtime import manifest
from vidc.runtime.states import Buffers, States
from vidc.runtime.weights import Weights

_ELEMENT_TYPES = {
    "float32": 1,
    "int64": 7,
    "float16": 10,
    "bfloat16": 16,
}
"""onnx.TensorProto.DataType, which ONNX Runtime takes for types that numpy lacks."""


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
            tensor = buffers[spec.name] if spec.name in buffers.inputs else states[spec.name]
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
    """Loads ``entry``'s graph; its weights are mapped from the bundle by ONNX Runtime itself."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = getattr(
        onnxruntime.GraphOptimizationLevel, entry.options["graph_optimization_level"]
    )
    session = onnxruntime.InferenceSession(
        str(folder / entry.files[0]), options, providers=["CPUExecutionProvider"]
    )
    signature = entry.signature
    for kind, found, expected in (
        ("inputs", session.get_inputs(), signature.graph_inputs()),
        ("outputs", session.get_outputs(), signature.graph_outputs()),
    ):
        names = tuple(node.name for node in found)
        if names != expected:
            raise GateError(
                "VIDC-ENGINE-SIGNATURE",
                f"{entry.files[0]}: its {kind} are not those of the manifest",
                "build the bundle again",
            )
    return OnnxRuntimeEngine(session, signature)
