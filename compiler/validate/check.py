"""Validation of a bundle against its own golden data."""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vidc.compiler.config.program import run_words
from vidc.compiler.report.prompts import prompts_text
from vidc.compiler.report.weights import origin_text
from vidc.compiler.store.disk import byte_sizes
from vidc.compiler.validate.compare import Comparison, compare_with_golden
from vidc.compiler.validate.gates import all_passed
from vidc.compiler.validate.golden import Golden
from vidc.compiler.validate.headroom import Activation
from vidc.compiler.validate.metrics import PixelMetrics, TensorMetrics
from vidc.compiler.validate.perceptual import Lpips, Unavailable
from vidc.compiler.validate.play import Player
from vidc.compiler.validate.report import ComponentRow, Report, RolloutRow, render_html
from vidc.compiler.validate.scenario import QUANTIZED_STAGE
from vidc.compiler.validate.worst import Outlier, WorstTensor
from vidc.exporters.models import PRECISIONS
from vidc.plugins.errors import GateError
from vidc.runtime.bundle import Bundle
from vidc.runtime.faults import gpu_faults
from vidc.runtime.manifest import Manifest

NO_LPIPS = Unavailable("a build leaves it to vidc validate")


@dataclass(frozen=True)
class Validation:
    """Result of a validation."""

    manifest: Manifest
    golden: Golden
    comparison: Comparison
    lpips: str | None = None
    """Reason why LPIPS was not measured; None if it was."""

    @property
    def passed(self) -> bool:
        """Returns True if every gate passed."""
        return all_passed(self.comparison.gates)

    @property
    def level(self) -> str:
        """``rollout``, or ``component`` if only single calls were compared."""
        return "rollout" if self.golden.scenario.rollout else "component"

    def to_json(self) -> dict[str, Any]:
        """Returns the document of ``vidc validate --json`` without its schema number."""
        return {
            "bundle": self.manifest.name,
            "passed": self.passed,
            "level": self.level,
            "gates": [gate.to_json() for gate in self.comparison.gates],
            "components": components_json(self.comparison.components),
            "rollout": rollout_json(self.comparison.rollout, self.golden.switches),
            "worst_tensors": worst_json(self.comparison.worst),
            "lpips": {"measured": self.lpips is None, "reason": self.lpips},
            "eager": None
            if self.golden.eager is None
            else eager_json(self.comparison.components, self.comparison.rollout),
        }

    def html(self) -> str:
        """Returns the report as one self-contained page."""
        manifest = self.manifest
        return render_html(
            Report(
                bundle=manifest.name,
                about=_about(manifest, self.level, self.golden.activations),
                tools=manifest.tools,
                gates=self.comparison.gates,
                components=self.comparison.components,
                rollout=self.comparison.rollout,
                switches=self.golden.switches,
                frames=self.comparison.pairs,
                worst=self.comparison.worst,
                command=shlex.join(run_words(manifest, "BUNDLE")),
                notes=[] if self.lpips is None else [f"LPIPS is not measured: {self.lpips}."],
            )
        )


def validate(
    manifest: Manifest, bundle: Bundle, golden: Golden, lpips: Lpips | Unavailable = NO_LPIPS
) -> Validation:
    """Replays the golden scenario with the engines of a bundle and judges them.

    Args:
        manifest: manifest of the bundle.
        bundle: loaded bundle.
        golden: golden data.
        lpips: result of ``find_lpips``. A build leaves it out, so that a bundle does not depend on
            files of the machine that builds it.

    Raises:
        GateError: ``VIDC-VALIDATE-GOLDEN``, a limit depends on PyTorch's own error, which golden
            data lack.
        UnavailableError: ``VIDC-GPU-MEMORY``, ``VIDC-GPU-LOST``.
    """
    _require_quantized_golden(manifest)
    precisions = {name: engine.precision for name, engine in manifest.engines.items()}
    metric = None if isinstance(lpips, Unavailable) else lpips
    with gpu_faults(bundle.device):
        comparison = compare_with_golden(
            golden,
            Player(bundle.program, bundle.resources),
            precisions,
            metric,
            trained=_trained(manifest),
        )
    reason = lpips.reason if isinstance(lpips, Unavailable) else None
    if reason is None and not comparison.frames:
        reason = "no frame was compared"
    return Validation(manifest, golden, comparison, reason)


def _require_quantized_golden(manifest: Manifest) -> None:
    """Refuses 8-bit engines if the golden data lack the quantized model's results.

    Limits that are multiples of PyTorch's own error would otherwise take its error in high
    precision, not in the recipe's formats.
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
    """Returns True if no weights were drawn from a seed."""
    return all("random_weights" not in weights.source for weights in manifest.weights.values())


def _about(manifest: Manifest, level: str, activations: Mapping[str, Activation]) -> dict[str, str]:
    engines = manifest.engines.values()
    largest = "; ".join(f"{group}: {found}" for group, found in activations.items())
    return {
        "model": f"{manifest.preset} ({manifest.family})",
        "weights": "; ".join(
            f"{stem}: {origin_text(weights.source)}" for stem, weights in manifest.weights.items()
        ),
        "prompts": prompts_text(manifest),
        "target": manifest.target.name,
        "precision": ", ".join(sorted({engine.precision for engine in engines})),
        "backend": ", ".join(sorted({f"{e.backend} {e.version}" for e in engines})),
        "size": byte_sizes(manifest.sizes),
        "reference": "PyTorch eager, float32",
        "level": level,
        **({"largest activation": largest} if largest else {}),
    }


TENSOR = ("relative_l2", "cosine", "max_error", "sqnr_db")
PIXELS = ("psnr_db", "ssim")
Metrics = TensorMetrics | PixelMetrics | None


def components_json(rows: Sequence[ComponentRow]) -> list[dict[str, Any]]:
    """Returns each component's figures on its worst tensor and call."""
    return [{"component": row.subject.component} | _figures(row.metrics, TENSOR) for row in rows]


def rollout_json(rows: Sequence[RolloutRow], switches: Sequence[int]) -> list[dict[str, Any]]:
    """Returns each block's figures and the source of its reference frames."""
    return [
        {"block": row.block, "switched": row.block in switches}
        | _figures(row.latents, TENSOR)
        | _figures(row.pixels, PIXELS)
        | {f"forced_{name}": _figure(row.forced, name) for name in PIXELS}
        | {
            "lpips": _number(row.lpips),
            "frames_reference": None
            if row.pixels is None
            else ("decoded" if row.decoded else "golden"),
        }
        for row in rows
        if row.block is not None
    ]


def eager_json(
    components: Sequence[ComponentRow], rollout: Sequence[RolloutRow]
) -> dict[str, Any]:  # fmt: skip
    """Returns the errors of PyTorch eager in the model's precision against float32."""
    errors = {row.block: _figure(row.eager, "relative_l2") for row in rollout}
    return {
        "components": {
            row.subject.component: _figure(row.eager, "relative_l2") for row in components
        },
        "whole_rollout": errors.pop(None, None),
        "rollout": [*errors.values()],
    }


def worst_json(tensors: Sequence[WorstTensor]) -> list[dict[str, Any]]:
    """Returns the tensors with the largest errors, worst first."""
    return [
        {
            "component": tensor.component,
            "tensor": tensor.tensor,
            "call": tensor.call,
            "shape": list(tensor.shape),
            "compared": tensor.compared,
            "not_finite": tensor.not_finite,
        }
        | _figures(tensor.metrics, TENSOR)
        | {
            "histograms": {
                name: asdict(getattr(tensor, name)) for name in ("reference", "candidate", "error")
            },
            "outliers": [_outlier(outlier) for outlier in tensor.outliers],
        }
        for tensor in tensors
    ]


def _outlier(outlier: Outlier) -> dict[str, Any]:
    return {
        "index": list(outlier.index),
        "reference": _number(outlier.reference),
        "candidate": _number(outlier.candidate),
    }


def _figures(metrics: Metrics, names: Sequence[str]) -> dict[str, float | None]:
    return {name: _figure(metrics, name) for name in names}


def _figure(metrics: Metrics, name: str) -> float | None:
    return _number(getattr(metrics, name, None))


def _number(value: float | None) -> float | None:
    # JSON cannot hold infinity.
    return value if value is not None and math.isfinite(value) else None
