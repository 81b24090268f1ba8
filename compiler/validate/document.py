"""What a validation measured as JSON values: finite numbers, and null for what is none."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from vidc.compiler.validate.metrics import PixelMetrics, TensorMetrics
from vidc.compiler.validate.report import ComponentRow, RolloutRow
from vidc.compiler.validate.worst import Outlier, WorstTensor

TENSOR = ("relative_l2", "cosine", "max_error", "sqnr_db")
PIXELS = ("psnr_db", "ssim")
Metrics = TensorMetrics | PixelMetrics | None


def components_json(rows: Sequence[ComponentRow]) -> list[dict[str, Any]]:
    """Each component's figures, of its worst tensor and call."""
    return [{"component": row.subject.component} | _figures(row.metrics, TENSOR) for row in rows]


def rollout_json(rows: Sequence[RolloutRow], switch_after: int) -> list[dict[str, Any]]:
    """Each block's figures, and where the frames come from that its own are compared with."""
    return [
        {"block": row.block, "switched": row.block == switch_after}
        | _figures(row.latents, TENSOR)
        | _figures(row.pixels, PIXELS)
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
    """How far PyTorch eager itself strays from float32 in the model's own precision."""
    errors = {row.block: _figure(row.eager, "relative_l2") for row in rollout}
    return {
        "components": {
            row.subject.component: _figure(row.eager, "relative_l2") for row in components
        },
        "whole_rollout": errors.pop(None, None),
        "rollout": [*errors.values()],
    }


def worst_json(tensors: Sequence[WorstTensor]) -> list[dict[str, Any]]:
    """The tensors that err most, the worst first."""
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
    # JSON has no infinity.
    return value if value is not None and math.isfinite(value) else None
