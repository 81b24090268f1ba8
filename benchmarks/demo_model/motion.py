"""Where objects are in each frame, in closed form: frame 100,000 costs what frame 0 costs."""

import math
import random
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from demo_model.attributes import Rotation, Scene, Thing
from demo_model.clip import Clip
from demo_model.shapes import EXTENT, SYMMETRY

Values = npt.NDArray[np.float64]

SPIN = math.radians(3)
"""Clockwise turn of a spinning object in a frame; a star looks the same after 24 of them."""

UPRIGHT_FRAMES = 9
"""A stream's first block. What spins begins to after it: all that is not told by what came before
is then as of objects that stand still. Of shapes at any angle the mean is a disc, and a disc is
what few steps make of them."""

EASE_FRAMES = 12
"""After so many frames of a new direction an object is wholly inside the edges beside its way."""

MARGIN = 0.012
"""Room that an object leaves to the middle and to edges beside its way, of the shorter side."""


@dataclass(frozen=True)
class Track:
    """Where one object is in each of some frames.

    Attributes:
        x, y: pixels from the frame's corner to the object's center, in the frame.
        angle: radians clockwise.
    """

    x: Values
    y: Values
    angle: Values


@dataclass(frozen=True)
class _State:
    """Where an object is, and which way along its axis it goes."""

    place: tuple[float, float]
    sign: int
    angle: float


def tracks(clip: Clip, first: int, frames: int, height: int, width: int) -> list[Track]:
    """Tracks of a clip's objects, in the order of its scenes, over ``frames`` from ``first``."""
    sides = (width, height)
    wanted = np.arange(first, first + frames)
    starts = [start for start, _ in clip.scenes]
    ends = [*starts[1:], first + frames]
    result = []
    for index, state in enumerate(_starts(clip, sides)):
        parts = []
        for (start, scene), end in zip(clip.scenes, ends, strict=True):
            thing = scene.things[index]
            if start:
                state = replace(state, sign=thing.direction.sign or state.sign)
            inside = wanted[(wanted >= start) & (wanted < end)].astype(np.float64)
            parts.append(_moved(state, thing, start, inside, sides)[0])
            if end > start:
                track, sign = _moved(state, thing, start, np.array([float(end)]), sides)
                # The next shape turns on from what is seen of this one.
                seen = track.angle[0] % SYMMETRY.get(thing.shape, math.inf)
                state = _State((track.x[0], track.y[0]), sign, seen)
        result.append(
            Track(
                np.concatenate([part.x for part in parts]),
                np.concatenate([part.y for part in parts]),
                np.concatenate([part.angle for part in parts]),
            )
        )
    return result


def reach(thing: Thing, sides: tuple[int, int]) -> float:
    """Pixels from an object's center that it keeps from edges that it does not go around."""
    return (thing.size.radius * EXTENT + MARGIN) * min(sides)


def _starts(clip: Clip, sides: tuple[int, int]) -> list[_State]:
    """Where objects start: two of them in different halves of the frame, beside each other."""
    draw = random.Random(f"layout {clip.seed}")
    scene: Scene = clip.scenes[0][1]
    halves = [0, 1]
    draw.shuffle(halves)
    states = []
    for thing, half in zip(scene.things, halves, strict=False):
        along, across = draw.random(), draw.random()
        sign = thing.direction.sign or draw.choice((-1, 1))
        axis = thing.direction.axis
        keep = reach(thing, sides)
        place = [0.0, 0.0]
        low, high = (keep, sides[axis] - keep) if thing.direction.bounces else (0, sides[axis])
        place[axis] = low + (high - low) * along
        room = sides[1 - axis] / len(scene.things)
        offset = room * half if len(scene.things) > 1 else 0.0
        place[1 - axis] = offset + keep + (room - 2 * keep) * across
        states.append(_State((place[0], place[1]), sign, angle=0.0))
    return states


def _moved(
    state: _State, thing: Thing, start: int, frames: Values, sides: tuple[int, int]
) -> tuple[Track, int]:
    """The track at these frames, and the sign along the axis at the last of them.

    Args:
        state: at the first frame of a scene.
        thing: in this scene. A bounce goes on as the object goes.
        start: the scene's first frame.
        frames: none before that.
        sides: of a frame.
    """
    t = frames - start
    axis = thing.direction.axis
    keep = reach(thing, sides)
    way = thing.speed.step * min(sides) * t
    signs = np.full(t.shape, state.sign)
    if thing.direction.bounces:
        along, signs = _bounced(state.place[axis], state.sign, way, keep, sides[axis])
    else:
        along = (state.place[axis] + state.sign * way) % sides[axis]
    # A new direction may find the object half around an edge that is now beside its way.
    across = state.place[1 - axis] % sides[1 - axis]
    inside = min(max(across, keep), sides[1 - axis] - keep)
    eased = np.clip(t / EASE_FRAMES, 0, 1)
    beside = (across + (inside - across) * eased * eased * (3 - 2 * eased)) % sides[1 - axis]
    turned = np.maximum(frames, UPRIGHT_FRAMES - 1) - max(start, UPRIGHT_FRAMES - 1)
    spin = SPIN if thing.rotation is Rotation.SPINNING else 0.0
    x, y = (along, beside) if axis == 0 else (beside, along)
    track = Track(x, y, state.angle + spin * turned)
    return track, int(signs[-1]) if len(t) else state.sign


def _bounced(
    place: float, sign: int, way: Values, keep: float, side: int
) -> tuple[Values, npt.NDArray[np.int64]]:
    """Positions and signs after ``way`` pixels between ``keep`` and ``side - keep``.

    An object that is half around an edge first goes on until it is wholly inside.
    """
    span = side - 2 * keep
    entry = keep if sign > 0 else side - keep
    inside = keep <= place % side <= side - keep
    before = 0.0 if inside else (sign * (entry - place)) % side
    from_entry = (sign * (place % side - entry)) if inside else 0.0
    unfolded = (from_entry + np.maximum(way - before, 0)) % (2 * span)
    back = unfolded > span
    folded = np.where(back, 2 * span - unfolded, unfolded)
    positions = np.where(way < before, (place + sign * way) % side, entry + sign * folded)
    return positions, np.where(back, -sign, sign)
