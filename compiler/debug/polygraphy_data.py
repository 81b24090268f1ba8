"""Inputs and PyTorch's results of ONNX graphs in Polygraphy's JSON, and commands for them.

Polygraphy compares by the signal-to-noise ratio in dB, which is -20 log10 of the relative L2.
"""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import onnx
from safetensors.torch import load_file
from torch import Tensor

from vidc.compiler.debug.reference import Reference
from vidc.compiler.debug.reproduce import Reproduction
from vidc.plugins.errors import UnavailableError
from vidc.plugins.installation import install_packages

RUNNER = "PyTorch"
_CANDIDATE = "polygraphy_debug.onnx"
"""File in the working folder that ``polygraphy debug reduce`` writes for its check."""


@dataclass(frozen=True)
class PolygraphyData:
    """Data of one graph.

    Attributes:
        graph: the ``.onnx`` file.
        inputs: JSON file for ``--load-inputs``.
        outputs: JSON file for ``--load-outputs``.
        limit: largest relative L2 of a result.
    """

    graph: Path
    inputs: Path
    outputs: Path
    limit: float

    def run(self, graph: Path | str | None = None) -> tuple[str, ...]:
        """Returns the command that compares ONNX Runtime's results with PyTorch's.

        Args:
            graph: another graph with these inputs and results, such as a part of it.
        """
        return (
            *("polygraphy", "run", str(graph or self.graph), "--onnxrt"),
            *("--load-inputs", str(self.inputs), "--load-outputs", str(self.outputs)),
            *("--compare", "snr", "--snr-threshold", f"{-20 * math.log10(self.limit):.1f}"),
        )

    def reduce(self) -> tuple[str, ...]:
        """Returns the command that reduces the graph to the nodes that give wrong results."""
        reduced = self.graph.with_suffix(".reduced.onnx")
        return (
            *("polygraphy", "debug", "reduce", str(self.graph), "-o", str(reduced)),
            *("--mode", "linear", "--load-inputs", str(self.inputs)),
            *("--check", *self.run(_CANDIDATE)),
        )


def installed() -> bool:
    """Returns True if Polygraphy is installed."""
    return find_spec("polygraphy") is not None


def require_polygraphy() -> None:
    """Refuses a machine without Polygraphy.

    Raises:
        UnavailableError: ``VIDC-ENV-POLYGRAPHY``.
    """
    if not installed():
        raise UnavailableError(
            "VIDC-ENV-POLYGRAPHY",
            f"{sys.executable} has no module polygraphy",
            install_packages("polygraphy", "onnx-graphsurgeon"),
        )


def write(
    graph: Path,
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    limit: float,
    folder: Path,
) -> PolygraphyData:
    """Writes the data of a graph; Polygraphy must be installed.

    Args:
        graph: the ``.onnx`` file.
        inputs: its inputs by name, on the CPU.
        outputs: PyTorch's results for these inputs, by output name.
        limit: largest relative L2.
        folder: existing folder.

    Raises:
        OSError: the folder cannot be written to.
    """
    from polygraphy.comparator import RunResults
    from polygraphy.json import save_json
    from polygraphy.logger import G_LOGGER

    results = RunResults()
    results.add([_arrays(outputs)], runner_name=RUNNER)
    made = PolygraphyData(
        graph, folder / f"{graph.stem}.inputs.json", folder / f"{graph.stem}.outputs.json", limit
    )
    with G_LOGGER.verbosity(G_LOGGER.WARNING):  # It logs to stdout.
        save_json([_arrays(inputs)], str(made.inputs))
        results.save(str(made.outputs))
    return made


def write_reproducer(shown: Reproduction, reference: Reference, limit: float) -> PolygraphyData:
    """Writes a reproducer's data beside it; Polygraphy must be installed.

    Both JSON files also hold PyTorch's values inside the graph, so that Polygraphy can run and
    compare parts of the graph as well.

    Args:
        shown: reproducer, a part of a portable graph.
        reference: values of PyTorch.
        limit: largest relative L2.

    Raises:
        OSError: the folder cannot be written to.
    """
    model = onnx.load(shown.graph, load_external_data=False)
    tensors = load_file(shown.tensors)
    computed = [name for node in model.graph.node for name in node.output]
    values = reference.values([name for name in computed if name in reference.names])
    inputs = {name: tensors[name] for name in shown.inputs}
    return write(shown.graph, {**values, **inputs}, values, limit, shown.graph.parent)


def _arrays(tensors: Mapping[str, Tensor]) -> dict[str, object]:
    return {name: tensor.contiguous().numpy() for name, tensor in tensors.items()}
