"""The demo's captions and reference videos."""

import random
from dataclasses import replace

import torch
from demo_model import world
from demo_model.render import render
from demo_model.world import Clip, apart, draw_clip, draw_scene, positions
from hypothesis import example, given
from hypothesis import strategies as st

SEEDS = st.integers(0, 2**32)


def frames_of(clip, start, count):
    """The video ``[3, T, H, W]`` of one clip and the share of objects ``[T, H, W]``."""
    (video,), (shown,) = render([clip], torch.arange(start, start + count), (48, 64))
    return video, shown


def test_a_caption_names_one_scene_in_known_words():
    choose, scenes = random.Random(0), {}
    for _ in range(2000):
        scene = draw_scene(choose)
        assert scenes.setdefault(scene.caption, scene) == scene
    unknown = world.vocabulary().index(world.UNKNOWN)
    assert not (world.tokenize([*scenes]) == unknown).any()


@given(SEEDS, st.integers(1, 12))
def test_clips_drawn_together_are_those_drawn_alone_and_frame_by_frame(seed, count):
    """Each clip in frames of its own, with one or two objects, and with or without a switch."""
    choose = random.Random(seed)
    starts = [choose.randrange(5000) for _ in range(count)]
    clips = [draw_clip(choose, at=choose.choice((None, start + 1))) for start in starts]
    drawn = render(clips, torch.tensor(starts)[:, None] + torch.arange(3), (48, 64))
    for clip, start, video, shown in zip(clips, starts, *drawn, strict=True):
        alone = frames_of(clip, start, 3)
        torch.testing.assert_close((video, shown), alone, atol=1e-5, rtol=0)
        single = [frames_of(clip, start + at, 1)[0] for at in range(3)]
        assert torch.equal(alone[0], torch.cat(single, 1))


@given(SEEDS, st.integers(0, 2000))
def test_objects_move_evenly_and_repeat_after_their_period(seed, frame):
    scene = draw_scene(random.Random(seed))
    for index, thing in enumerate(scene.things):
        period = world.BLOCK * world.PERIODS[thing.speed]
        (path,) = positions([Clip(scene)], index, frame + torch.arange(period + 1))
        assert torch.allclose(apart(path[0], path[-1]), path.new_zeros(2))
        toward = torch.tensor(world.DIRECTIONS[thing.direction]).double()
        assert torch.allclose(apart(path[1:], path[:-1]), toward / period)


@given(SEEDS, st.integers(1, 300))
@example(47, 47)  # The object is at the edge, at 0 or rounded to 1.
def test_a_switch_keeps_places_and_changes_what_it_names(seed, at):
    after = draw_clip(random.Random(seed), at=at)
    before = Clip(after.scene)
    for index, (old, new) in enumerate(zip(after.scene.things, after.later.things, strict=True)):
        assert replace(new, color=old.color, direction=old.direction) == old
        first, second = positions([before, after], index, at + torch.arange(4))
        assert torch.equal(first[0], second[0])
        if new.direction == old.direction:
            torch.testing.assert_close(apart(first, second), torch.zeros_like(first))
        else:
            moved = apart(second[3], second[0])
            assert (moved * torch.tensor(world.DIRECTIONS[new.direction])).sum() > 0
    assert torch.equal(frames_of(before, at - 1, 1)[0], frames_of(after, at - 1, 1)[0])


@given(SEEDS, st.integers(0, 400))
@example(3868174, 0)
def test_objects_overlap_in_blurred_edges_at_most_and_are_all_that_hides_the_ground(seed, frame):
    scene = draw_scene(random.Random(seed))
    parts = [replace(scene, things=(thing,)) for thing in scene.things]
    covered = [frames_of(Clip(part), frame, 1)[1] for part in parts]
    video, shown = frames_of(Clip(scene), frame, 1)
    assert (sum(covered) - shown).abs().max() < 0.1
    assert all(each.sum() > 20 for each in covered)
    ground, _ = frames_of(Clip(replace(scene, things=())), frame, 1)
    brighter = (video - ground).amax((0, 1))[shown[0] == 0]
    assert brighter.max() <= 1e-6, "only a shadow, which darkens, lies outside of objects"
