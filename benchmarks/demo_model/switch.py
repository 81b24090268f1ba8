"""Prompt switches: one object gets another color, direction or shape, and all else stays."""

import random
from dataclasses import dataclass, replace
from enum import StrEnum

from demo_model.attributes import Color, Direction, Rotation, Scene, Shape, Thing
from demo_model.clip import Clip
from demo_model.grammar import Phrasing, caption
from demo_model.split import Example, Split, sample, split_of


class Changed(StrEnum):
    """What a switch changes."""

    COLOR = "color"
    DIRECTION = "direction"
    SHAPE = "shape"


@dataclass(frozen=True)
class Switch:
    """A captioned clip, and what another prompt makes of it.

    Attributes:
        before: the example until the switch; its wording is that of both captions.
        after: the scene from then on.
        thing: which of the scene's objects changes.
        changed: what of it.
    """

    before: Example
    after: Scene
    thing: int
    changed: Changed

    @property
    def captions(self) -> tuple[str, str]:
        """The prompts before and after."""
        phrasing: Phrasing = self.before.phrasing
        return self.before.caption, caption(self.after, phrasing)

    def clip(self, frame: int) -> Clip:
        """What is rendered when the new prompt holds from ``frame`` on; objects go on from there.

        Raises:
            ValueError: the frame is not after the first.
        """
        return Clip(self.before.seed, ((0, self.before.scene), (frame, self.after)))


def alternatives(scene: Scene, thing: int, changed: Changed) -> list[Scene]:
    """Scenes of the same split in which that of one object is another, and shows within seconds."""
    found = []
    for other in _changed(scene.things[thing], changed):
        things = (*scene.things[:thing], other, *scene.things[thing + 1 :])
        try:
            candidate = replace(scene, things=things)
        except ValueError:
            # Both objects of one color, or on ways that cross.
            continue
        if split_of(candidate) is split_of(scene):
            found.append(candidate)
    return found


def _changed(thing: Thing, changed: Changed) -> list[Thing]:
    if changed is Changed.COLOR:
        return [replace(thing, color=c) for c in Color if c is not thing.color]
    if changed is Changed.DIRECTION:
        return [replace(thing, direction=d) for d in Direction if _shows(thing.direction, d)]
    spinning = thing.rotation is Rotation.SPINNING
    shapes = [s for s in Shape if s is not thing.shape and not (spinning and s.round)]
    return [replace(thing, shape=s) for s in shapes]


def _shows(before: Direction, after: Direction) -> bool:
    """Whether two directions look different at once: a bounce does not until it turns."""
    if before.axis == after.axis:
        return before.sign * after.sign < 0
    return True


def sample_switch(split: Split, index: int) -> Switch:
    """Switch ``index`` of a split: always the same one; color, direction and shape take turns.

    Its seed is that of an example of the split, so that it belongs to no other.
    """
    draw = random.Random(f"switch {split.value} {index}")
    changed = list(Changed)[index % len(Changed)]
    while True:
        example = sample(split, draw.randrange(2**30))
        thing = draw.randrange(len(example.scene.things))
        if found := alternatives(example.scene, thing, changed):
            return Switch(example, draw.choice(found), thing, changed)
