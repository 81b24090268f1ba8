"""Scores of a clip against its prompt, and of a switch, from pixels alone."""

import itertools
from dataclasses import dataclass

from torch import Tensor

from demo_model.attributes import Color, Direction, Scene, Shape, Thing
from demo_model.find import find
from demo_model.outline import outline
from demo_model.path import follows, heading, jumps
from demo_model.switch import Switch

BLOCK = 12
"""Frames of a block."""


@dataclass(frozen=True)
class Reading:
    """One object as the pixels show it.

    Attributes:
        color: its nearest name.
        shape: none if no outline fits.
        direction: none if it stays or wanders; see ``path.heading``.
        jumps: it is somewhere that it cannot have moved to.
        frames: of the clip.
        sides: width and height of the clip in pixels.
    """

    color: Color
    shape: Shape | None
    direction: Direction | None
    jumps: bool
    frames: int
    sides: tuple[int, int]


@dataclass(frozen=True)
class Score:
    """What of one object of a prompt a clip shows; all are wrong of one that is absent."""

    color: bool
    shape: bool
    direction: bool
    present: bool = True

    @property
    def right(self) -> int:
        """How many of the three are."""
        return self.color + self.shape + self.direction


ABSENT = Score(False, False, False, present=False)


def read(clip: Tensor) -> tuple[Reading, ...]:
    """Objects of a clip ``[3, T, H, W]`` in -1..1, largest first; none where there is none.

    Raises:
        ValueError: the clip has another shape, or values that are not finite.
    """
    height, width = clip.shape[-2:]
    frames = clip.shape[1]
    return tuple(
        Reading(blob.color, outline(blob), heading(blob), jumps(blob), frames, (width, height))
        for blob in find(clip)
    )


def score(readings: tuple[Reading, ...], scene: Scene) -> tuple[Score, ...]:
    """A score for each of a scene's objects, paired with readings so that most is right."""
    padded: tuple[Reading | None, ...] = (*readings, *(None for _ in scene.things))
    pairings = (
        tuple(_score(reading, thing) for reading, thing in zip(chosen, scene.things, strict=True))
        for chosen in itertools.permutations(padded, len(scene.things))
    )
    return max(pairings, key=lambda pairing: sum(one.right for one in pairing))


def _score(reading: Reading | None, thing: Thing) -> Score:
    if reading is None:
        return ABSENT
    return Score(
        reading.color is thing.color,
        reading.shape is thing.shape,
        follows(reading.direction, thing, reading.frames, reading.sides),
    )


@dataclass(frozen=True)
class SwitchScore:
    """What a clip makes of a switch.

    Attributes:
        before: the old prompt was followed.
        follows: the named object is as the new prompt says, all three.
        stays: the others are as both prompts say, from before the switch to the end, unbroken.
    """

    before: bool
    follows: bool
    stays: bool


def score_switch(clip: Tensor, frame: int, switch: Switch, settle: int = BLOCK) -> SwitchScore:
    """Scores a clip ``[3, T, H, W]`` whose prompt changed at ``frame``.

    Args:
        clip: at least a block before the switch, and a block after ``settle``.
        frame: the first frame of the new prompt.
        switch: what changed.
        settle: frames after the switch that are not looked at. With one block of them, a video
            that follows within two blocks is right and a slower one is wrong.

    Raises:
        ValueError: the clip is too short.
    """
    if frame < BLOCK or clip.shape[1] < frame + settle + BLOCK:
        raise ValueError(
            f"{clip.shape[1]} frames with a switch at {frame}: there must be {BLOCK} before it, "
            f"and {settle + BLOCK} from it on"
        )
    before = score(read(clip[:, :frame]), switch.before.scene)
    after = score(read(clip[:, frame + settle :]), switch.after)
    whole = {reading.color: reading for reading in read(clip)}
    others = [t for index, t in enumerate(switch.after.things) if index != switch.thing]
    stays = all(
        thing.color in whole
        and not whole[thing.color].jumps
        and _score(whole[thing.color], thing).right == 3
        for thing in others
    )
    return SwitchScore(before[switch.thing].right == 3, after[switch.thing].right == 3, stays)
