"""Validates a bundle with nothing but the bundle, and reports."""

from dataclasses import dataclass
from typing import Any

from vidc.compiler.validate.compare import Comparison, hold_to_golden
from vidc.compiler.validate.document import (
    components_json,
    eager_json,
    rollout_json,
    worst_json,
)
from vidc.compiler.validate.gates import all_passed
from vidc.compiler.validate.golden import Golden
from vidc.compiler.validate.perceptual import Absent, Lpips
from vidc.compiler.validate.report import Report, render_html
from vidc.compiler.validate.scenario import QUANTIZED_STAGE
from vidc.exporters.models import PRECISIONS
from vidc.plugins.errors import GateError
from vidc.runtime.bundle import Bundle
from vidc.runtime.faults import gpu_faults
from vidc.runtime.manifest import Manifest

NO_LPIPS = Absent("it is left to `vidc validate`")


@dataclass(frozen=True)
class Validation:
    """A finished validation."""

    manifest: Manifest
    golden: Golden
    comparison: Comparison
    lpips: str | None = None
    """Why LPIPS was not measured; None where it was."""

    @property
    def passed(self) -> bool:
        """Whether every gate passed."""
        return all_passed(self.comparison.gates)

    @property
    def level(self) -> str:
        """``rollout``, or ``component`` where errors were not followed from block to block."""
        return "rollout" if self.golden.scenario.rollout else "component"

    def to_json(self) -> dict[str, Any]:
        """The document of ``vidc validate --json``, without its schema number."""
        return {
            "bundle": self.manifest.name,
            "passed": self.passed,
            "level": self.level,
            "gates": [gate.to_json() for gate in self.comparison.gates],
            "components": components_json(self.comparison.components),
            "rollout": rollout_json(self.comparison.rollout, self.golden.scenario.switch_after),
            "worst_tensors": worst_json(self.comparison.worst),
            "lpips": {"measured": self.lpips is None, "reason": self.lpips},
            "eager": None
            if self.golden.eager is None
            else eager_json(self.comparison.components, self.comparison.rollout),
        }

    def html(self) -> str:
        """The report as one self-contained page."""
        manifest = self.manifest
        return render_html(
            Report(
                bundle=manifest.name,
                about=_about(manifest, self.level),
                tools=manifest.tools,
                gates=self.comparison.gates,
                components=self.comparison.components,
                rollout=self.comparison.rollout,
                switches=[self.golden.scenario.switch_after],
                frames=self.comparison.pairs,
                worst=self.comparison.worst,
                notes=[] if self.lpips is None else [f"LPIPS is not measured: {self.lpips}."],
            )
        )


def validate(
    manifest: Manifest, bundle: Bundle, golden: Golden, lpips: Lpips | Absent = NO_LPIPS
) -> Validation:
    """Replays the golden scenario with the engines of a bundle and judges them.

    Args:
        manifest: of the bundle.
        bundle: loaded.
        golden: what it is held to.
        lpips: from ``find_lpips``. A build leaves it out, so that a bundle does not depend on what
            lies on the machine that made it.

    Raises:
        GateError: ``VIDC-VALIDATE-GOLDEN``, golden data lack PyTorch's part that engines of this
            precision are held to.
        UnavailableError: ``VIDC-GPU-MEMORY``, ``VIDC-GPU-LOST``.
    """
    _require_quantized_golden(manifest)
    precisions = {name: engine.precision for name, engine in manifest.engines.items()}
    metric = None if isinstance(lpips, Absent) else lpips
    with gpu_faults(bundle.device):
        comparison = hold_to_golden(
            golden,
            bundle.spec,
            bundle.engines,
            precisions,
            bundle.device,
            bundle.runners,
            metric,
            trained=_trained(manifest),
        )
    reason = lpips.reason if isinstance(lpips, Absent) else None
    if reason is None and not comparison.frames:
        reason = "no frame was compared"
    return Validation(manifest, golden, comparison, reason)


def _require_quantized_golden(manifest: Manifest) -> None:
    """Refuses engines in 8 bits beside golden data that know of no recipe.

    Their record of PyTorch is one in high precision: an engine would be held to less, or to more,
    than what its own numbers make of the model.
    """
    narrow = {n: e.precision for n, e in manifest.engines.items() if e.precision not in PRECISIONS}
    if not narrow or QUANTIZED_STAGE in manifest.stages:
        return
    name, precision = next(iter(narrow.items()))
    raise GateError(
        "VIDC-VALIDATE-GOLDEN",
        f"{manifest.name} has {name} in {precision}, and its golden data come from no stage "
        f"{QUANTIZED_STAGE}, which plays PyTorch in the recipe's numbers",
        "build the bundle again",
    )


def _trained(manifest: Manifest) -> bool:
    """Whether no network's weights were drawn from a seed."""
    return all("random_weights" not in weights.source for weights in manifest.weights.values())


def _about(manifest: Manifest, level: str) -> dict[str, str]:
    engines = manifest.engines.values()
    return {
        "model": f"{manifest.preset} ({manifest.family})",
        "weights": "; ".join(
            f"{stem}: random, seed {weights.source['random_weights']}"
            if "random_weights" in weights.source
            else f"{stem}: {', '.join(map(str, weights.source.get('files', [])))}"
            for stem, weights in manifest.weights.items()
        ),
        "target": manifest.target.name,
        "precision": ", ".join(sorted({engine.precision for engine in engines})),
        "backend": ", ".join(sorted({f"{e.backend} {e.version}" for e in engines})),
        "reference": "PyTorch eager, float32",
        "level": level,
    }
