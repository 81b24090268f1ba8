"""Prompts: a scene to a caption in several wordings, and a caption back to its scene.

A caption says everything about a scene. A terse one leaves out what is plain (big, slow, not
spinning, over stone, in steady light), so that "a red square moving left" is a prompt too, and
means one scene.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

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


class Order(StrEnum):
    """Where a caption puts background and light."""

    THINGS_FIRST = "things first"
    GROUND_FIRST = "ground first"
    LIGHT_FIRST = "light first"


@dataclass(frozen=True)
class Phrasing:
    """How a scene is worded.

    Attributes:
        order: of the caption's parts.
        formal: the second of two words for each direction.
        speed_first: "slowly moving left" instead of "moving left slowly".
        terse: leaves out what is plain.
    """

    order: Order = Order.THINGS_FIRST
    formal: bool = False
    speed_first: bool = False
    terse: bool = False


PHRASINGS = tuple(
    Phrasing(order, formal, speed_first, terse)
    for terse, order, formal, speed_first in itertools.product(
        (False, True), Order, (False, True), (False, True)
    )
)
"""All of them, terse ones last."""

MOTIONS: Mapping[Direction, tuple[str, str]] = MappingProxyType(
    {
        Direction.LEFT: ("moving left", "gliding to the left"),
        Direction.RIGHT: ("moving right", "gliding to the right"),
        Direction.UP: ("moving up", "gliding upwards"),
        Direction.DOWN: ("moving down", "gliding downwards"),
        Direction.LEFT_AND_RIGHT: ("bouncing left and right", "bouncing from side to side"),
        Direction.UP_AND_DOWN: ("bouncing up and down", "bouncing from top to bottom"),
    }
)

SPEEDS: Mapping[Speed, str] = MappingProxyType({Speed.SLOW: "slowly", Speed.FAST: "quickly"})


def caption(scene: Scene, phrasing: Phrasing = PHRASINGS[0]) -> str:
    """The scene in words; ``parse`` returns the scene."""
    things = " and ".join(_thing(thing, phrasing) for thing in scene.things)
    ground = f"over {scene.background}"
    light = f"in {scene.light} light"
    if phrasing.terse and scene.background is Scene.background:
        ground = ""
    if phrasing.terse and scene.light is Scene.light:
        light = ""
    if phrasing.order is Order.GROUND_FIRST:
        return ", ".join(part for part in (ground, things, light) if part)
    if phrasing.order is Order.LIGHT_FIRST:
        return ", ".join(part for part in (light, f"{things} {ground}".strip()) if part)
    return ", ".join(part for part in (f"{things} {ground}".strip(), light) if part)


def _thing(thing: Thing, phrasing: Phrasing) -> str:
    size = "" if phrasing.terse and thing.size is Thing.size else thing.size
    spin = "spinning" if thing.rotation is Rotation.SPINNING else ""
    speed = "" if phrasing.terse and thing.speed is Thing.speed else SPEEDS[thing.speed]
    motion = MOTIONS[thing.direction][phrasing.formal]
    moving = (speed, motion) if phrasing.speed_first else (motion, speed)
    words = ("a", size, spin, thing.color, thing.shape, *moving)
    return " ".join(word for word in words if word)


def _either(words: Iterable[str]) -> str:
    return "|".join(sorted(words, key=len, reverse=True))


_MOTION_OF = {words: motion for motion, pair in MOTIONS.items() for words in pair}
_SPEED_OF = {word: speed for speed, word in SPEEDS.items()}
_THING = re.compile(
    rf"a(?: (?P<size>{_either(Size)}))?(?: (?P<spin>spinning))? (?P<color>{_either(Color)})"
    rf" (?P<shape>{_either(Shape)})(?: (?P<before>{_either(_SPEED_OF)}))?"
    rf" (?P<motion>{_either(_MOTION_OF)})(?: (?P<after>{_either(_SPEED_OF)}))?"
)
_ANY_THING = re.sub(r"\(\?P<\w+>", "(?:", _THING.pattern)
_THINGS = rf"(?P<things>{_ANY_THING}(?: and {_ANY_THING})?)"
_GROUND = rf"over (?P<ground>{_either(Background)})"
_LIGHT = rf"in (?P<light>{_either(Light)}) light"
_CAPTIONS = tuple(
    re.compile(pattern)
    for pattern in (
        rf"{_THINGS}(?: {_GROUND})?(?:, {_LIGHT})?",
        rf"{_GROUND}, {_THINGS}(?:, {_LIGHT})?",
        rf"{_LIGHT}, {_THINGS}(?: {_GROUND})?",
    )
)


def parse(text: str) -> Scene:
    """The scene that a caption describes; what it leaves out is plain.

    Raises:
        ValueError: the text is not of the grammar, or describes no scene (see ``Scene``).
    """
    tidy = " ".join(text.lower().split())
    found = next((match for p in _CAPTIONS if (match := p.fullmatch(tidy))), None)
    if found is None:
        raise ValueError(f"not a prompt of this grammar, such as {_EXAMPLE!r}: {text!r}")
    things = tuple(_parsed(match) for match in _THING.finditer(found["things"]))
    return Scene(
        things,
        Background(found["ground"] or Scene.background),
        Light(found["light"] or Scene.light),
    )


_EXAMPLE = "a small red square moving left slowly over sand, in steady light"


def _parsed(match: re.Match[str]) -> Thing:
    if match["before"] and match["after"]:
        raise ValueError(f"the speed is said twice: {match[0]!r}")
    speed = match["before"] or match["after"]
    return Thing(
        Shape(match["shape"]),
        Color(match["color"]),
        _MOTION_OF[match["motion"]],
        Size(match["size"] or Thing.size),
        _SPEED_OF[speed] if speed else Thing.speed,
        Rotation.SPINNING if match["spin"] else Rotation.STILL,
    )


def single_things() -> Iterator[Thing]:
    """Every object there can be."""
    kinds = (Shape, Color, Direction, Size, Speed, Rotation)
    for shape, color, direction, size, speed, rotation in itertools.product(*kinds):
        if not (shape.round and rotation is Rotation.SPINNING):
            yield Thing(shape, color, direction, size, speed, rotation)


def count_prompts(phrasings: Iterable[Phrasing] = PHRASINGS) -> int:
    """Distinct prompts of one object over the plain background, written out and counted.

    Far from all: six backgrounds and four lights multiply them, and pairs of objects square them.
    """
    scenes = [Scene((thing,)) for thing in single_things()]
    return len({caption(scene, p) for p in phrasings for scene in scenes})


def words() -> frozenset[str]:
    """Every word of every caption."""
    phrases = [*_MOTION_OF, *_SPEED_OF, "a and spinning over in light"]
    closed = (Shape, Color, Size, Background, Light)
    phrases += [value for kind in closed for value in kind]
    return frozenset(word for phrase in phrases for word in phrase.split())
