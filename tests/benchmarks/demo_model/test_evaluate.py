"""The evaluation: what it reads off reference videos, and off damaged ones."""

import random
from dataclasses import replace

import pytest
import torch
from demo_model.data import draw_switch
from demo_model.evaluate import ATTRIBUTES, held_out, psnr, rate
from demo_model.reader import score
from demo_model.render import render
from demo_model.world import Clip, Scene, Thing, draw_clip
from hypothesis import example, given
from hypothesis import strategies as st

SIZE = (144, 144)  # As the demo: at 96, yellow on brick hides small objects.
START = torch.arange(0, 24)
THINGS = Thing("red", "star", "left", place="the top"), Thing("cyan", "ring", "right")
CLIP = Clip(Scene(THINGS, "grass"))


def video_of(clip, frames=START):
    (video,), _ = render([clip], frames, SIZE)
    return video


def wrong(video, clip, frames=START):
    """Attributes that are not right, of each object."""
    return [{n for n, right in thing.items() if not right} for thing in score(video, clip, frames)]


@given(st.integers(0, 2**32), st.sampled_from(["start", "switch", "late"]))
@example(9, "start")  # Purple before wood, where an edge of blue is purple.
@example(278, "switch")
def test_reference_videos_are_read_right(seed, part):
    """At the start, in the second block of a new prompt, and after a hundred blocks."""
    choose = random.Random(seed)
    at = choose.choice([21, 33, 45]) if part == "switch" else None
    clip = draw_clip(choose, at=at)
    frames = {"start": START, "switch": START[12:] + (at or 0), "late": START + 1149}[part]
    assert not any(wrong(video_of(clip, frames), clip, frames))


@pytest.mark.parametrize(
    ("attribute", "value"),
    [("color", "yellow"), ("shape", "square"), ("direction", "right"), ("place", "the upper left")],
)
def test_a_video_with_another_attribute_is_wrong_in_it_alone(attribute, value):
    other = replace(CLIP.scene, things=(replace(THINGS[0], **{attribute: value}), THINGS[1]))
    assert wrong(video_of(Clip(other)), CLIP) == [{attribute}, set()]


def test_a_missing_object_is_wrong_in_all_and_a_frozen_one_in_its_direction():
    missing = video_of(Clip(replace(CLIP.scene, things=THINGS[1:])))
    assert wrong(missing, CLIP) == [{*ATTRIBUTES}, set()]
    frozen = video_of(CLIP)[:, :1].repeat(1, len(START), 1, 1)
    assert wrong(frozen, CLIP) == [{"direction"}, {"direction"}]


def test_psnr_is_that_of_the_error_added():
    asked = video_of(CLIP)
    assert psnr(asked + 0.02, asked) == pytest.approx({"all": 40, "changing": 40}, abs=0.01)
    still = asked.clone()
    still[:, :, :8] += 0.5  # Rows above the objects' shadows do not change.
    assert psnr(still, asked)["changing"] > psnr(still, asked)["all"]


def test_training_shows_no_held_out_clip_and_often_an_object_that_turns():
    judged = [clip for switch in (None, 3) for clip in held_out(20, 0, switch)]
    assert all((clip.later or clip.scene).held_out for clip in judged)
    choose = random.Random(0)
    clips = [draw_clip(choose, False) for _ in range(50)]
    switches = [draw_switch(choose, 21) for _ in range(200)]
    for clip in (*clips, *switches):
        assert not clip.scene.held_out
        assert not clip.shown(21).held_out
    pairs = [zip(clip.scene.things, clip.shown(21).things, strict=True) for clip in switches]
    turned = [any(old.direction != new.direction for old, new in pair) for pair in pairs]
    assert 100 < sum(turned) < 160


def test_intervals_are_wilsons():
    """Newcombe (1998) gives 0.888 to 0.978 for 95 of 100."""
    found = rate([True] * 95 + [False] * 5)
    assert (found["low"], found["high"]) == pytest.approx((0.8882, 0.9785), abs=1e-3)
