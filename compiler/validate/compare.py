"""Compares engines with golden data, by component and by block."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from vidc.compiler.validate.gates import (
    OF_EAGER,
    Gate,
    Subject,
    Thresholds,
    Where,
    judge,
    load_thresholds,
    load_trained_thresholds,
    looser,
)
from vidc.compiler.validate.golden import Golden, Record, record
from vidc.compiler.validate.metrics import (
    PixelMetrics,
    TensorMetrics,
    compare,
    compare_pixels,
)
from vidc.compiler.validate.perceptual import Lpips
from vidc.compiler.validate.play import Played, Player
from vidc.compiler.validate.report import ComponentRow, FramePair, RolloutRow
from vidc.compiler.validate.worst import WorstTensor, calls, worst_tensors
from vidc.exporters.models import PRECISIONS
from vidc.plugins.errors import GateError

ROUNDED = "fp16"
"""Precision whose rollout limits replace tighter ones if a program has ``rounded_feedback``.

Such a program rounds results to 8 bits before the next block reads them. Results that differ in the
last bit of float32 may then differ by a whole level, and later frames by more. No engine in float32
stays within float32's limits.
"""


@dataclass(frozen=True)
class BlockFrames:
    """Decoded frames of a block, uint8 ``[B, frames, H, W, 3]`` on the CPU.

    ``decoded`` is True if the bundle's decoder made the reference frames from the reference's
    latents, because golden data have the frames of some blocks only.
    """

    block: int
    engine: torch.Tensor
    reference: torch.Tensor
    decoded: bool


@dataclass(frozen=True)
class Comparison:
    """Measurements of a validation and its gates.

    Attributes:
        gates: all gates.
        components: a row for each component.
        rollout: a row for each block, and one for all.
        frames: frames of every block of the free rollout.
        worst: tensors with the largest errors.
    """

    gates: list[Gate]
    components: list[ComponentRow]
    rollout: list[RolloutRow] = field(default_factory=list)
    frames: list[BlockFrames] = field(default_factory=list, repr=False)
    worst: list[WorstTensor] = field(default_factory=list)

    @property
    def pairs(self) -> list[FramePair]:
        """Returns the last frame of each block whose reference frames are golden data."""
        return [
            FramePair(
                each.block,
                each.reference.shape[1] - 1,
                each.engine[0, -1].numpy(),
                each.reference[0, -1].numpy(),
            )
            for each in self.frames
            if not each.decoded
        ]


def compare_with_golden(
    golden: Golden,
    player: Player,
    precisions: Mapping[str, str],
    lpips: Lpips | None = None,
    trained: bool = False,
) -> Comparison:
    """Replays the golden scenario with a player's engines and judges the results.

    Every component of the program, of the reference's calls and of ``precisions`` must be measured;
    one that is not fails its gates. If an engine of the program is missing, nothing is replayed.

    Args:
        golden: golden data.
        player: player of the bundle. It runs the rollout on its runners, and single calls directly.
        precisions: precisions by component; others use the thresholds of float32.
        lpips: metric for the rollout's frames.
        trained: True if the weights are trained: such weights have thresholds of their own.

    Raises:
        GateError: ``VIDC-VALIDATE-GOLDEN``, a limit depends on PyTorch's own error in an engine's
            precision, and golden data lack that error or it is not finite.
    """
    called = [component for component, _ in golden.reference.calls]
    components, engines = player.resources.spec.components, player.resources.engines
    required = [*dict.fromkeys([*called, *components, *precisions])]
    if absent := [name for name in components if name not in engines]:
        return Comparison(*_judge_components(absent, {}, {}, precisions))
    inputs = golden.inputs.to(player.resources.device)
    found = record(player, golden.scenario, inputs, forced_by=golden.reference)
    worst = worst_of_calls(found, golden.reference)
    eager = {} if golden.eager is None else worst_of_calls(golden.eager, golden.reference)
    _require_eager(dict.fromkeys(called), eager, precisions)
    gates, rows = _judge_components(required, worst, eager, precisions)
    signatures = {name: engine.signature for name, engine in engines.items()}
    tensors = worst_tensors(found, golden.reference, signatures)
    if not golden.scenario.rollout:
        return Comparison(gates, rows, worst=tensors)
    blocks = range(golden.scenario.blocks)
    played = player.rollout(golden.scenario, inputs, keep=blocks)
    references = _references(golden.reference.played, player, played.frames)
    frames = _frames(played, golden.reference.played, references)
    rollout = compare_rollouts(played, golden.reference.played, golden.eager_rollout, frames, lpips)
    program = player.program
    decoder = player.resources.spec.decode_components[-1]
    generates, decodes = (
        precisions.get(name, "fp32") for name in (program.teacher_forced[0][0], decoder)
    )
    _require_eager_rollout(rollout, generates)
    limits = Limits(generates, decodes, trained, program.rounded_feedback)
    narrow = generates not in PRECISIONS and program.forces_blocks
    if narrow:
        latents = golden.reference.played.latents
        forced = player.rollout(golden.scenario, inputs, blocks, latents)
        made = _frames(forced, golden.reference.played, references)
        own: dict[int | None, BlockFrames] = {each.block: each for each in made}
        rollout = [replace(row, forced=_pixels(own.get(row.block))) for row in rollout]
        gates += _forced_gates(golden, rollout, limits)
    if not narrow or not trained or golden.scenario.free_gates:
        gates += _rollout_gates(golden, rollout, limits)
    else:
        gates += _finite_gates(golden, rollout)
    return Comparison(gates, rows, rollout, frames, tensors)


def _require_eager(
    called: Collection[str], eager: Mapping[str, TensorMetrics], precisions: Mapping[str, str]
) -> None:
    for name in called:
        precision = precisions.get(name, "fp32")
        if OF_EAGER in load_thresholds(precision)[Where.COMPONENT]:
            _require_finite(name, precision, eager.get(name))


def _require_eager_rollout(rows: Sequence[RolloutRow], precision: str) -> None:
    if OF_EAGER in load_thresholds(precision)[Where.ROLLOUT]:
        whole = next(row for row in rows if row.block is None)
        _require_finite("the rollout", precision, whole.eager)


def _require_finite(what: str, precision: str, eager: TensorMetrics | None) -> None:
    """Refuses PyTorch errors that are missing or not finite."""
    if eager is not None and math.isfinite(eager.relative_l2):
        return
    problem = (
        f"do not hold what PyTorch makes of {what} in {precision}"
        if eager is None
        else f"hold NaN or Inf in what PyTorch makes of {what} in {precision}"
    )
    raise GateError(
        "VIDC-VALIDATE-GOLDEN",
        f"golden data {problem}, to a multiple of whose error it is held",
        "build the bundle again; if it stays, try a precision with more range"
        if eager is not None
        else "build the bundle again",
    )


def worst_of_calls(found: Record, reference: Record) -> dict[str, TensorMetrics]:
    """Returns each component's metrics on the tensor and call with the largest relative error.

    A component that is not called as often as in the reference is left out.
    """
    worst: dict[str, TensorMetrics] = {}
    for call in calls(found, reference):
        before = worst.get(call.component)
        if before is None or call.metrics.relative_l2 > before.relative_l2:
            worst[call.component] = call.metrics
    return worst


def compare_rollouts(
    played: Played,
    reference: Played,
    eager: Played | None,
    frames: Sequence[BlockFrames] = (),
    lpips: Lpips | None = None,
) -> list[RolloutRow]:
    """Compares the latents of each block, and the given frames, with the reference.

    The last row compares the latents of all blocks as one tensor. ``eager`` is PyTorch's rollout in
    the engines' precision, or None.
    """
    rows = []
    pictured = {each.block: each for each in frames}
    for block, latent in enumerate(reference.latents):
        latents = compare(played.latents[block].cpu(), latent)
        own = None if eager is None else compare(eager.latents[block], latent)
        row = RolloutRow(block, latents, None, own)
        if (own_frames := pictured.get(block)) is not None:
            pair = _pictures(own_frames.engine), _pictures(own_frames.reference)
            row = replace(
                row,
                pixels=_pixels(own_frames),
                decoded=own_frames.decoded,
                lpips=None if lpips is None else lpips(*pair),
            )
        rows.append(row)
    whole = torch.cat(reference.latents)
    latents = compare(torch.cat(played.latents).cpu(), whole)
    own = None if eager is None else compare(torch.cat(eager.latents), whole)
    return [*rows, RolloutRow(None, latents, None, own)]


def _judge_components(
    names: Iterable[str],
    measured: Mapping[str, TensorMetrics],
    eager: Mapping[str, TensorMetrics],
    precisions: Mapping[str, str],
) -> tuple[list[Gate], list[ComponentRow]]:
    gates, rows = [], []
    for name in names:
        subject = Subject(name)
        found = {subject: measured[name]} if name in measured else {}
        thresholds = load_thresholds(precisions.get(name, "fp32"))
        own = {subject: eager[name]} if name in eager else {}
        gates += judge(Where.COMPONENT, [subject], found, thresholds, own)
        rows.append(ComponentRow(subject, measured.get(name), eager.get(name)))
    return gates, rows


@dataclass(frozen=True)
class Limits:
    """Thresholds of a rollout.

    Attributes:
        generates: precision of the component that makes the latents.
        decodes: precision of the decoder.
        trained: True if the weights are trained.
        rounded: the program's ``rounded_feedback``.
    """

    generates: str
    decodes: str
    trained: bool = False
    rounded: bool = False

    def latents(self) -> Mapping[str, float]:
        """Limits of a free rollout's latents."""
        own = load_thresholds(self.generates)[Where.ROLLOUT]
        return looser(own, load_thresholds(ROUNDED)[Where.ROLLOUT]) if self.rounded else own

    def frames(self, where: Where) -> Mapping[str, float]:
        """Limits of frames, which contain the errors of both components."""
        pixels = (load_thresholds(each)[Where.PIXELS] for each in (self.generates, self.decodes))
        trained = load_trained_thresholds(self.generates, where) if self.trained else {}
        return looser(*pixels) | dict(trained)


def _forced_gates(golden: Golden, rows: Sequence[RolloutRow], limits: Limits) -> list[Gate]:
    blocks = [Subject("rollout", block) for block in range(golden.scenario.blocks)]
    found = {Subject("rollout", row.block): row.forced for row in rows if row.forced is not None}
    return judge(Where.FORCED, blocks, found, {Where.FORCED: limits.frames(Where.FORCED)})


def _finite_gates(golden: Golden, rows: Sequence[RolloutRow]) -> list[Gate]:
    """Judges only whether the latents of a free rollout are finite.

    ``compare`` gives latents with NaN or Inf a cosine of -1, which fails the limit of 0.
    """
    blocks = [Subject("rollout", block) for block in range(golden.scenario.blocks)]
    latents = {Subject("rollout", r.block): r.latents for r in rows if r.latents is not None}
    found = {subject: latents[subject] for subject in blocks if subject in latents}
    return judge(Where.ROLLOUT, blocks, found, {Where.ROLLOUT: {"cosine": 0.0}})


def _rollout_gates(golden: Golden, rows: Sequence[RolloutRow], limits: Limits) -> list[Gate]:
    """Judges a free rollout."""
    thresholds: Thresholds = {
        Where.ROLLOUT: limits.latents(),
        Where.PIXELS: limits.frames(Where.PIXELS),
    }
    blocks = [Subject("rollout", block) for block in [*range(golden.scenario.blocks), None]]
    latents = {Subject("rollout", r.block): r.latents for r in rows if r.latents is not None}
    pixels = {Subject("rollout", r.block): r.pixels for r in rows if r.pixels is not None}
    # Eager's error covers the whole rollout: that of one block varies by a fifth.
    eager = {Subject("rollout"): row.eager for row in rows if row.block is None and row.eager}
    return [
        *judge(Where.ROLLOUT, blocks, latents, thresholds, eager),
        *judge(Where.PIXELS, blocks[:-1], pixels, thresholds),
    ]


def _pictures(frames: torch.Tensor) -> torch.Tensor:
    """Reshapes uint8 ``[B, frames, H, W, 3]`` to ``[B * frames, 3, H, W]``."""
    return frames.flatten(0, 1).permute(0, 3, 1, 2)


def _pixels(frames: BlockFrames | None) -> PixelMetrics | None:
    if frames is None:
        return None
    return compare_pixels(_pictures(frames.engine), _pictures(frames.reference))


def _references(
    reference: Played, player: Player, blocks: Collection[int]
) -> dict[int, torch.Tensor]:  # fmt: skip
    """Returns the reference's frames of each block, golden or decoded here from its latents."""
    missing = set(blocks) - reference.frames.keys()
    return (player.decode(reference.latents) if missing else {}) | reference.frames


def _frames(
    played: Played, reference: Played, references: Mapping[int, torch.Tensor]
) -> list[BlockFrames]:
    """Returns the frames of each decoded block with its reference."""
    engine = {block: frames.cpu() for block, frames in played.frames.items()}
    return [
        BlockFrames(block, frames, references[block].cpu(), block not in reference.frames)
        for block, frames in engine.items()
        if block in references
    ]
