"""Self-contained HTML report of a validation."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vidc.compiler.report.render import render
from vidc.compiler.validate.charts import Chart, block_chart, spread
from vidc.compiler.validate.gates import UPPER_LIMITS, Gate, Subject, Where, all_passed
from vidc.compiler.validate.metrics import PixelMetrics, TensorMetrics, sqnr_db
from vidc.compiler.validate.pictures import (
    ERROR_RAMP,
    Picture,
    error_map,
    frame_error,
    png_uri,
)
from vidc.compiler.validate.worst import MOST_OF_COMPONENT, WorstTensor

FULL_SCALE_FLOOR = 16
"""Smallest full scale of the error maps, in levels of 255."""

BLOCKWISE = (Where.ROLLOUT, Where.PIXELS)
"""Levels of gates that judge rollout blocks."""

LABELS = {
    "relative_l2": "relative L2",
    "cosine": "cosine",
    "max_error": "max error",
    "sqnr_db": "SQNR (dB)",
    "psnr_db": "PSNR (dB)",
    "ssim": "SSIM",
    "lpips": "LPIPS",
}
FORMATS = {
    "relative_l2": (2, "e"),
    "cosine": (6, "f"),
    "max_error": (2, "e"),
    "sqnr_db": (1, "f"),
    "psnr_db": (1, "f"),
    "ssim": (6, "f"),
    "lpips": (4, "f"),
}
"""Number formats by metric."""
MOST_DIGITS = 17


@dataclass(frozen=True)
class ComponentRow:
    """Figures of a component; ``metrics`` is None if it was not measured.

    ``eager`` is PyTorch's own error in the engine's precision, if that is not float32.
    """

    subject: Subject
    metrics: TensorMetrics | None
    eager: TensorMetrics | None = None


@dataclass(frozen=True)
class RolloutRow:
    """Figures of a rollout block: latents and decoded frames, None if not measured.

    ``block`` is None for all blocks together. ``eager`` is the error of PyTorch's latents in the
    engines' precision. ``decoded`` is True if the bundle's decoder made the reference frames.
    ``lpips`` is None if it was not measured. ``forced`` has the figures of the frames if the block
    builds on the reference's earlier blocks; measured for 8-bit engines.
    """

    block: int | None
    latents: TensorMetrics | None
    pixels: PixelMetrics | None
    eager: TensorMetrics | None = None
    decoded: bool = False
    lpips: float | None = None
    forced: PixelMetrics | None = None


@dataclass(frozen=True)
class FramePair:
    """Frame of a block from the engine and from the reference.

    Both are uint8 [H, W, 3].
    """

    block: int
    frame: int
    engine: Picture
    reference: Picture


@dataclass(frozen=True)
class Report:
    """Content of the page.

    Attributes:
        bundle: the bundle's name.
        about: label to text, shown in this order: model, target, precision, backend, ...
        tools: versions by name.
        gates: all gates, with verdicts and thresholds.
        components: rows of the component table.
        rollout: rows of the rollout table in order of blocks; the row of all blocks is the last.
        switches: blocks that are the first of a new prompt.
        frames: pairs shown side by side.
        worst: tensors with the largest errors, the worst first.
        command: the command that plays the bundle; left out if empty.
        notes: sentences about the measurement, such as why a figure is missing.
    """

    bundle: str
    about: Mapping[str, str]
    tools: Mapping[str, str]
    gates: Sequence[Gate]
    components: Sequence[ComponentRow] = ()
    rollout: Sequence[RolloutRow] = ()
    switches: Sequence[int] = ()
    frames: Sequence[FramePair] = field(default=(), repr=False)
    worst: Sequence[WorstTensor] = ()
    command: str = ""
    notes: Sequence[str] = ()

    @property
    def passed(self) -> bool:
        """Returns True if there are gates and all passed."""
        return all_passed(self.gates)


@dataclass(frozen=True)
class _Row:
    """Table row with the gates that judge it."""

    name: str
    block: int | None
    tensor: TensorMetrics | None
    pixels: PixelMetrics | None
    eager: TensorMetrics | None
    gates: Sequence[Gate]
    switched: bool = False
    decoded: bool = False
    lpips: float | None = None

    @property
    def passed(self) -> bool | None:
        return all_passed(self.gates) if self.gates else None

    @property
    def failing(self) -> set[str]:
        return {gate.metric for gate in self.gates if not gate.passed}

    @property
    def lost(self) -> bool:
        """Returns True if a gated value is missing."""
        return any(gate.value is None for gate in self.gates)

    @property
    def thresholds(self) -> dict[str, float]:
        return {gate.metric: gate.threshold for gate in self.gates}


@dataclass(frozen=True)
class _Comparison:
    """Frame pair as pictures, with its error in levels of 255."""

    pair: FramePair
    engine: str
    reference: str
    error: str
    largest: int
    mean: float


def render_html(report: Report) -> str:
    """Returns the page with inline styles, drawings and pictures; every text is escaped.

    Raises:
        ValueError: if a frame pair is not two uint8 [H, W, 3] of one size.
    """
    errors = [frame_error(pair.engine, pair.reference) for pair in report.frames]
    full_scale = max([FULL_SCALE_FLOOR, *(int(error.max()) for error in errors)])
    return render(
        "vidc.compiler.validate/report.html.j2",
        {
            "figure": format_figure,
            "levels": format_levels,
            "limit": format_limit,
            "value": format_value,
        },
        report=report,
        components=[_component_row(row, report.gates) for row in report.components],
        rollout=[_rollout_row(row, report) for row in report.rollout],
        rollout_limits=_rollout_limits(report.gates),
        charts=_charts(report),
        forced=[_forced_row(row, report) for row in report.rollout if row.forced],
        forced_limits={g.metric: g for g in report.gates if g.where is Where.FORCED},
        worst=[(tensor, spread(tensor)) for tensor in report.worst],
        most_of_component=MOST_OF_COMPONENT,
        comparisons=[
            _Comparison(
                pair=pair,
                engine=png_uri(pair.engine),
                reference=png_uri(pair.reference),
                error=png_uri(error_map(error, full_scale)),
                largest=int(error.max()),
                mean=float(error.mean()),
            )
            for pair, error in zip(report.frames, errors, strict=True)
        ],
        full_scale=full_scale,
        ramp=ERROR_RAMP,
        labels=LABELS,
    )


def format_figure(value: float | None, metric: str, threshold: float | None = None) -> str:
    """Formats a metric's value; missing or non-finite values become words.

    With a threshold, the text has enough digits to lie on the same side of it as the value.
    """
    if value is None:
        return "missing"
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    digits, kind = FORMATS[metric]
    text = f"{value:.{digits}{kind}}"
    while threshold is not None and digits < MOST_DIGITS and not _same_side(text, value, threshold):
        digits += 1
        text = f"{value:.{digits}{kind}}"
    return text


def format_levels(value: float) -> str:
    """Formats a mean error in levels of 255; a nonzero error never reads as zero."""
    return f"{value:.2f}" if value >= 0.1 or value == 0 else f"{value:.2g}"


def format_value(value: float) -> str:
    """Formats a tensor's value with five digits; non-finite values become words."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    return f"{value:.5g}"


def _same_side(text: str, value: float, threshold: float) -> bool:
    shown = float(text)
    return (shown < threshold, shown > threshold) == (value < threshold, value > threshold)


def format_limit(gate: Gate) -> str:
    """Formats a gate's threshold with its direction, such as ``≤ 0.001``."""
    return f"{'≤' if gate.metric in UPPER_LIMITS else '≥'} {gate.threshold:.4g}"


def _component_row(row: ComponentRow, gates: Sequence[Gate]) -> _Row:
    own = [
        gate
        for gate in gates
        if gate.where is Where.COMPONENT and Subject(gate.component, gate.block) == row.subject
    ]
    return _Row(row.subject.component, row.subject.block, row.metrics, None, row.eager, own)


def _rollout_row(row: RolloutRow, report: Report) -> _Row:
    own = [gate for gate in report.gates if gate.where in BLOCKWISE and gate.block == row.block]
    switched = row.block in report.switches
    name = "all" if row.block is None else str(row.block)
    return _Row(
        name, row.block, row.latents, row.pixels, row.eager, own, switched, row.decoded, row.lpips
    )


def _forced_row(row: RolloutRow, report: Report) -> _Row:
    own = [g for g in report.gates if g.where is Where.FORCED and g.block == row.block]
    switched = row.block in report.switches
    return _Row(str(row.block), row.block, None, row.forced, None, own, switched)


def _rollout_limits(gates: Sequence[Gate]) -> dict[str, dict[str, Gate]]:
    """Returns the thresholds of single blocks and of all blocks together, by metric."""
    blockwise = [gate for gate in gates if gate.where in BLOCKWISE]
    each = {gate.metric: gate for gate in blockwise if gate.block is not None}
    whole = {gate.metric: gate for gate in blockwise if gate.block is None}
    return {name: limits for name, limits in (("a block", each), ("all", whole)) if limits}


def _charts(report: Report) -> dict[str, Chart]:
    """Returns the curves of SQNR, PSNR and SSIM that have gates and values."""
    charts = {}
    rows = [(row.block, row) for row in report.rollout if row.block is not None]
    for metric in ("sqnr_db", "psnr_db", "ssim"):
        threshold = _threshold(report, metric)
        found = [row.latents if metric == "sqnr_db" else row.pixels for _, row in rows]
        if threshold is None or not any(found):
            continue
        values = [
            (block, getattr(figures, metric) if figures and figures.finite else None)
            for (block, _), figures in zip(rows, found, strict=True)
        ]
        hollow = {block for block, row in rows if row.decoded and metric != "sqnr_db"}
        charts[metric] = block_chart(values, threshold, report.switches, hollow)
    return charts


def _threshold(report: Report, metric: str) -> float | None:
    """Returns the threshold of a block's figure; SQNR's is computed from that of relative L2."""
    gated = "relative_l2" if metric == "sqnr_db" else metric
    limits = (
        gate.threshold
        for gate in report.gates
        if gate.where in BLOCKWISE and gate.metric == gated and gate.block is not None
    )
    limit = next(limits, None)
    return sqnr_db(limit) if limit is not None and gated == "relative_l2" else limit
