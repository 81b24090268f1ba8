"""What PyTorch has for every value of a component's graph, and the line it comes from."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx
from torch.export.graph_signature import InputKind

from vidc.exporters.config import ModelConfig
from vidc.exporters.models import components, meta_network
from vidc.exporters.onnx.export import translated_program
from vidc.exporters.program import export_program

_TORCH = Path(torch.__file__).parent
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in [^\n]*\n\s*([^\n]*)')


class Reference:
    """A component's program in the precision of its engine, run by PyTorch.

    Args:
        config: of the model.
        group: the weights group that the component runs on.
        precision: of the engine.
        component: its name.
    """

    def __init__(self, config: ModelConfig, group: str, precision: str, component: str) -> None:
        made = components(config, group, meta_network(config, group, precision), precision)
        program = export_program(made[component], keep_sources=True)
        signature = made[component].signature
        translated, self.inputs = translated_program(program, signature)
        self._module = translated.graph_module
        (results,) = self._module.graph.output_node().args
        calls = (node for node in self._module.graph.nodes if node.op == "call_function")
        # Results go by the names of the signature, as in the graph.
        self._nodes = {node.name: node for node in calls} | dict(
            zip(signature.graph_outputs(), results, strict=True)
        )
        self._constants = {
            spec.arg.name: translated.constants[spec.target]
            for spec in translated.graph_signature.input_specs
            if spec.kind is not InputKind.USER_INPUT
        }

    @property
    def names(self) -> Collection[str]:
        """Of the values it knows."""
        return self._nodes.keys()

    def line(self, name: str) -> str | None:
        """The innermost line outside PyTorch that a value comes from, ``file:number: code``."""
        return python_line(self._nodes[name])

    @torch.no_grad()
    def values(self, names: Collection[str], given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """These values, on a CPU.

        Args:
            names: some of ``names``.
            given: at least ``inputs``.
        """
        wanted = {self._nodes[name]: name for name in names}
        found: dict[str, Tensor] = {}
        values = iter([given[name] for name in self.inputs])
        placeholders = self._module.graph.find_nodes(op="placeholder")
        arguments = [
            self._constants[node.name] if node.name in self._constants else next(values)
            for node in placeholders
        ]
        _Watched(self._module, wanted, found).run(*arguments)
        return found


def python_line(node: fx.Node) -> str | None:
    """The innermost line outside PyTorch that a node has kept of its sources."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    own = [frame for frame in frames if not Path(frame[0]).is_relative_to(_TORCH)]
    return "{}:{}: {}".format(*own[-1]) if own else None


class _Watched(fx.Interpreter):
    """Runs a graph and keeps some of its values."""

    def __init__(
        self, module: fx.GraphModule, wanted: Mapping[fx.Node, str], found: dict[str, Tensor]
    ) -> None:
        super().__init__(module)
        self._wanted = wanted
        self._found = found

    def run_node(self, n: fx.Node) -> Any:
        """One node; a value that is wanted is copied, as later nodes may write over it."""
        value = super().run_node(n)
        if n in self._wanted:
            self._found[self._wanted[n]] = value.clone()
        return value
