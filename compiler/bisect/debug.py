"""Looks into the components of a bundle that failed: where they begin to differ, what shows it."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vidc.compiler.bisect.capture import given_at_first_error
from vidc.compiler.bisect.graph import EngineGraph
from vidc.compiler.bisect.reference import Reference
from vidc.compiler.bisect.reproduce import Reproduction, reproduce
from vidc.compiler.bisect.search import Finding, first_wrong, relative_error
from vidc.compiler.settings.tables import model_from_json
from vidc.compiler.validate.check import Validation
from vidc.compiler.validate.gates import Where
from vidc.exporters.components import component_groups
from vidc.plugins.errors import UsageError
from vidc.runtime.bundle import Bundle
from vidc.runtime.engines.onnxruntime import Options
from vidc.runtime.manifest import Manifest
from vidc.runtime.strict import read
from vidc.runtime.weights import Weights

LOADER = "onnxruntime"


@dataclass(frozen=True)
class Diagnosis:
    """What was found of a component that failed.

    Attributes:
        component: its name.
        finding: the first value that differs; None where each keeps to the tolerance.
        reproduction: the part of the graph that shows it; None where none does by itself.
        cause: what it is then, where no value differs.
    """

    component: str
    finding: Finding | None
    reproduction: Reproduction | None
    cause: str | None

    @property
    def text(self) -> str:
        """The diagnosis in a few lines."""
        if self.finding is None:
            return f"{self.component}: {self.cause}"
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
            else f"  shown by {shown.nodes} node{'' if shown.nodes == 1 else 's'} in "
            f"{shown.graph}, with their inputs in {shown.tensors}"
        )
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The diagnosis as JSON values; an error that is not finite is null."""
        finding, shown = self.finding, self.reproduction
        return {
            "component": self.component,
            "cause": self.cause,
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


INPUTS = (
    "it makes of what it was given what PyTorch makes of it: a component before it gave it wrong "
    "states"
)
OPTIMISER = (
    "each of its values is right once it is an output of the graph, and its outputs are not "
    "without that: what ONNX Runtime's optimiser makes of it is wrong"
)
NEVER = "no call of it errs by more than its limit in relative L2: another metric failed"


def require_graphs(manifest: Manifest) -> None:
    """Refuses a bundle whose engines cannot be looked into.

    Raises:
        UsageError: ``VIDC-VALIDATE-DEBUG``, naming one.
    """
    for name, entry in manifest.engines.items():
        if entry.loader != LOADER:
            raise UsageError(
                "VIDC-VALIDATE-DEBUG",
                f"the engine of {name} is one of {entry.backend}, which has no values between its "
                "inputs and its outputs to look at",
                f"build the same with --backend {LOADER} --gpu cpu: it runs the same program as a "
                "portable graph. Where that passes, program and weights are right, and what "
                f"{entry.backend} made of them is not",
            )
        if manifest.target.device_type != "cpu":
            raise UsageError(
                "VIDC-VALIDATE-DEBUG",
                f"the engine of {name} runs on {manifest.target.name}, and is looked into on a CPU",
                f"build the same with --backend {LOADER} --gpu cpu: it runs the same program as a "
                "portable graph, whose ring is written by other operators than on a GPU",
            )


def debug(folder: Path, bundle: Bundle, validation: Validation, output: Path) -> list[Diagnosis]:
    """A diagnosis of every component that failed, in the order of their first calls.

    Args:
        folder: of the bundle, of which ``require_graphs`` is true.
        bundle: loaded from it.
        validation: of it.
        output: a folder for what shows the errors; made where there is something to write.

    Raises:
        UsageError: ``VIDC-VALIDATE-REPORT``, what shows an error cannot be written to ``output``.
    """
    manifest = validation.manifest
    weights = Weights({n: folder / w.path for n, w in manifest.weights.items()}, bundle.device)
    limits = _limits(validation)
    called = dict.fromkeys(name for name, _ in validation.golden.reference.calls if name in limits)
    return [
        _diagnosis(name, limits[name], folder, bundle, validation, weights, output)
        for name in called
    ]


def _diagnosis(
    name: str,
    limit: float,
    folder: Path,
    bundle: Bundle,
    validation: Validation,
    weights: Weights,
    output: Path,
) -> Diagnosis:
    entry = validation.manifest.engines[name]
    config = model_from_json(validation.manifest.config)
    given = given_at_first_error(
        validation.golden, bundle.stream, bundle.engines, bundle.device, name, limit
    )
    if given is None:
        return Diagnosis(name, None, None, NEVER)
    reference = Reference(config, component_groups(config)[name], entry.precision, name)
    given |= {n: weights[n] for n in reference.inputs if n not in given}
    options: Options = read(entry.options, Options, f"options of {name}")
    graph = EngineGraph(folder / entry.files[0], options.session_options())
    finding = first_wrong(graph, reference, given, limit)
    if finding is None:
        results = entry.signature.graph_outputs()
        found, expected = graph.values(results, given), reference.values(results, given)
        right = all(relative_error(found[n], expected[n]) <= limit for n in results)
        return Diagnosis(name, None, None, INPUTS if right else OPTIMISER)
    try:
        output.mkdir(exist_ok=True)
        shown = reproduce(finding, graph, reference, given, options.session_options(), output)
    except OSError as error:
        raise UsageError(
            "VIDC-VALIDATE-REPORT",
            f"what shows the error of {name} cannot be written to {output}: {error.strerror}",
            "make room there, or move the bundle to a folder that you may write to",
        ) from error
    return Diagnosis(name, finding, shown, None)


def _limits(validation: Validation) -> dict[str, float]:
    """The limit of relative L2 of each component that failed by any metric."""
    gates = [g for g in validation.comparison.gates if g.where is Where.COMPONENT]
    failed = {gate.component for gate in gates if not gate.passed and gate.value is not None}
    return {
        gate.component: gate.threshold
        for gate in gates
        if gate.metric == "relative_l2" and gate.component in failed
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
