import math

import numpy as np
import pytest
from demo_model.attributes import Color, Direction, Rotation, Scene, Shape, Speed, Thing
from demo_model.clip import Clip
from demo_model.motion import reach, tracks
from demo_model.shapes import SYMMETRY
from demo_model.split import Split, sample

SIDES = (160, 96)


def path(direction, seed=3, frames=1300, **other):
    thing = Thing(Shape.SQUARE, Color.RED, direction, **other)
    return thing, tracks(Clip.of(Scene((thing,)), seed), 0, frames, SIDES[1], SIDES[0])[0]


def wrapped(values, side):
    return (np.diff(values) + side / 2) % side - side / 2


@pytest.mark.parametrize("direction", [d for d in Direction if not d.bounces])
@pytest.mark.parametrize("speed", Speed)
def test_a_direction_holds_for_ever(direction, speed):
    _, track = path(direction, speed=speed)
    places = (track.x, track.y)
    axis = direction.axis
    step = direction.sign * speed.step * min(SIDES)
    assert np.allclose(wrapped(places[axis], SIDES[axis]), step)
    assert np.ptp(places[1 - axis]) == 0
    assert places[axis].min() >= 0
    assert places[axis].max() <= SIDES[axis]


@pytest.mark.parametrize("direction", [d for d in Direction if d.bounces])
def test_a_bounce_stays_inside_and_turns_only_at_edges(direction):
    thing, track = path(direction, speed=Speed.FAST)
    places = (track.x, track.y)[direction.axis]
    side, keep = SIDES[direction.axis], reach(thing, SIDES)
    assert places.min() >= keep - 1e-9
    assert places.max() <= side - keep + 1e-9
    steps = np.diff(places)
    turns = np.flatnonzero(np.sign(steps[1:]) != np.sign(steps[:-1])) + 1
    assert len(turns) > 10
    step = thing.speed.step * min(SIDES)
    assert np.all(np.minimum(places[turns] - keep, side - keep - places[turns]) <= step)


def test_two_objects_never_touch_and_stay_beside_each_other():
    for index in range(300):
        scene = sample(Split.TRAIN, index).scene
        if len(scene.things) < 2:
            continue
        one, other = tracks(Clip.of(scene, index), 0, 200, 128, 128)
        axis = scene.things[0].direction.axis
        across = ((t.y, t.x)[axis] for t in (one, other))
        gap = np.abs(next(across) - next(across))
        assert gap.min() >= sum(reach(thing, (128, 128)) for thing in scene.things) - 1e-9


def test_a_spinning_object_turns():
    _, track = path(Direction.LEFT, rotation=Rotation.SPINNING)
    assert not track.angle[:9].any()
    assert np.allclose(np.diff(track.angle[8:]), math.radians(3))
    _, still = path(Direction.LEFT)
    assert not still.angle.any()


@pytest.mark.parametrize("at", [3, 8, 9, 40, 213])
@pytest.mark.parametrize("shape", SYMMETRY)
@pytest.mark.parametrize("after", SYMMETRY)
def test_what_an_object_becomes_turns_on_from_what_is_seen(shape, after, at):
    """Two quarter turns of a square look alike, and a star made of it must not tell them apart."""
    before, new = (
        Scene((Thing(s, Color.RED, Direction.UP, rotation=Rotation.SPINNING),))
        for s in (shape, after)
    )
    changed = tracks(Clip(4, ((0, before), (at, new))), 0, at + 20, 128, 128)[0].angle
    plain = tracks(Clip.of(before, 4), 0, at + 20, 128, 128)[0].angle
    assert np.allclose(changed[:at], plain[:at])
    turns = (plain[at:] - changed[at:]) / SYMMETRY[shape]
    assert np.allclose(turns, round(turns[0]))
    assert 0 <= changed[at] < SYMMETRY[shape]


def test_any_stretch_is_the_same_as_the_whole():
    one = Thing(Shape.SQUARE, Color.RED, Direction.LEFT)
    scenes = [
        Scene((Thing(Shape.SQUARE, Color.RED, d),))
        for d in (Direction.UP, Direction.LEFT_AND_RIGHT, Direction.DOWN, Direction.UP_AND_DOWN)
    ]
    starts = (0, 40, 47, 100, 220)
    clip = Clip(5, tuple(zip(starts, [Scene((one,)), *scenes], strict=True)))
    whole = tracks(clip, 0, 400, 128, 128)[0]
    for first, frames in ((0, 30), (39, 3), (41, 70), (150, 200), (399, 1)):
        part = tracks(clip, first, frames, 128, 128)[0]
        for name in ("x", "y", "angle"):
            stretch = getattr(whole, name)[first : first + frames]
            assert np.allclose(getattr(part, name), stretch), (first, name)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("after", Direction)
def test_a_switch_goes_on_from_where_the_object_is(seed, after):
    before, new = (
        Scene((Thing(Shape.SQUARE, Color.RED, direction, speed=Speed.FAST),))
        for direction in (Direction.UP, after)
    )
    at = 20 + 7 * seed
    track = tracks(Clip(seed, ((0, before), (at, new))), 0, at + 300, 128, 128)[0]
    steps = np.hypot(wrapped(track.x, 128), wrapped(track.y, 128))
    fast = Speed.FAST.step * 128
    # Beside its way an object that is half around an edge comes in within 12 frames.
    assert steps.max() < fast + 1.5 * reach(new.things[0], (128, 128)) / 12 + 1e-9
    assert np.allclose(np.minimum(steps[at + 13 :], fast), steps[at + 13 :])
    beside = (track.y, track.x)[after.axis][at + 13 :]
    keep = reach(new.things[0], (128, 128))
    assert np.ptp(beside) < 1e-9
    assert keep - 1e-9 <= beside[0] <= 128 - keep + 1e-9
