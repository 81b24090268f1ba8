"""The evaluation: what it reads off reference videos, and off damaged ones."""

import random
from dataclasses import replace

import pytest
import torch
from demo_model.evaluate import held_out, medians, psnr, rate
from demo_model.reader import score
from demo_model.render import render
from demo_model.world import Clip, Scene, Thing, draw_clip, draw_scene, draw_switch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

SIZE = (144, 144)  # As the demo: at 96, yellow on brick hides small objects.
START = torch.arange(0, 24)


def video_of(clip, frames=START):
    return render(clip, frames, SIZE)[0]


def wrong(video, clip, frames=START):
    """Names of attributes that are not right for some object."""
    return {name for thing in score(video, clip, frames) for name, ok in thing.items() if not ok}


@given(st.integers(0, 2**32), st.sampled_from(["start", "switch", "late"]))
def test_reference_videos_are_read_right(seed, part):
    """At the start, in the second block of a new prompt, and after a hundred blocks."""
    choose = random.Random(seed)
    scene = draw_scene(choose)
    if part == "switch":
        at = choose.choice([21, 33, 45])
        clip, frames = Clip(scene, draw_switch(scene, choose), at), at + 12 + torch.arange(12)
    else:
        clip, frames = Clip(scene), START if part == "start" else 1149 + torch.arange(24)
    assert wrong(video_of(clip, frames), clip, frames) == set()


THINGS = Thing("red", "star", "left", place="the top"), Thing("cyan", "ring", "right")
BASE = Scene(THINGS, "grass")
FAULTS = {"color": "yellow", "shape": "square", "direction": "right", "place": "the upper left"}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_video_with_another_attribute_is_wrong_in_it_alone(fault):
    other = replace(BASE, things=(replace(THINGS[0], **{fault: FAULTS[fault]}), THINGS[1]))
    found = score(video_of(Clip(other)), Clip(BASE), START)
    assert {name for name, ok in found[0].items() if not ok} == {fault}
    assert all(found[1].values())


def test_a_missing_object_is_wrong_in_all():
    video = video_of(Clip(Scene(BASE.things[1:], BASE.ground)))
    found = score(video, Clip(BASE), START)
    assert not any(found[0].values())
    assert all(found[1].values())


def test_an_object_that_comes_late_has_no_place():
    clip = Clip(Scene((replace(BASE.things[0], place="the upper left"),)))
    video = video_of(clip)
    video[:, 0] = video_of(Clip(Scene((BASE.things[1],))))[:, 0]
    assert "place" in wrong(video, clip)


def test_blur_and_noise_of_a_model_leave_a_video_readable():
    video = video_of(Clip(BASE))
    blurred = F.avg_pool2d(video.transpose(0, 1), 3, 1, 1).transpose(0, 1)
    noisy = video + 0.08 * torch.randn(video.shape, generator=torch.Generator().manual_seed(0))
    for damaged in (blurred, noisy.clamp(-1, 1)):
        assert wrong(damaged, Clip(BASE)) == set()


def test_a_frozen_video_has_no_direction():
    video = video_of(Clip(BASE))[:, :1].repeat(1, len(START), 1, 1)
    assert "direction" in wrong(video, Clip(BASE))


def test_psnr_is_that_of_the_error_added():
    asked = video_of(Clip(BASE))
    found = psnr(asked + 0.02, asked)
    assert found["all"] == pytest.approx(40, abs=0.01)
    assert found["changing"] == pytest.approx(40, abs=0.01)
    still = video_of(Clip(BASE))
    still[:, :, :8] += 0.5  # Rows above the objects' shadows do not change.
    assert psnr(still, asked)["changing"] > psnr(still, asked)["all"]


def test_held_out_clips_are_in_no_training():
    judged = [clip for switch in (None, 3) for clip in held_out(20, 0, switch)]
    assert all((clip.later or clip.scene).held_out for clip in judged)
    choose = random.Random(0)
    clips = [draw_clip(choose, False, at) for at in (None, 21) for _ in range(50)]
    scenes = [scene for clip in clips for scene in (clip.scene, clip.later) if scene is not None]
    assert not any(thing.held_out for scene in scenes for thing in scene.things)


def test_intervals_are_wilsons_and_the_bootstraps():
    """Wilson's interval of 95 in 100 (Newcombe 1998): 0.888 to 0.978."""
    found = rate([True] * 95 + [False] * 5)
    assert (found["low"], found["high"]) == pytest.approx((0.8882, 0.9785), abs=1e-3)
    values = [{"all": float(value)} for value in range(101)]
    found = medians(values)["all"]
    assert found["median"] == 50
    low, high = found["ci95"]
    assert 35 < low < 50 < high < 65
