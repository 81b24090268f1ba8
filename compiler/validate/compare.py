"""Holds engines to golden data, component by component and block by block."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from vidc.compiler.validate.gates import (
    Gate,
    Subject,
    Thresholds,
    Where,
    judge,
    load_thresholds,
    looser,
)
from vidc.compiler.validate.golden import Golden, Record, record
from vidc.compiler.validate.metrics import TensorMetrics, compare, compare_pixels
from vidc.compiler.validate.play import Played, play_rollout
from vidc.compiler.validate.report import ComponentRow, FramePair, RolloutRow
from vidc.runtime.engines import Engine
from vidc.runtime.session import DIRECT, Lanes
from vidc.runtime.stream import StreamSpec


@dataclass(frozen=True)
class Comparison:
    """What a validation measured, and its gates."""

    gates: list[Gate]
    components: list[ComponentRow]
    rollout: list[RolloutRow]
    frames: list[FramePair]


def hold_to_golden(
    golden: Golden,
    stream: StreamSpec,
    engines: Mapping[str, Engine],
    precisions: Mapping[str, str],
    device: torch.device,
    lanes: Lanes = DIRECT,
) -> Comparison:
    """Replays the golden scenario with these engines and judges what comes out.

    What a stream cannot do without, what the reference called and what has a precision must be
    there. Without all that a stream needs nothing can be replayed, and that alone is judged.

    Args:
        golden: the reference.
        stream: of the bundle.
        engines: by component.
        precisions: of the bundle's components; float32's thresholds hold for any other.
        device: of the engines.
        lanes: of the bundle, where the rollout is played.
    """
    called = [component for component, _ in golden.reference.calls]
    required = [*dict.fromkeys([*called, *stream.components, *precisions])]
    if absent := [name for name in stream.components if name not in engines]:
        return Comparison(*_judge_components(absent, {}, {}, precisions), [], [])
    inputs = golden.inputs.to(device)
    found = record(golden.scenario, inputs, stream, engines, forced_by=golden.reference)
    worst = worst_of_calls(found, golden.reference)
    eager = {} if golden.eager is None else worst_of_calls(golden.eager, golden.reference)
    gates, rows = _judge_components(required, worst, eager, precisions)
    if not golden.scenario.rollout:
        return Comparison(gates, rows, [], [])
    played = play_rollout(golden.scenario, inputs, stream, engines, lanes)
    rollout = compare_rollouts(played, golden.reference.played, golden.eager_rollout)
    gates += _rollout_gates(golden, rollout, precisions)
    return Comparison(gates, rows, rollout, _pairs(played, golden.reference.played))


def worst_of_calls(found: Record, reference: Record) -> dict[str, TensorMetrics]:
    """Each component's metrics on the tensor and call with the largest relative error.

    A component that is not called as often as in the reference is left out.
    """
    worst: dict[str, TensorMetrics] = {}
    called = _by_component(found)
    for component, expected_calls in _by_component(reference).items():
        if len(called.get(component, ())) != len(expected_calls):
            continue
        for written, expected in zip(called[component], expected_calls, strict=True):
            for name, value in expected.items():
                metrics = compare(written[name], value)
                if component not in worst or metrics.relative_l2 > worst[component].relative_l2:
                    worst[component] = metrics
    return worst


def compare_rollouts(
    played: Played, reference: Played, eager: Played | None = None
) -> list[RolloutRow]:
    """Latents and, where they are kept, frames of each block against the reference's.

    A last row holds the latents of all blocks as one tensor. ``eager`` is the rollout of PyTorch in
    the engines' precision, where there is one.
    """
    rows = []
    for block, latent in enumerate(reference.latents):
        frames = None
        if block in reference.frames:
            frames = compare_pixels(
                _pictures(played.frames[block]), _pictures(reference.frames[block])
            )
        latents = compare(played.latents[block].cpu(), latent)
        own = None if eager is None else compare(eager.latents[block], latent)
        rows.append(RolloutRow(block, latents, frames, own))
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


def _by_component(record: Record) -> dict[str, list[dict[str, torch.Tensor]]]:
    calls: dict[str, list[dict[str, torch.Tensor]]] = {}
    for component, written in record.calls:
        calls.setdefault(component, []).append(written)
    return calls


def _rollout_gates(
    golden: Golden, rows: list[RolloutRow], precisions: Mapping[str, str]
) -> list[Gate]:
    transformer = load_thresholds(precisions.get("denoise", "fp32"))
    vae = load_thresholds(precisions.get("vae_decode", "fp32"))
    # Pixels carry the errors of both.
    thresholds: Thresholds = {
        Where.ROLLOUT: transformer[Where.ROLLOUT],
        Where.PIXELS: looser(transformer[Where.PIXELS], vae[Where.PIXELS]),
    }
    blocks = [Subject("rollout", block) for block in [*range(golden.scenario.blocks), None]]
    pictured = [Subject("rollout", block) for block in golden.scenario.pictured]
    latents = {Subject("rollout", r.block): r.latents for r in rows if r.latents is not None}
    pixels = {Subject("rollout", r.block): r.pixels for r in rows if r.pixels is not None}
    # Eager's error is that of the whole rollout: a block's own is a matter of chance by a fifth.
    eager = {Subject("rollout"): row.eager for row in rows if row.block is None and row.eager}
    return [
        *judge(Where.ROLLOUT, blocks, latents, thresholds, eager),
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
