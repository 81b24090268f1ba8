from dataclasses import replace

import pytest
import torch
from demo_model.attributes import Color, Direction, Rotation, Scene, Shape, Size, Thing
from demo_model.clip import TRANSITION_FRAMES, Clip
from demo_model.contact_sheet import contact_sheet
from demo_model.motion import tracks
from demo_model.palette import OBJECTS
from demo_model.render import render
from demo_model.shapes import DISTANCES, EXTENT, rotated
from demo_model.split import Split, sample
from demo_model.switch import Changed, sample_switch


@pytest.fixture(scope="module")
def clips():
    return [sample(Split.TRAIN, index).clip for index in range(6)]


def test_a_clip_is_deterministic_and_in_range(clips):
    found = render(clips, 9)
    assert found.shape == (6, 3, 9, 128, 128)
    assert found.dtype == torch.float32
    assert found.is_contiguous()
    assert found.abs().max() <= 1
    assert torch.equal(found, render(clips, 9))


def test_a_clip_does_not_depend_on_its_batch_or_its_first_frame(clips):
    whole = render(clips, 9)
    for index, clip in enumerate(clips):
        assert torch.allclose(render([clip], 9)[0], whole[index], atol=1e-4)
    assert torch.allclose(render(clips, 4, first=5), whole[:, :, 5:], atol=1e-4)


def test_seeds_make_different_clips(clips):
    other = [replace(clip, seed=clip.seed + 1) for clip in clips]
    difference = (render(clips, 1) - render(other, 1)).flatten(1).std(1)
    assert difference.min() > 0.1


@pytest.mark.parametrize(("height", "width"), [(64, 64), (96, 160), (256, 128)])
def test_sizes(clips, height, width):
    assert render(clips[:2], 2, height=height, width=width).shape == (2, 3, 2, height, width)


def test_what_cannot_be_rendered(clips):
    with pytest.raises(ValueError, match="nothing to render"):
        render([], 9)
    with pytest.raises(ValueError, match="nothing to render"):
        render(clips, 0)
    with pytest.raises(ValueError, match="too small"):
        render(clips, 9, height=48)


@pytest.mark.parametrize("color", Color)
def test_an_object_has_its_color_where_its_track_says(color):
    thing = Thing(Shape.CIRCLE, color, Direction.LEFT, Size.SMALL)
    clip = Clip.of(Scene((thing,)), 3)
    found = (render([clip], 60)[0] + 1) / 2
    track = tracks(clip, 0, 60, 128, 128)[0]
    for t in range(0, 60, 6):
        pixel = found[:, t, int(track.y[t]), int(track.x[t]) % 128]
        assert pixel.numpy() == pytest.approx(OBJECTS[color], abs=0.06)


@pytest.mark.parametrize("shape", Shape)
def test_an_object_covers_as_many_pixels_as_its_shape_at_any_place(shape):
    steps = torch.arange(-1.4, 1.4, 0.01)
    y, x = torch.meshgrid(steps, steps, indexing="ij")
    area = float((DISTANCES[shape](x, y) < 0).sum()) * 0.01**2 * (Size.SMALL.radius * 128) ** 2
    rotation = Rotation.STILL if shape.round else Rotation.SPINNING
    thing = Thing(shape, Color.BLUE, Direction.RIGHT, Size.SMALL, rotation=rotation)
    found = render([Clip.of(Scene((thing,)), 3)], 120)[0]
    # How much more blue than red there is: 0 on stone, and 1.1 or more inside.
    covered = ((found[2] - found[0]) > 0.55).sum((1, 2))
    assert covered.numpy() == pytest.approx(area, rel=0.06)


@pytest.mark.parametrize("shape", Shape)
def test_a_shape_reaches_no_further_than_it_may(shape):
    steps = torch.arange(-2, 2, 0.01)
    y, x = torch.meshgrid(steps, steps, indexing="ij")
    inside = DISTANCES[shape](*rotated(x, y, torch.tensor(0.7))) < 0
    furthest = torch.hypot(x, y)[inside].max()
    assert 0.95 < furthest <= EXTENT + 0.01


def test_edges_are_smooth():
    thing = Thing(Shape.SQUARE, Color.BLUE, Direction.LEFT)
    found = render([Clip.of(Scene((thing,)), 3)], 30)[0]
    # A frame's step of 1.15 pixels changes an edge's pixels by what it uncovers, and no more.
    blue = (found[2] - found[0]).clamp_min(0).sum((1, 2))
    assert (blue.diff().abs() < 0.02 * blue[:-1]).all()


def test_a_switch_changes_its_object_and_nothing_else():
    for index in range(12):
        switch = sample_switch(Split.TRAIN, index)
        changed, kept = render([switch.clip(5), switch.before.clip], 40)
        assert torch.allclose(changed[:, :5], kept[:, :5], atol=1e-4)
        assert (changed[:, 30:] - kept[:, 30:]).abs().amax() > 0.3
        tracked = tracks(switch.clip(5), 0, 40, 128, 128)
        if len(tracked) == 2:
            other = tracked[1 - switch.thing]
            for t in range(40):
                y, x = int(other.y[t]) % 128, int(other.x[t]) % 128
                assert torch.allclose(changed[:, t, y, x], kept[:, t, y, x], atol=1e-3)


def test_a_shape_changes_little_by_little():
    star, square = (
        Scene((Thing(shape, Color.BLUE, Direction.RIGHT),)) for shape in (Shape.STAR, Shape.SQUARE)
    )
    found = render([Clip(3, ((0, star), (10, square)))], 24)[0]
    covered = ((found[2] - found[0]) > 0.55).sum((1, 2)).float()
    before, after = covered[5], covered[23]
    assert covered[:10].numpy() == pytest.approx(float(before), rel=0.03)
    assert covered[10 + TRANSITION_FRAMES :].numpy() == pytest.approx(float(after), rel=0.03)
    assert covered.diff().max() < 0.35 * (after - before)


def test_a_switch_names_what_changes():
    for index, changed in enumerate(Changed):
        switch = sample_switch(Split.HELD_OUT, index)
        before, after = (s.things[switch.thing] for s in (switch.before.scene, switch.after))
        assert switch.changed is changed
        differ = {c for c in Changed if getattr(before, c) is not getattr(after, c)}
        assert differ == {changed}
        assert switch.captions[0] != switch.captions[1]


def test_a_contact_sheet_has_a_row_for_each_clip(clips):
    sheet = contact_sheet(render(clips[:2], 9), ["one", "two"], 3)
    assert sheet.size == (3 * 130 - 2, 2 * (128 + 18))
    assert len(sheet.getcolors(1 << 24)) > 1000
