"""What is trained on and what is held out: never the same prompt, seed or combination.

A combination is what the scorer reads: an object's color, shape and direction. Of all 216, 48 are
held out. They come in boxes of two colors, two shapes and two directions, which has three merits:

- a switch of one attribute can stay among held-out combinations,
- every value, and every pair of values, is seen in training with others,
- each color, shape and direction is held out equally often.

Objects of a training scene all have training combinations, and those of a held-out scene all
held-out ones. A caption says these three always, so that no prompt can be of both.
"""

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from demo_model.attributes import (
    Background,
    Color,
    Direction,
    Light,
    Rotation,
    Scene,
    Shape,
    Size,
    Speed,
    Thing,
)
from demo_model.clip import Clip
from demo_model.grammar import PHRASINGS, Phrasing, caption

SEEDS = 2**31
"""Of each split: training's begin at 0, held-out ones here."""

PAIRS = 0.4
"""Share of scenes with two objects."""

PLAIN = 0.1
"""Share of scenes worded tersely in which everything that may be left out is."""


class Split(Enum):
    """A part of the data."""

    TRAIN = "train"
    HELD_OUT = "held-out"


def split_of_thing(shape: Shape, color: Color, direction: Direction) -> Split:
    """The split that a combination belongs to."""
    s, c, d = (
        list(kind).index(value) // 2
        for kind, value in ((Shape, shape), (Color, color), (Direction, direction))
    )
    held_out = (s + c + d) % 3 == 0 and (c - s) % 3 != 2
    return Split.HELD_OUT if held_out else Split.TRAIN


def split_of(scene: Scene) -> Split | None:
    """The split that all of a scene's objects belong to, if there is one."""
    found = {split_of_thing(t.shape, t.color, t.direction) for t in scene.things}
    return found.pop() if len(found) == 1 else None


def split_of_seed(seed: int) -> Split:
    """The split whose clips have this seed.

    Raises:
        ValueError: no split's have.
    """
    if not 0 <= seed < 2 * SEEDS:
        raise ValueError(f"seed {seed} is not in 0..{2 * SEEDS - 1}")
    return Split.TRAIN if seed < SEEDS else Split.HELD_OUT


Combination = tuple[Shape, Color, Direction]

COMBINATIONS: dict[Split, tuple[Combination, ...]] = {
    split: tuple(
        combination
        for combination in itertools.product(Shape, Color, Direction)
        if split_of_thing(*combination) is split
    )
    for split in Split
}


@dataclass(frozen=True)
class Example:
    """A captioned clip."""

    scene: Scene
    phrasing: Phrasing
    seed: int

    @property
    def caption(self) -> str:
        """What the clip is described by."""
        return caption(self.scene, self.phrasing)

    @property
    def clip(self) -> Clip:
        """What is rendered."""
        return Clip.of(self.scene, self.seed)


def sample(split: Split, index: int) -> Example:
    """Example ``index`` of a split, of ``SEEDS``: always the same one.

    Raises:
        ValueError: there is none.
    """
    draw = random.Random(f"example {split.value} {index}")
    seed = seed_of(split, index)
    count = 2 if draw.random() < PAIRS else 1
    plain = draw.random() < PLAIN
    things: list[Thing] = []
    while len(things) < count:
        shape, color, direction = draw.choice(COMBINATIONS[split])
        other = things[0] if things else None
        if other and (other.color is color or other.direction.axis != direction.axis):
            continue
        things.append(_dressed(shape, color, direction, plain, draw))
    if plain:
        return Example(Scene(tuple(things)), draw.choice(_TERSE), seed)
    background, light = draw.choice(list(Background)), draw.choice(list(Light))
    return Example(Scene(tuple(things), background, light), draw.choice(PHRASINGS), seed)


def seed_of(split: Split, index: int) -> int:
    """The seed of example ``index`` of a split.

    Raises:
        ValueError: the index is not in 0..``SEEDS`` - 1.
    """
    if not 0 <= index < SEEDS:
        raise ValueError(f"example {index} is not in 0..{SEEDS - 1}")
    return index if split is Split.TRAIN else SEEDS + index


def distinct(split: Split, count: int) -> Iterator[Example]:
    """The first ``count`` examples of a split whose prompts all differ."""
    seen: set[str] = set()
    for index in itertools.count():
        if len(seen) == count:
            return
        example = sample(split, index)
        if example.caption not in seen:
            seen.add(example.caption)
            yield example


_TERSE: Sequence[Phrasing] = [phrasing for phrasing in PHRASINGS if phrasing.terse]


def _dressed(
    shape: Shape, color: Color, direction: Direction, plain: bool, draw: random.Random
) -> Thing:
    """A combination with its other attributes, drawn unless they are to be plain."""
    if plain:
        return Thing(shape, color, direction)
    rotation = Rotation.STILL if shape.round else draw.choice(list(Rotation))
    size, speed = draw.choice(list(Size)), draw.choice(list(Speed))
    return Thing(shape, color, direction, size, speed, rotation)
