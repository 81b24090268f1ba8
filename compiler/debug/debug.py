"""Diagnoses failed components of a bundle: first wrong value and a minimal reproducer."""

import math
import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from vidc.compiler.backends import CompileOptions, backend
from vidc.compiler.build.program import component_program
from vidc.compiler.config.recorded import recorded_settings
from vidc.compiler.config.resolve import Settings
from vidc.compiler.debug import polygraphy_data
from vidc.compiler.debug.call_inputs import CallInputs, inputs_of_first_error
from vidc.compiler.debug.graph import EngineGraph
from vidc.compiler.debug.probe import EngineProgram
from vidc.compiler.debug.rebuild import Rebuilder
from vidc.compiler.debug.reference import Reference, graph_reference, program_reference
from vidc.compiler.debug.reproduce import Reproduction, reproduce
from vidc.compiler.debug.search import Finding, Values, first_wrong, relative_error
from vidc.compiler.quantize.support import AOTI_CPU, AOTI_GPU
from vidc.compiler.validate.check import Validation
from vidc.compiler.validate.gates import Where
from vidc.compiler.validate.play import Player
from vidc.plugins.errors import UnavailableError, UsageError
from vidc.runtime.bundle import Bundle
from vidc.runtime.engines.onnxruntime import Options
from vidc.runtime.manifest import Engine, Manifest
from vidc.runtime.strict import read
from vidc.runtime.weights import Weights

GRAPHS = "onnxruntime"
"""Loader of portable graphs."""


@dataclass(frozen=True)
class Diagnosis:
    """Diagnosis of a failed component.

    Attributes:
        component: name of the component.
        finding: first value that differs; None if each compared value is within its tolerance.
        reproduction: minimal reproducer; None if no part reproduces the error alone.
        cause: explanation if no value differs.
        reduce: command that reduces the reproducer further; None without Polygraphy, or if the
            engine is no portable graph (see ``has_graph``).
    """

    component: str
    finding: Finding | None
    reproduction: Reproduction | None
    cause: str | None
    reduce: tuple[str, ...] | None = None

    @property
    def text(self) -> str:
        """Returns the diagnosis in a few lines."""
        if self.finding is None:
            return f"{self.component}: {self.cause}"
        found = self.finding
        lines = [
            f"{self.component}: the first wrong value is {found.name}, of {found.operator}: "
            f"relative L2 {found.error:.3g}, limit {found.limit:.3g}"
        ]
        if found.line is not None:
            lines.append(f"  from {found.line}")
        if found.fused:
            lines.append(
                "  it is right once other values before it are outputs, too: what the backend "
                "fuses there is wrong"
            )
        shown = self.reproduction
        lines.append(
            "  no part of the graph shows it by itself"
            if shown is None
            else f"  shown by {shown.nodes} node{'' if shown.nodes == 1 else 's'} in "
            f"{shown.graph}, with their inputs in {shown.tensors}"
        )
        if self.reduce is not None:
            lines.append(f"  reduced further by {shlex.join(self.reduce)}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Returns JSON values; an error that is not finite is null."""
        finding, shown = self.finding, self.reproduction
        return {
            "component": self.component,
            "cause": self.cause,
            "reduce": self.reduce,
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
    "it agrees with PyTorch on its inputs and the bundle's weights: an earlier component wrote "
    "wrong states, or the golden data come from other weights"
)
OPTIMIZER = (
    "each value is right as an output, but the engine's own outputs are wrong: the error is in the "
    "backend's optimizer"
)
REBUILT = (
    "a rebuilt engine is right and the bundle's is not: it was built differently, or its files are "
    "damaged; build the bundle again"
)
NEVER = "no call of it errs by more than its limit in relative L2: another metric failed"


def require_debuggable(manifest: Manifest) -> None:
    """Refuses a bundle whose engines cannot be debugged on this machine.

    Raises:
        UnavailableError: ``VIDC-VALIDATE-DEBUG``, an engine must be rebuilt with its intermediate
            values as outputs, and its backend cannot build it here.
        GateError: as ``recorded_settings``.
        UsageError: ``VIDC-CONFIG-BACKEND``.
    """
    first = {entry.backend: name for name, entry in reversed(manifest.engines.items())}
    for name in first.values():
        entry = manifest.engines[name]
        settings = engine_settings(manifest, entry)
        if has_graph(entry, manifest):
            continue
        reason = backend(entry.backend).unavailable(settings.target)
        if reason is not None:
            raise UnavailableError(
                "VIDC-VALIDATE-DEBUG",
                f"the engine of {name} has to be built again with values between its layers as "
                f"outputs, and {entry.backend} cannot build for {settings.target.name} here: "
                f"{reason}",
                "run it where the bundle was built, or build the same with --backend onnxruntime "
                "--gpu cpu, whose graph needs no building: where that passes, program and weights "
                f"are right, and what {entry.backend} made of them is not",
            )


def debug(
    folder: Path,
    bundle: Bundle,
    validation: Validation,
    output: Path,
    note: Callable[[str], None],
) -> list[Diagnosis]:
    """Diagnoses every failed component, in the order of first calls.

    Args:
        folder: folder of a bundle that ``require_debuggable`` accepts.
        bundle: loaded bundle.
        validation: failed validation of the bundle.
        output: folder for reproducers; created when needed.
        note: prints a line of progress.

    Raises:
        UsageError: ``VIDC-VALIDATE-REPORT`` if ``output`` cannot be written.
        VidcError: as the backend and the loader that rebuild an engine.
    """
    manifest = validation.manifest
    files = {name: folder / entry.path for name, entry in manifest.weights.items()}
    weights = Weights(files, bundle.device)
    limits = _limits(validation)
    called = dict.fromkeys(name for name, _ in validation.golden.reference.calls if name in limits)
    found = []
    for name in called:
        note(f"looking into {name}")
        stored = inputs_of_first_error(
            validation.golden, Player(bundle.program, bundle.resources), name, limits[name]
        )
        if stored is None:
            found.append(Diagnosis(name, None, None, NEVER))
            continue
        engine, reference = _look(name, stored, folder, bundle, manifest, weights, note)
        found.append(diagnose(name, limits[name], engine, reference, output))
    return found


def diagnose(
    name: str, limit: float, engine: Values, reference: Reference, output: Path
) -> Diagnosis:
    """Diagnoses one component.

    Args:
        name: name of the component.
        limit: largest relative L2.
        engine: values of the engine.
        reference: values of PyTorch.
        output: folder for reproducers; created when needed.

    Raises:
        UsageError: ``VIDC-VALIDATE-REPORT``.
        VidcError: as building an engine.
    """

    def wrong(found: Mapping[str, Tensor]) -> list[str]:
        expected = reference.values(found)
        return [n for n in found if not relative_error(found[n], expected[n]) <= limit]

    results = wrong(engine.results())
    if not results:
        return Diagnosis(name, None, None, INPUTS)
    finding = first_wrong(engine, reference, results, limit)
    if finding is None:
        still = wrong(engine.values(results))
        return Diagnosis(name, None, None, OPTIMIZER if still else REBUILT)
    try:
        output.mkdir(exist_ok=True)
        shown = reproduce(name, finding, engine, reference, output)
        reduce = None
        if shown is not None and isinstance(engine, EngineGraph) and polygraphy_data.installed():
            reduce = polygraphy_data.write_reproducer(shown, reference, limit).reduce()
    except OSError as error:
        raise UsageError(
            "VIDC-VALIDATE-REPORT",
            f"the reproducer of {name} cannot be written to {output}: {error.strerror}",
            "make room there, or move the bundle to a folder that you may write to",
        ) from error
    return Diagnosis(name, finding, shown, None, reduce)


def has_graph(entry: Engine, manifest: Manifest) -> bool:
    """Returns True if an engine is a portable graph: ONNX for a CPU, run by ONNX Runtime.

    Its intermediate values are read without a rebuild.
    """
    return entry.loader == GRAPHS and manifest.target.device_type == "cpu"


def engine_settings(manifest: Manifest, entry: Engine) -> Settings:
    """Returns the settings that an engine of a bundle was built with."""
    settings = recorded_settings(manifest.config, {}, f"config of {manifest.name}")
    return replace(settings, backend=entry.backend)


def _look(
    name: str,
    stored: Mapping[str, Tensor],
    folder: Path,
    bundle: Bundle,
    manifest: Manifest,
    weights: Weights,
    note: Callable[[str], None],
) -> tuple[Values, Reference]:
    """Returns a component's values from its engine and from PyTorch."""
    entry, ran = manifest.engines[name], bundle.engines[name]
    settings = engine_settings(manifest, entry)
    made = component_program(settings, name)
    given = CallInputs.of(ran, made.signature, stored, weights)
    if has_graph(entry, manifest):
        options: Options = read(entry.options, Options, f"options of {name}")
        graph = EngineGraph(
            folder / entry.files[0], options.session_options(), given.stored,
            entry.signature.graph_outputs(),
        )  # fmt: skip
        return graph, graph_reference(made, given)
    compile_options = CompileOptions(
        settings.tensorrt.workspace_bytes,
        entry.requires.compute_capabilities,
        settings.tensorrt.version_compatible,
        settings.tensorrt.plugins,
        note=note,
    )
    rebuilder = Rebuilder(folder, entry, settings.target, weights, bundle.device, compile_options)
    native = backend(entry.backend).quantization(settings.target) not in (AOTI_GPU, AOTI_CPU)
    program = EngineProgram(made, ran, rebuilder, given, native)
    return program, program_reference(made, given)


def _limits(validation: Validation) -> dict[str, float]:
    """Returns the relative-L2 limit of each component that failed by any metric."""
    gates = [g for g in validation.comparison.gates if g.where is Where.COMPONENT]
    failed = {gate.component for gate in gates if not gate.passed and gate.value is not None}
    return {
        gate.component: gate.threshold
        for gate in gates
        if gate.metric == "relative_l2" and gate.component in failed
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
