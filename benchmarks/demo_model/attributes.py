"""What a scene can be: closed sets of attributes, and a scene made of them.

Clips have no end: a stream of 1,200 frames must still show what its prompt says. So a direction
is what holds for ever, in one of two ways.

- ``left``, ``right``, ``up`` and ``down`` go around the edges of the frame: what leaves on the left
  comes in on the right, in the same rows. Every block of 12 frames shows the same direction, so a
  prompt can be scored anywhere in a stream, and the next position follows from the last two latent
  frames: a causal model needs no memory of where the object was before its window.
- ``left and right`` and ``up and down`` bounce between two edges. Here a prompt names an axis
  alone, because which way along it an object goes depends on where it is. An object that turns back
  under a prompt of ``left`` is wrong, and one that never turns under ``left and right`` is too.

Two objects move along one axis, each in a half of the frame. They never cover each other: which of
two objects came out behind the other is not something that a window of 12 latent frames can say.
"""

from dataclasses import dataclass
from enum import StrEnum


class Shape(StrEnum):
    """Outlines that differ at any rotation; a diamond would be a square."""

    CIRCLE = "circle"
    SQUARE = "square"
    TRIANGLE = "triangle"
    STAR = "star"
    CROSS = "cross"
    RING = "ring"

    @property
    def round(self) -> bool:
        """Whether spinning would not show."""
        return self in (Shape.CIRCLE, Shape.RING)


class Color(StrEnum):
    """Hues about 60 degrees apart, so that a blur or a small shift does not change the name."""

    RED = "red"
    YELLOW = "yellow"
    GREEN = "green"
    CYAN = "cyan"
    BLUE = "blue"
    PURPLE = "purple"


class Size(StrEnum):
    """How large an object is."""

    SMALL = "small"
    BIG = "big"

    @property
    def radius(self) -> float:
        """Of the circle, as a share of the frame's shorter side; other shapes look as large."""
        return {Size.SMALL: 0.128, Size.BIG: 0.178}[self]


class Direction(StrEnum):
    """Where an object goes for ever; see the module."""

    LEFT = "left"
    RIGHT = "right"
    UP = "up"
    DOWN = "down"
    LEFT_AND_RIGHT = "left and right"
    UP_AND_DOWN = "up and down"

    @property
    def axis(self) -> int:
        """0 for x, 1 for y."""
        return 0 if self in (Direction.LEFT, Direction.RIGHT, Direction.LEFT_AND_RIGHT) else 1

    @property
    def bounces(self) -> bool:
        """Whether the object turns at the edges, where others go around them."""
        return self in (Direction.LEFT_AND_RIGHT, Direction.UP_AND_DOWN)

    @property
    def sign(self) -> int:
        """1 or -1 along the axis (y grows downwards), 0 where it depends on the moment."""
        if self.bounces:
            return 0
        return 1 if self in (Direction.RIGHT, Direction.DOWN) else -1


class Speed(StrEnum):
    """How far an object goes."""

    SLOW = "slow"
    FAST = "fast"

    @property
    def step(self) -> float:
        """A frame's way, as a share of the frame's shorter side."""
        return {Speed.SLOW: 0.009, Speed.FAST: 0.018}[self]


class Rotation(StrEnum):
    """Rotation of an object about its center."""

    STILL = "still"
    SPINNING = "spinning"


class Background(StrEnum):
    """What the ground is made of."""

    SAND = "sand"
    GRASS = "grass"
    WOOD = "wood"
    STONE = "stone"
    CLOTH = "cloth"
    BRICK = "brick"


class Light(StrEnum):
    """How the light changes."""

    STEADY = "steady"
    PULSING = "pulsing"
    SWEEPING = "sweeping"
    SHIFTING = "shifting"


@dataclass(frozen=True)
class Thing:
    """One object.

    Raises:
        ValueError: it spins, and is round.
    """

    shape: Shape
    color: Color
    direction: Direction
    size: Size = Size.BIG
    speed: Speed = Speed.SLOW
    rotation: Rotation = Rotation.STILL

    def __post_init__(self) -> None:
        if self.shape.round and self.rotation is Rotation.SPINNING:
            raise ValueError(f"a {self.shape} that spins looks like one that does not")


@dataclass(frozen=True)
class Scene:
    """One or two objects over a background; what defaults say is what a prompt may leave out.

    Raises:
        ValueError: no object or more than two, two of one color, or two along different axes.
    """

    things: tuple[Thing, ...]
    background: Background = Background.STONE
    light: Light = Light.STEADY

    def __post_init__(self) -> None:
        if not 1 <= len(self.things) <= 2:
            raise ValueError(f"a scene has one or two objects, not {len(self.things)}")
        if len({thing.color for thing in self.things}) < len(self.things):
            raise ValueError(f"both objects are {self.things[0].color}: colors tell them apart")
        if len({thing.direction.axis for thing in self.things}) > 1:
            raise ValueError("two objects move along one axis, or they would meet")
