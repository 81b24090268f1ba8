"""The direction of an object, from where it is in each frame."""

import torch
from torch import Tensor

from demo_model.attributes import Direction, Speed, Thing
from demo_model.find import Blob, around
from demo_model.motion import reach

STRIDE = 4
"""Frames between two positions that are compared: a slow object goes 5 pixels of 128."""

STILL = 0.3 * Speed.SLOW.step
"""Less than this in a frame, as a share of the shorter side, is no motion."""

STRAIGHT = 2.0
"""Least ratio of the way along an axis to that along the other."""

TURNED = 3
"""Least steps each way of an object that turned."""

STEADY = 0.85
"""Least share of steps, leaving out those about a turn, in which an object goes at all."""

QUICKEST = 26
"""Frames between two turns of whatever bounces, at least: a big fast object takes 28."""

JUMP = 0.06
"""Largest step of an object that goes on, in a frame, as a share of the shorter side."""


def heading(blob: Blob) -> Direction | None:
    """Which way an object goes; none if it stays, wanders or cannot be followed.

    A bounce is read where the object turns within the clip, and as one of its two ways otherwise:
    ``follows`` says what that is worth.
    """
    steps = _steps(blob, STRIDE)
    if len(steps) < TURNED:
        return None
    unit = min(blob.mask.shape[1:])
    least = STILL * unit * STRIDE
    ways = steps.abs().mean(0)
    axis = int(ways.argmax())
    if ways[axis] < least or ways[axis] < STRAIGHT * ways[1 - axis]:
        return None
    along = steps[:, axis]
    along = along[along.abs() >= least]
    forward = along > 0
    turns = int((forward[1:] != forward[:-1]).sum())
    # A step about a turn goes both ways and may seem none.
    if len(steps) - len(along) > (1 - STEADY) * len(steps) + STRIDE * turns:
        return None
    if turns > 1 + len(steps) / QUICKEST:
        return None
    ahead = int(forward.sum())
    if min(ahead, len(along) - ahead) >= TURNED:
        return (Direction.LEFT_AND_RIGHT, Direction.UP_AND_DOWN)[axis]
    if axis == 0:
        return Direction.RIGHT if 2 * ahead > len(along) else Direction.LEFT
    return Direction.DOWN if 2 * ahead > len(along) else Direction.UP


def follows(read: Direction | None, thing: Thing, frames: int, sides: tuple[int, int]) -> bool:
    """Whether what was read in a clip is what an object of a prompt does.

    Args:
        read: see ``heading``.
        thing: what the prompt says.
        frames: of the clip. A bounce must be seen to turn in one that is long enough for it.
        sides: width and height in pixels.
    """
    asked = thing.direction
    if read is None or not asked.bounces or read is asked:
        return read is asked
    room = sides[asked.axis] - 2 * reach(thing, sides)
    due = room / (thing.speed.step * min(sides)) + 2 * STRIDE
    return read.axis == asked.axis and frames < due * 1.2


def jumps(blob: Blob) -> bool:
    """Whether an object is anywhere it cannot have gone to from the frame before."""
    unit = min(blob.mask.shape[1:])
    seen = torch.nonzero(blob.seen)[:, 0]
    if len(seen) < 2:
        return False
    steps = _wrapped(blob, seen[1:], seen[:-1])
    return bool((steps.norm(dim=1) / (seen[1:] - seen[:-1]) > JUMP * unit).any())


def _steps(blob: Blob, stride: int) -> Tensor:
    """Ways ``[N, 2]`` over ``stride`` frames, where the object is seen at both ends."""
    if len(blob.seen) <= stride:
        return blob.center[:0]
    both = torch.nonzero(blob.seen[stride:] & blob.seen[:-stride])[:, 0]
    return _wrapped(blob, both + stride, both)


def _wrapped(blob: Blob, to: Tensor, start: Tensor) -> Tensor:
    height, width = blob.mask.shape[1:]
    way = blob.center[to] - blob.center[start]
    return torch.stack([around(way[:, 0], width), around(way[:, 1], height)], 1)
