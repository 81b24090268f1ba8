"""Figures that compare the demo in other precisions with float32."""

import math

import pytest
import torch
from demo_model.evaluate import ATTRIBUTES, eager_bundle, held_out
from demo_model.export import export
from demo_model.render import render
from demo_model.world import Clip, Scene, Thing
from demo_precision import Rollouts, decibels, lost, read_clip, scores_of

from vidc.compiler.validate.scenario import Scenario


def test_a_prompt_counts_by_its_worst_block_over_all_pixels_and_over_those_that_change():
    reference = [torch.full((2, frames, 8, 8, 3), 100.0) for frames in (9, 12)]
    changing = torch.zeros(8, 8, dtype=torch.bool)
    changing[:2] = True  # A quarter of all pixels.
    first, second = reference[0] + 1, reference[1].clone()
    second[0] += 5
    second[1, :, changing] += 2
    found = decibels([first, second], reference, [changing, changing])
    for area, errors in (("all", (5, 1)), ("changing", (5, 2))):
        expected = [20 * math.log10(255 / error) for error in errors]
        assert found[area]["prompts"] == pytest.approx(expected)
        assert found[area]["worst"] == pytest.approx(expected[0])
        assert found[area]["median"] == pytest.approx(sum(expected) / 2)
    assert decibels(reference, reference, [changing, changing])["changing"]["worst"] == 100


def test_intervals_of_lost_points_hold_the_true_loss():
    draw = torch.Generator().manual_seed(0)
    covered = 0
    for _ in range(500):
        kinds = torch.multinomial(torch.tensor([0.95, 0.03, 0.01, 0.01]), 400, True, generator=draw)
        found = lost(((kinds == 0) | (kinds == 2)).tolist(), (kinds < 2).tolist())
        covered += found["low"] <= 2.0 <= found["high"]
    assert covered / 500 == pytest.approx(0.95, abs=0.03)


def test_scores_name_each_object_that_is_wrong():
    clips = [Clip(Scene((Thing(color, "ring", "up"),), "sand")) for color in ("red", "cyan")]
    videos, _ = render(clips, torch.arange(33), (96, 96))
    right, other = (((v.permute(1, 2, 3, 0) + 1) * 127.5).byte().numpy() for v in videos)
    first = [read_clip(clips[0], right), read_clip(clips[1], other)]
    own = [read_clip(clips[0], other), read_clip(clips[1], other)]
    exact, found = scores_of(clips, first, first), scores_of(clips, own, first)
    assert [exact["rates"][name]["rate"] for name in ATTRIBUTES] == [1.0] * 4
    points = [found["lost"][name]["lost"] for name in ("color", "place", "all attributes")]
    assert (exact["wrong"], points) == ([], [50, 0, 12.5])
    wrong = {"prompt": 0, "caption": clips[0].scene.caption, "object": 0, "wrong": ["color"]}
    assert found["wrong"] == [wrong]


def test_rollouts_are_the_same_at_another_batch_and_forced_by_their_own_latents(
    preset, sizes, done, tmp_path
):
    """Three clips in batches of two, so the last one is padded; a switch before the third block."""
    export(done, sizes, preset, tmp_path)
    exact, single = (eager_bundle(tmp_path, batch, "cpu") for batch in (2, 1))
    rollouts = Rollouts.drawn(held_out(3, 0, 2), Scenario(3, 2, rollout=True), exact)
    embeds = rollouts.embeds(exact)
    assert embeds.shape[:2] == (3, 2)
    assert not torch.equal(embeds[:, 0], embeds[:, 1])
    with torch.no_grad():
        latents, frames = rollouts.play(exact, embeds)
        forced, again = rollouts.play(exact, embeds, latents)
        alone, _ = rollouts.play(single, embeds)
        other, _ = rollouts.play(exact, embeds, [2 * latent for latent in latents])
    assert [tuple(each.shape[:2]) for each in frames] == [(3, 9), (3, 12), (3, 12)]
    pairs = zip([*latents, *frames], [*forced, *again], strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    torch.testing.assert_close(latents, alone, atol=1e-3, rtol=1e-3)
    assert torch.equal(other[0], latents[0])
    assert not torch.allclose(other[1], latents[1], atol=1e-2)
