"""Intermediate values and subgraphs of an ONNX Runtime engine."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import ModelProto
from onnx.external_data_helper import load_external_data_for_model
from onnx.utils import Extractor
from torch import Tensor

from vidc.runtime.ort import onnxruntime

FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)
_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"


class EngineGraph:
    """Graph of an ONNX Runtime engine, run on a CPU.

    Args:
        path: ``.onnx`` file beside its weights.
        options: session options of the bundle's engine.
        given: inputs by name.
        outputs: names of the engine's outputs.
    """

    def __init__(
        self,
        path: Path,
        options: onnxruntime.SessionOptions,
        given: Mapping[str, Tensor],
        outputs: Collection[str],
    ) -> None:
        self._model = onnx.load(path, load_external_data=False)
        self._folder = path.parent
        self._options = options
        self._options.add_session_config_entry(_WEIGHTS_FOLDER, str(path.parent))
        self._given = given
        self._outputs = outputs
        graph = self._model.graph
        self._producers = {name: node for node in graph.node for name in node.output}
        self._types = {info.name: info for info in (*graph.value_info, *graph.output)}
        self.inputs = frozenset(value.name for value in graph.input)
        self.names = [
            name
            for node in graph.node
            for name in node.output
            if name in self._types and self._types[name].type.tensor_type.elem_type in FLOATS
        ]
        self.cuts = frozenset(self.names)

    def results(self) -> dict[str, Tensor]:
        """Runs the graph with its own outputs only."""
        return self.values(self._outputs)

    def sources(self, name: str) -> Collection[str]:
        """Returns the inputs of a value's node; empty for an input or a weight."""
        node = self._producers.get(name)
        return () if node is None else [source for source in node.input if source]

    def operator(self, name: str) -> str:
        """Returns the operator and name of the node that computes a value.

        A Reshape of a value without a known type only passes that value on. The node before it is
        then returned.
        """
        node = self._producers[name]
        while node.op_type == "Reshape" and node.input[0] not in self._types:
            source = self._producers.get(node.input[0])
            if source is None:
                break  # It reshapes an input or a weight.
            node = source
        return f"{node.op_type} {node.name!r}"

    def values(self, names: Collection[str]) -> dict[str, Tensor]:
        """Computes these values with ONNX Runtime."""
        model = ModelProto()
        model.CopyFrom(self._model)
        del model.graph.output[:]
        model.graph.output.extend(self._types[name] for name in names)
        return _run(model.SerializeToString(), self._options, names, self._given)

    def part(self, inputs: Sequence[str], output: str) -> "GraphPart":
        """Extracts the nodes between these values, with their weights inside."""
        model = Extractor(self._model).extract_model(list(inputs), [output])
        model.graph.name = f"{self._model.graph.name} up to {output}"
        load_external_data_for_model(model, str(self._folder))
        return GraphPart(model, self._options, self._given)


class GraphPart:
    """Standalone graph with one output.

    Args:
        model: graph with its weights inside.
        options: session options of the bundle's engine.
        given: inputs of the whole graph, by name.
    """

    def __init__(
        self, model: ModelProto, options: onnxruntime.SessionOptions, given: Mapping[str, Tensor]
    ) -> None:
        self._model = model
        self._options = options
        self._given = given
        self.nodes = len(model.graph.node)

    def value(self, given: Mapping[str, Tensor]) -> Tensor:
        """Computes the output with ONNX Runtime."""
        (output,) = (value.name for value in self._model.graph.output)
        model = self._model.SerializeToString()
        return _run(model, self._options, [output], {**self._given, **given})[output]

    def save(
        self, path: Path, given: Mapping[str, Tensor], results: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Writes the graph; returns its inputs and ``results``."""
        onnx.save(self._model, path)
        values = {**self._given, **given}
        return {value.name: values[value.name] for value in self._model.graph.input} | {**results}


def _run(
    model: bytes,
    options: onnxruntime.SessionOptions,
    names: Collection[str],
    given: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    taken = [node.name for node in session.get_inputs()]
    feeds = {name: np.ascontiguousarray(given[name].numpy()) for name in taken}
    found = session.run(list(names), feeds)
    return dict(zip(names, map(torch.from_numpy, found), strict=True))
