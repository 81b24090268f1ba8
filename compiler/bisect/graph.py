"""An engine's graph with some of its values as outputs, and a part of it that stands alone."""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import ModelProto
from onnx.external_data_helper import load_external_data_for_model
from onnx.utils import Extractor
from torch import Tensor

FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)
_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"


class EngineGraph:
    """The graph of an ONNX Runtime engine.

    Args:
        path: the ``.onnx`` file, beside its weights.
        options: those that the engine's own session has.
    """

    def __init__(self, path: Path, options: onnxruntime.SessionOptions) -> None:
        self._model = onnx.load(path, load_external_data=False)
        self._folder = path.parent
        self._options = options
        self._options.add_session_config_entry(_WEIGHTS_FOLDER, str(path.parent))
        graph = self._model.graph
        self._producers = {name: node for node in graph.node for name in node.output}
        self._types = {info.name: info for info in (*graph.value_info, *graph.output)}

    @property
    def inputs(self) -> Collection[str]:
        """Names of the graph's inputs."""
        return [value.name for value in self._model.graph.input]

    @property
    def floats(self) -> list[str]:
        """Names of the floating-point values that nodes give, in the order they are computed."""
        return [
            name
            for node in self._model.graph.node
            for name in node.output
            if name in self._types and self._types[name].type.tensor_type.elem_type in FLOATS
        ]

    def operator(self, name: str) -> str:
        """The operator of the node that gives a value, and the node's name."""
        node = self._producers[name]
        return f"{node.op_type} {node.name!r}"

    def values(self, names: Collection[str], given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """These values, as ONNX Runtime computes them.

        Args:
            names: some of ``floats``.
            given: at least ``inputs``.
        """
        model = ModelProto()
        model.CopyFrom(self._model)
        del model.graph.output[:]
        model.graph.output.extend(self._types[name] for name in names)
        return run(model.SerializeToString(), self._options, names, given)

    def before(self, name: str, known: Collection[str], depth: int) -> list[str]:
        """Where to cut the graph before a value, and what of its inputs lies before the cut.

        Args:
            name: of the value.
            known: values that may be cut at.
            depth: at how many of them, from the value back, the cut comes.
        """
        initializers = {tensor.name for tensor in self._model.graph.initializer}
        inputs = frozenset(self.inputs)
        cut, seen, todo = [], {name}, [(source, depth) for source in self._producers[name].input]
        while todo:
            value, left = todo.pop()
            if not value or value in initializers or value in seen:
                continue
            seen.add(value)
            left -= value in known
            if value in inputs or left == 0:
                cut.append(value)
            else:
                todo += [(source, left) for source in self._producers[value].input]
        return cut

    def part(self, inputs: Iterable[str], output: str) -> ModelProto:
        """The nodes between these values, with their weights inside."""
        model = Extractor(self._model).extract_model(list(inputs), [output])
        model.graph.name = f"{self._model.graph.name} up to {output}"
        load_external_data_for_model(model, str(self._folder))
        return model


def run(
    model: bytes,
    options: onnxruntime.SessionOptions,
    names: Collection[str],
    given: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """Outputs of a serialised model, run by ONNX Runtime on a CPU."""
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    taken = [node.name for node in session.get_inputs()]
    feeds = {name: np.ascontiguousarray(given[name].numpy()) for name in taken}
    found = session.run(list(names), feeds)
    return dict(zip(names, map(torch.from_numpy, found), strict=True))
