"""The demo's captions and reference videos."""

import random
from dataclasses import replace

import pytest
import torch
from demo_model.render import ground_only, render
from demo_model.world import (
    BLOCK,
    DIRECTIONS,
    HIGHEST,
    LOWEST,
    PERIODS,
    Clip,
    draw_scene,
    draw_switch,
    first_frame,
    parse,
    positions,
)
from hypothesis import given
from hypothesis import strategies as st

SIZE = (48, 64)
SEEDS = st.integers(0, 2**32)


def frames_of(clip, start, count):
    frames = torch.arange(start, start + count)[None]
    video, shown = render([clip], frames, SIZE)
    return video[0], shown[0]


@given(SEEDS)
def test_a_caption_names_its_scene(seed):
    scene = draw_scene(random.Random(seed))
    assert parse(scene.caption) == scene


@pytest.mark.parametrize(
    ("caption", "reason"),
    [
        ("", "expected the form"),
        ("a pink square moving left", "expected the form"),
        ("a red square", "expected the form"),
        ("a red square moving left and a red ring moving left from the top", "are red"),
        ("a red square moving left and a blue ring moving up from the top", "different axes"),
        ("a red square moving left and a blue ring moving right from the left", "one row"),
    ],
)
def test_rejects_captions_that_decide_no_video(caption, reason):
    with pytest.raises(ValueError, match=reason):
        parse(caption)


@given(SEEDS, st.integers(0, 5000), st.integers(1, 6))
def test_any_range_of_frames_is_part_of_the_whole_video(seed, start, count):
    """Frames are a closed form: those before them are not needed, and others change nothing."""
    clip = Clip(draw_scene(random.Random(seed)))
    together, _ = frames_of(clip, start, count)
    for index in range(count):
        alone, _ = frames_of(clip, start + index, 1)
        assert torch.equal(together[:, index], alone[:, 0])


@given(SEEDS, st.integers(0, 2000))
def test_motions_repeat_after_their_period(seed, frame):
    scene = draw_scene(random.Random(seed))
    for index, thing in enumerate(scene.things):
        frames = torch.tensor([frame, frame + BLOCK * PERIODS[thing.speed]])
        first, second = positions(Clip(scene), frames)[index]
        apart = (first - second).abs()
        assert torch.minimum(apart, 1 - apart).max() < 1e-9


@given(SEEDS, st.integers(0, 2000))
def test_objects_move_evenly_and_never_stop(seed, frame):
    """Between two frames an object goes one step, less where it turns; bouncing ones stay in."""
    scene = draw_scene(random.Random(seed))
    centers = positions(Clip(scene), torch.arange(frame, frame + 3))
    for thing, path in zip(scene.things, centers, strict=True):
        toward = torch.tensor(DIRECTIONS[thing.direction])
        step = 1 / (BLOCK * PERIODS[thing.speed])
        moved = ((path.diff(dim=0) + 0.5).remainder(1) - 0.5)[:, toward != 0].flatten()
        if thing.manner == "moving":
            assert torch.allclose(moved, step * toward[toward != 0].double())
        else:
            step *= 2 * (HIGHEST - LOWEST)
            assert moved.abs().max() <= step + 1e-9
            assert max(moved.abs()) > step / 2 - 1e-9
            assert path.min() >= LOWEST - 1e-9
            assert path.max() <= HIGHEST + 1e-9


@given(SEEDS, st.integers(1, 300))
def test_a_switch_keeps_places_and_changes_what_it_names(seed, at):
    choose = random.Random(seed)
    scene = draw_scene(choose)
    later = draw_switch(scene, choose)
    before, after = Clip(scene), Clip(scene, later, at)
    here = torch.tensor([at])
    assert torch.equal(positions(before, here), positions(after, here))
    frames = torch.arange(at - 1, at + 4)
    for index, (old, new) in enumerate(zip(scene.things, later.things, strict=True)):
        assert replace(new, color=old.color, direction=old.direction) == old
        moved = positions(after, frames)[index].diff(dim=0)[1:].sum(0)
        if new.direction != old.direction and new.manner == "moving":
            wrapped = (moved + 0.5).remainder(1) - 0.5
            assert (wrapped * torch.tensor(DIRECTIONS[new.direction])).sum() > 0
        if new.direction == old.direction:
            assert torch.equal(positions(after, frames)[index], positions(before, frames)[index])
    old_video, _ = frames_of(before, at - 1, 2)
    new_video, _ = frames_of(after, at - 1, 2)
    assert torch.equal(old_video[:, 0], new_video[:, 0])


@given(SEEDS, st.integers(0, 400))
def test_objects_never_overlap_and_are_all_that_hides_the_ground(seed, frame):
    scene = draw_scene(random.Random(seed))
    parts = [replace(scene, things=(thing,)) for thing in scene.things]
    covered = [frames_of(Clip(part), frame, 1)[1] for part in parts]
    video, shown = frames_of(Clip(scene), frame, 1)
    assert torch.allclose(sum(covered), shown, atol=1e-6)
    assert all(each.sum() > 20 for each in covered)
    ground = ground_only(Clip(scene), torch.tensor([frame]), SIZE)
    brighter = (video - ground).amax((0, 1))[shown[0] == 0]
    assert brighter.max() <= 1e-6, "only a shadow, which darkens, lies outside of objects"


def test_blocks_begin_where_the_runtime_begins_them():
    assert [first_frame(block) for block in range(3)] == [0, 9, 21]
