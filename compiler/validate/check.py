"""Validates a bundle with nothing but the bundle, and reports."""

import math
from dataclasses import dataclass
from typing import Any

from vidc.compiler.validate.compare import Comparison, hold_to_golden
from vidc.compiler.validate.gates import all_passed
from vidc.compiler.validate.golden import Golden
from vidc.compiler.validate.metrics import PixelMetrics, TensorMetrics
from vidc.compiler.validate.report import Report, render_html
from vidc.runtime.bundle import Bundle
from vidc.runtime.faults import gpu_faults
from vidc.runtime.manifest import Manifest


@dataclass(frozen=True)
class Validation:
    """A finished validation."""

    manifest: Manifest
    golden: Golden
    comparison: Comparison

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
            "rollout": [
                {
                    "block": row.block,
                    "switched": row.block == self.golden.scenario.switch_after,
                    "relative_l2": _figure("relative_l2", row.latents),
                    "psnr_db": _figure("psnr_db", row.pixels),
                    "ssim": _figure("ssim", row.pixels),
                }
                for row in self.comparison.rollout
                if row.block is not None
            ],
            "eager": self._eager(),
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
                frames=self.comparison.frames,
            )
        )

    def _eager(self) -> dict[str, Any] | None:
        """How far PyTorch eager itself strays from float32 in the model's own precision."""
        if self.golden.eager is None:
            return None
        rollout = {row.block: _figure("relative_l2", row.eager) for row in self.comparison.rollout}
        return {
            "components": {
                row.subject.component: _figure("relative_l2", row.eager)
                for row in self.comparison.components
            },
            "whole_rollout": rollout.pop(None, None),
            "rollout": [*rollout.values()],
        }


def validate(manifest: Manifest, bundle: Bundle, golden: Golden) -> Validation:
    """Replays the golden scenario with the engines of a bundle and judges them.

    Raises:
        UnavailableError: ``VIDC-GPU-MEMORY``, ``VIDC-GPU-LOST``.
    """
    precisions = {name: engine.precision for name, engine in manifest.engines.items()}
    with gpu_faults(bundle.device):
        comparison = hold_to_golden(
            golden, bundle.stream, bundle.engines, precisions, bundle.device, bundle.lanes
        )
    return Validation(manifest, golden, comparison)


def _figure(metric: str, metrics: TensorMetrics | PixelMetrics | None) -> float | None:
    # JSON has no infinity.
    value = getattr(metrics, metric, None)
    return value if value is not None and math.isfinite(value) else None


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
