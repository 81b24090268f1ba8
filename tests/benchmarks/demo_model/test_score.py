"""The scorer: right on clips whose attributes are known, and wrong where they are wrong."""

from dataclasses import replace
from itertools import islice

import pytest
import torch
from demo_model.attributes import (
    Background,
    Color,
    Direction,
    Rotation,
    Scene,
    Shape,
    Size,
    Speed,
    Thing,
)
from demo_model.clip import Clip, frames_of
from demo_model.damage import as_jpeg, blurred, noisy
from demo_model.evaluation.measures import EARLY, LATE
from demo_model.find import find
from demo_model.path import follows
from demo_model.render import render
from demo_model.score import ABSENT, BLOCK, read, score, score_switch
from demo_model.split import Split, distinct, sample
from demo_model.switch import sample_switch
from demo_model.textures import grounds

DAMAGES = {
    "clean": lambda clip, seed: clip,
    "blurred": lambda clip, seed: blurred(clip, 2.0),
    "noisy": lambda clip, seed: noisy(blurred(clip, 1.0), 0.05, seed),
    "jpeg": lambda clip, seed: as_jpeg(clip, 50),
}


@pytest.mark.parametrize(
    ("damage", "count", "least"),
    [("clean", 160, 0.99), ("noisy", 80, 0.97), ("blurred", 40, 0.97), ("jpeg", 40, 0.97)],
)
def test_the_scorer_reads_what_the_generator_drew(damage, count, least):
    scores, extra = [], 0
    for index in range(count):
        example = sample((Split.TRAIN, Split.HELD_OUT)[index % 2], index)
        clip = DAMAGES[damage](render([example.clip], 13, first=index)[0], index)
        readings = read(clip)
        extra += len(readings) > len(example.scene.things)
        scores += score(readings, example.scene)
    assert extra == 0
    for name in ("color", "shape", "direction"):
        assert sum(getattr(one, name) for one in scores) >= least * len(scores), name


def test_the_scorer_reads_what_the_generator_drew_1200_frames_into_a_stream():
    """As the evaluation reads its long runs: the prompts, and the 60 frames up to block 100."""
    examples = list(islice(distinct(Split.HELD_OUT, 100), 8))
    things = [thing for example in examples for thing in example.scene.things]
    assert sum(thing.rotation is Rotation.SPINNING for thing in things) >= 3
    late = frames_of(3 * LATE)
    for example in examples:
        clip = render([example.clip], EARLY * BLOCK, first=late - EARLY * BLOCK)[0]
        assert [one.right for one in score(read(clip), example.scene)] == [3] * len(
            example.scene.things
        ), example.caption


def clip_of(*things: Thing, frames: int = 13, seed: int = 11) -> torch.Tensor:
    return render([Clip.of(Scene(things), seed)], frames)[0]


RED = Thing(Shape.SQUARE, Color.RED, Direction.LEFT)
BLUE = Thing(Shape.STAR, Color.BLUE, Direction.RIGHT, Size.SMALL)


def one_score(clip: torch.Tensor, *things: Thing):
    return [(s.color, s.shape, s.direction) for s in score(read(clip), Scene(things))]


def test_a_wrong_color_is_wrong_and_nothing_else():
    assert one_score(clip_of(replace(RED, color=Color.CYAN)), RED) == [(False, True, True)]


@pytest.mark.parametrize("shape", [shape for shape in Shape if shape is not Shape.SQUARE])
def test_a_wrong_shape_is_wrong_and_nothing_else(shape):
    assert one_score(clip_of(replace(RED, shape=shape)), RED) == [(True, False, True)]


@pytest.mark.parametrize("direction", [d for d in Direction if d is not Direction.LEFT])
def test_a_wrong_direction_is_wrong_and_nothing_else(direction):
    clip = clip_of(replace(RED, direction=direction), frames=121)
    assert one_score(clip, RED) == [(True, True, False)]


def test_a_mirrored_video_goes_the_wrong_way():
    clip = clip_of(RED, BLUE)
    assert one_score(clip, RED, BLUE) == [(True, True, True)] * 2
    assert one_score(clip.flip(-1), RED, BLUE) == [(True, True, False)] * 2
    assert one_score(clip.flip(1), RED, BLUE) == [(True, True, False)] * 2


def test_swapped_shapes_and_swapped_colors_are_wrong():
    red_star, blue_square = replace(RED, shape=Shape.STAR), replace(BLUE, shape=Shape.SQUARE)
    clip = clip_of(red_star, blue_square)
    assert one_score(clip, RED, BLUE) == [(True, False, True)] * 2


def test_a_frozen_video_goes_nowhere():
    frozen = clip_of(RED)[:, :1].expand(-1, 25, -1, -1)
    assert one_score(frozen, RED) == [(True, True, False)]
    assert one_score(noisy(frozen, 0.05, 1), RED) == [(True, True, False)]


def test_frames_in_no_order_go_nowhere():
    clip = clip_of(RED, frames=49)
    order = torch.randperm(49, generator=torch.Generator().manual_seed(0))
    assert one_score(clip[:, order], RED) == [(True, True, False)]


def test_a_tremble_is_no_bounce():
    thing = replace(RED, direction=Direction.LEFT_AND_RIGHT)
    forth = list(range(9))
    order = (forth + forth[-2:0:-1]) * 4
    assert one_score(clip_of(thing)[:, order], thing) == [(True, True, False)]


def painted(height: int, width: int) -> torch.Tensor:
    """A red box of so many pixels that moves left."""
    clip = torch.zeros(3, 13, 128, 128)
    for t in range(13):
        clip[:, t, 40 : 40 + height, 60 - 2 * t : 60 - 2 * t + width] = torch.tensor(
            [0.9, -0.8, -0.8]
        )[:, None, None]
    return clip


def test_what_is_no_shape_has_none():
    assert [(r.shape, r.direction) for r in read(painted(30, 30))] == [
        (Shape.SQUARE, Direction.LEFT)
    ]
    assert [(r.shape, r.direction) for r in read(painted(20, 45))] == [(None, Direction.LEFT)]


def test_what_is_long_and_thin_is_no_object():
    assert read(painted(6, 60)) == ()


def test_an_object_that_is_missing_is_absent():
    assert score(read(clip_of(RED)), Scene((RED, BLUE)))[1] == ABSENT


def test_an_object_that_fades_out_is_absent():
    clip, empty = clip_of(RED), clip_of(BLUE)
    assert one_score(torch.cat([clip, empty[:, :8]], 1), RED)[0][0] is False


def test_two_of_one_object_are_none():
    clip = clip_of(replace(RED, size=Size.SMALL))
    doubled = torch.where(find(clip)[0].mask.roll(64, 2) > 0.3, clip.roll(64, 3), clip)
    assert read(doubled) == ()


@pytest.mark.parametrize("background", Background)
def test_an_empty_background_has_no_object(background):
    ground = grounds([background], [5], 128, 128, torch.device("cpu"))[0] * 2 - 1
    still = ground.permute(2, 0, 1)[:, None].expand(-1, 13, -1, -1)
    assert read(still) == ()
    assert read(noisy(still, 0.1, 1)) == ()


@pytest.mark.parametrize("seed", range(5))
def test_noise_has_no_object(seed):
    draw = torch.Generator().manual_seed(seed)
    shape = (3, 13, 128, 128)
    assert read(torch.rand(shape, generator=draw) * 2 - 1) == ()
    assert read(torch.randn(shape, generator=draw) * 3) == ()
    assert read((torch.rand(3, 1, 1, 1, generator=draw) * 2 - 1).expand(shape)) == ()


@pytest.mark.parametrize("saturation", [0.3, 0.5, 0.7, 1.0])
def test_a_picture_full_of_one_color_has_no_object(saturation):
    red = torch.tensor([0.8, 0.8 * (1 - saturation), 0.8 * (1 - saturation)]) * 2 - 1
    assert read(red[:, None, None, None].expand(-1, 13, 128, 128)) == ()


def test_blots_of_color_have_neither_shape_nor_direction():
    for seed in range(10):
        draw = torch.Generator().manual_seed(seed)
        coarse = torch.randn(3, 13, 12, 12, generator=draw) * 2
        blots = torch.nn.functional.interpolate(coarse, size=(128, 128), mode="bicubic")
        for reading in read(blots.clamp(-1, 1)):
            assert (reading.shape, reading.direction) == (None, None)


def test_what_cannot_be_read():
    with pytest.raises(ValueError, match=r"\[3, T, H, W\]"):
        read(torch.zeros(13, 3, 64, 64))
    clip = clip_of(RED)
    clip[0, 3, 5, 5] = torch.nan
    with pytest.raises(ValueError, match="not finite"):
        read(clip)


@pytest.mark.parametrize("direction", [Direction.LEFT_AND_RIGHT, Direction.UP_AND_DOWN])
def test_a_bounce_must_turn_once_there_was_time(direction):
    thing = replace(RED, direction=direction, speed=Speed.FAST)
    for seed in range(4):
        whole = clip_of(thing, frames=121, seed=seed)
        assert read(whole)[0].direction is direction
        for first in (0, 30, 60):
            assert one_score(whole[:, first : first + 12], thing) == [(True, True, True)]
    one_way = Direction.LEFT if direction.axis == 0 else Direction.UP
    assert follows(one_way, thing, 24, (128, 128))
    assert not follows(one_way, thing, 121, (128, 128))
    other = Direction.UP if direction.axis == 0 else Direction.LEFT
    assert not follows(other, thing, 24, (128, 128))
    assert not follows(None, thing, 24, (128, 128))


@pytest.mark.parametrize("split", Split)
def test_a_switch_that_is_followed_is_right_and_one_that_is_not_is_wrong(split):
    for index in range(12):
        switch = sample_switch(split, index)
        told, ignored = (
            score_switch(clip, 24, switch)
            for clip in render([switch.clip(24), switch.before.clip], 60)
        )
        assert (told.before, told.follows, told.stays) == (True, True, True)
        assert (ignored.before, ignored.follows, ignored.stays) == (True, False, True)


def test_a_switch_that_comes_too_late_is_wrong():
    for index in range(6):
        switch = sample_switch(Split.TRAIN, index)
        assert not score_switch(render([switch.clip(54)], 60)[0], 24, switch).follows


@pytest.mark.parametrize("change", ["color", "shape", "direction", "gone", "moved"])
def test_what_a_switch_does_not_name_must_stay(change):
    switch = next(
        s
        for s in (sample_switch(Split.TRAIN, index) for index in range(100))
        if len(s.after.things) == 2 and not s.after.things[1 - s.thing].direction.bounces
    )
    other = 1 - switch.thing
    thing = switch.after.things[other]
    taken = {t.color for t in (*switch.before.scene.things, *switch.after.things)}
    back = next(
        d for d in Direction if d.axis == thing.direction.axis and d.sign * thing.direction.sign < 0
    )
    changes = {
        "color": {"color": next(c for c in Color if c not in taken)},
        "shape": {"shape": next(s for s in Shape if not s.round and s is not thing.shape)},
        "direction": {"direction": back},
    }
    clip = render([switch.clip(24)], 60)[0]
    if change == "gone":
        single = Clip(switch.before.seed, ((0, Scene((switch.after.things[switch.thing],))),))
        clip[:, 24:] = render([single], 36, first=24)[0]
    elif change == "moved":
        shift = [0, 0]
        shift[1 - thing.direction.axis] = 40
        clip[:, 24:] = clip[:, 24:].roll(shift, (2, 3))
    else:
        things = list(switch.after.things)
        things[other] = replace(thing, **changes[change])
        after = replace(switch.after, things=tuple(things))
        clip = render([Clip(switch.before.seed, ((0, switch.before.scene), (24, after)))], 60)[0]
    assert not score_switch(clip, 24, switch).stays


def test_a_switch_needs_frames_on_both_sides():
    switch = sample_switch(Split.TRAIN, 0)
    clip = render([switch.clip(24)], 47)[0]
    for frame in (11, 24):
        with pytest.raises(ValueError, match="frames with a switch at"):
            score_switch(clip, frame, switch)
