"""Holds engines to golden data, component by component and block by block."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from vidc.compiler.validate.gates import Gate, Subject, Where, judge, load_thresholds
from vidc.compiler.validate.golden import Golden, Record, record
from vidc.compiler.validate.metrics import TensorMetrics, compare, compare_pixels
from vidc.compiler.validate.play import Played, play_rollout
from vidc.compiler.validate.report import ComponentRow, FramePair, RolloutRow
from vidc.runtime.engines import Engine
from vidc.runtime.stream import StreamSpec


@dataclass(frozen=True)
class Comparison:
    """What a validation measured, and its gates."""

    gates: list[Gate]
    components: list[ComponentRow]
    rollout: list[RolloutRow]
    frames: list[FramePair]


def hold_to_golden(
    golden: Golden, stream: StreamSpec, engines: Mapping[str, Engine], precisions: Mapping[str, str]
) -> Comparison:
    """Replays the golden scenario with these engines and judges what comes out.

    Args:
        golden: the reference.
        stream: of the bundle.
        engines: by component.
        precisions: of every component that must be there; one without an engine fails.
    """
    found = record(golden.scenario, golden.inputs, stream, engines, forced_by=golden.reference)
    worst = worst_of_calls(found, golden.reference)
    gates, rows = [], []
    for name, precision in precisions.items():
        subject = Subject(name)
        measured = {subject: worst[name]} if name in worst else {}
        gates += judge(Where.COMPONENT, [subject], measured, load_thresholds(precision))
        rows.append(ComponentRow(subject, worst.get(name)))
    if not golden.scenario.rollout:
        return Comparison(gates, rows, [], [])
    played = play_rollout(golden.scenario, golden.inputs, stream, engines)
    rollout = compare_rollouts(played, golden.reference.played)
    gates += _rollout_gates(golden, rollout, precisions["denoise"])
    return Comparison(gates, rows, rollout, _pairs(played, golden.reference.played))


def worst_of_calls(found: Record, reference: Record) -> dict[str, TensorMetrics]:
    """Each component's metrics on the tensor and call with the largest relative error.

    A component whose calls are not those of the reference is left out.
    """
    worst: dict[str, TensorMetrics] = {}
    if [component for component, _ in found.calls] != [c for c, _ in reference.calls]:
        return worst
    for (component, written), (_, expected) in zip(found.calls, reference.calls, strict=True):
        for name, value in expected.items():
            metrics = compare(written[name], value)
            if component not in worst or metrics.relative_l2 > worst[component].relative_l2:
                worst[component] = metrics
    return worst


def compare_rollouts(played: Played, reference: Played) -> list[RolloutRow]:
    """Latents and, where they are kept, frames of each block against the reference's."""
    rows = []
    for block, latent in enumerate(reference.latents):
        frames = None
        if block in reference.frames:
            frames = compare_pixels(
                _pictures(played.frames[block]), _pictures(reference.frames[block])
            )
        rows.append(RolloutRow(block, compare(played.latents[block].cpu(), latent), frames))
    return rows


def _rollout_gates(golden: Golden, rows: list[RolloutRow], precision: str) -> list[Gate]:
    thresholds = load_thresholds(precision)
    blocks = [Subject("rollout", block) for block in range(golden.scenario.blocks)]
    pictured = [Subject("rollout", block) for block in golden.scenario.pictured]
    latents = {Subject("rollout", r.block): r.latents for r in rows if r.latents is not None}
    pixels = {Subject("rollout", r.block): r.pixels for r in rows if r.pixels is not None}
    return [
        *judge(Where.ROLLOUT, blocks, latents, thresholds),
        *judge(Where.PIXELS, pictured, pixels, thresholds),
    ]


def _pictures(frames: torch.Tensor) -> torch.Tensor:
    """uint8 ``[B, frames, H, W, 3]`` as ``[B * frames, 3, H, W]``."""
    return frames.cpu().flatten(0, 1).permute(0, 3, 1, 2)


def _pairs(played: Played, reference: Played) -> list[FramePair]:
    return [
        FramePair(
            block,
            frames.shape[1] - 1,
            played.frames[block][0, -1].cpu().numpy(),
            frames[0, -1].cpu().numpy(),
        )
        for block, frames in reference.frames.items()
    ]
