"""Looks into the components of a bundle that failed: where they begin to differ, what shows it."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vidc.compiler.bisect.capture import given_at_first_error
from vidc.compiler.bisect.graph import EngineGraph
from vidc.compiler.bisect.reference import Reference
from vidc.compiler.bisect.reproduce import Reproduction, reproduce
from vidc.compiler.bisect.search import Finding, first_wrong
from vidc.compiler.settings.tables import model_from_json
from vidc.compiler.validate.check import Validation
from vidc.compiler.validate.gates import Gate, Where
from vidc.exporters.components import component_groups
from vidc.plugins.errors import UsageError
from vidc.runtime.bundle import Bundle
from vidc.runtime.engines.onnxruntime import Options
from vidc.runtime.strict import read
from vidc.runtime.weights import Weights

LOADER = "onnxruntime"


@dataclass(frozen=True)
class Diagnosis:
    """What was found of a component that failed.

    Attributes:
        component: its name.
        finding: the first value that differs; None where each keeps to the tolerance once it is an
            output, which points at what the engine's optimiser does between them.
        reproduction: the part of the graph that shows it; None where none does by itself.
    """

    component: str
    finding: Finding | None
    reproduction: Reproduction | None

    @property
    def text(self) -> str:
        """The diagnosis in a few lines."""
        if self.finding is None:
            return (
                f"{self.component}: every value is right once it is an output of the graph: what "
                "the engine's optimiser makes of it is not"
            )
        found = self.finding
        lines = [
            f"{self.component}: the first wrong value is {found.name}, of {found.operator}: "
            f"relative L2 {found.error:.3g}, limit {found.limit:.3g}"
        ]
        if found.line is not None:
            lines.append(f"  from {found.line}")
        shown = self.reproduction
        lines.append(
            "  no part of the graph shows it by itself"
            if shown is None
            else f"  shown by {shown.nodes} nodes in {shown.graph}, with their inputs in "
            f"{shown.tensors}"
        )
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The diagnosis as JSON values; an error that is not finite is null."""
        finding, shown = self.finding, self.reproduction
        return {
            "component": self.component,
            "finding": None
            if finding is None
            else asdict(finding) | {"error": _finite(finding.error), "right": len(finding.right)},
            "reproduction": None
            if shown is None
            else asdict(shown)
            | {
                "graph": str(shown.graph),
                "tensors": str(shown.tensors),
                "error": _finite(shown.error),
            },
        }


def debug(folder: Path, bundle: Bundle, validation: Validation, output: Path) -> list[Diagnosis]:
    """A diagnosis of every component that failed by its relative error.

    Args:
        folder: of the bundle.
        bundle: loaded from it.
        validation: of it.
        output: a folder for what shows the errors; made where there is something to write.

    Raises:
        UsageError: ``VIDC-VALIDATE-DEBUG``, a failed engine has no graph to look into.
    """
    manifest = validation.manifest
    config = model_from_json(manifest.config)
    weights = Weights({n: folder / w.path for n, w in manifest.weights.items()}, bundle.device)
    diagnoses = []
    for gate in _failed(validation):
        name = gate.component
        entry = manifest.engines[name]
        if entry.loader != LOADER:
            raise UsageError(
                "VIDC-VALIDATE-DEBUG",
                f"the engine of {name} is one of {entry.backend}, which has no values between its "
                "inputs and its outputs to look at",
                f"build with --backend {LOADER}: the graph it runs is the one that others compile",
            )
        given = given_at_first_error(
            validation.golden, bundle.stream, bundle.engines, bundle.device, name, gate.threshold
        )
        if given is None:
            continue
        reference = Reference(config, component_groups(config)[name], entry.precision, name)
        given |= {n: weights[n] for n in reference.inputs if n not in given}
        options: Options = read(entry.options, Options, f"options of {name}")
        graph = EngineGraph(folder / entry.files[0], options.session_options())
        finding, shown = first_wrong(graph, reference, given, gate.threshold), None
        if finding is not None:
            output.mkdir(exist_ok=True)
            session_options = options.session_options()
            shown = reproduce(finding, graph, reference, given, session_options, output)
        diagnoses.append(Diagnosis(name, finding, shown))
    return diagnoses


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _failed(validation: Validation) -> list[Gate]:
    return [
        gate
        for gate in validation.comparison.gates
        if gate.where is Where.COMPONENT
        and gate.metric == "relative_l2"
        and gate.value is not None
        and not gate.passed
    ]
