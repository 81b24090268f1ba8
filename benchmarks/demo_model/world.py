"""Captions with their tokens, the scenes they name, and where every object is in every frame.

A caption decides its video: place, motion and light are functions of caption and frame. Lengths are
in units of the picture (0..1 from left to right and from top to bottom), times in video frames.

Objects never stop: one that leaves at an edge enters at the opposite one. Periods of motions and
lights are whole numbers of blocks, so a block can begin in finitely many states only.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor

COLORS = {
    "red": (0.90, 0.12, 0.12),
    "green": (0.08, 0.78, 0.20),
    "blue": (0.12, 0.28, 0.96),
    "yellow": (0.98, 0.86, 0.08),
    "purple": (0.68, 0.16, 0.88),
    "cyan": (0.08, 0.86, 0.92),
}
SHAPES = ("circle", "square", "triangle", "star", "cross", "ring")
RADII = {"small": 0.105, "": 0.13, "big": 0.155}
DIRECTIONS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
PERIODS = {"slowly": 16, "": 8, "quickly": 4}  # Blocks after which a motion repeats.
PLACES = {
    "the upper left": (0, 0), "the top": (1, 0), "the upper right": (2, 0),
    "the left": (0, 1), "": (1, 1), "the right": (2, 1),
    "the lower left": (0, 2), "the bottom": (1, 2), "the lower right": (2, 2),
}  # fmt: skip
"""Column and row of three; without a place an object begins in the middle."""
WORDS = (COLORS, SHAPES, DIRECTIONS, RADII, PERIODS, PLACES)  # Of a ``Thing``'s fields.
GROUNDS = {  # Colors in RGB (0..1).
    "": (0.52, 0.53, 0.55), "grass": (0.27, 0.42, 0.16), "sand": (0.74, 0.63, 0.44),
    "brick": (0.55, 0.31, 0.25), "wood": (0.50, 0.34, 0.20), "cloth": (0.46, 0.43, 0.56),
}  # fmt: skip
LIGHTS = {  # Factors of red, green and blue; largest gains of a pulse and of a sweeping beam.
    "": (1.0, 1.0, 1.0, 0, 0), "at dusk": (0.55, 0.58, 0.80, 0, 0),
    "in pulsing light": (1.0, 1.0, 1.0, 0.3, 0), "in sweeping light": (0.72, 0.72, 0.72, 0, 0.5),
}  # fmt: skip
PAD_ID, END_ID, UNKNOWN = 0, 1, "<unk>"
LENGTH = 32  # Tokens of every caption; the longest one has 29 with its end.
BLOCK = 12  # Video frames of every block but the first, which has three fewer.


@dataclass(frozen=True)
class Thing:
    """One object; each field is a key of the table of its kind."""

    color: str
    shape: str
    direction: str
    size: str = ""
    speed: str = ""
    place: str = ""

    @property
    def caption(self) -> str:
        """The words for it."""
        place = f"from {self.place}" if self.place else ""
        words = ("a", self.size, self.color, self.shape, "moving", self.direction, self.speed)
        return " ".join(word for word in (*words, place) if word)

    @property
    def held_out(self) -> bool:
        """True if no training shows it: one shape of six for each pair of color and direction."""
        shape = [*COLORS].index(self.color) + [*DIRECTIONS].index(self.direction) + 1
        return SHAPES[shape % len(SHAPES)] == self.shape


@dataclass(frozen=True)
class Scene:
    """One or two objects over a ground in a light. The first one is in front."""

    things: tuple[Thing, ...]
    ground: str = ""
    light: str = ""

    @property
    def possible(self) -> bool:
        """True if two objects differ in color and move along one axis in rows or columns apart."""
        colors = {thing.color for thing in self.things}
        across = {DIRECTIONS[thing.direction].index(0) for thing in self.things}
        rows = {PLACES[thing.place][axis] for thing in self.things for axis in across}
        return len(colors) == len(rows) == len(self.things) and len(across) == 1

    @property
    def caption(self) -> str:
        """The one caption of this scene."""
        ground = f"over {self.ground}" if self.ground else ""
        things = " and ".join(thing.caption for thing in self.things)
        return " ".join(part for part in (things, ground, self.light) if part)

    @property
    def held_out(self) -> bool:
        """True if an object is held out of training."""
        return any(thing.held_out for thing in self.things)


@dataclass(frozen=True)
class Clip:
    """A scene from frame 0 on, and the one that takes its place with frame ``at``, if any.

    The later scene differs in colors and directions alone. Objects go on from where they are.
    """

    scene: Scene
    later: Scene | None = None
    at: int = 0

    def shown(self, frame: int) -> Scene:
        """The scene of a frame."""
        return self.later if self.later is not None and frame >= self.at else self.scene


def draw_scene(choose: random.Random, held_out: bool | None = None) -> Scene:
    """A random scene of one or two objects; ``held_out``, if given, says if it is."""
    count = choose.choice((1, 2))
    while True:
        drawn = [[choose.choice([*table]) for table in WORDS] for _ in range(count)]
        things = tuple(Thing(*words) for words in drawn)
        scene = Scene(things, choose.choice([*GROUNDS]), choose.choice([*LIGHTS]))
        if scene.possible and held_out in (None, scene.held_out):
            return scene


def draw_clip(choose: random.Random, held_out: bool | None = None, at: int | None = None) -> Clip:
    """A random clip, with a prompt switch at frame ``at`` if it is given.

    The later scene has another color or direction of one object. With ``held_out`` True, the last
    scene is held out; with False, no scene is; with None, any may be.
    """
    if at is None:
        return Clip(draw_scene(choose, held_out))
    while True:
        scene = draw_scene(choose, None if held_out else held_out)
        for _ in range(200):  # Not every scene has a later one that is held out.
            things, index = [*scene.things], choose.randrange(len(scene.things))
            field, table = choose.choice([("color", [*COLORS]), ("direction", [*DIRECTIONS])])
            things[index] = replace(things[index], **{field: choose.choice(table)})
            later = replace(scene, things=tuple(things))
            if later.possible and later != scene and held_out in (None, later.held_out):
                return Clip(scene, later, at)


def first_frame(block: int) -> int:
    """The first video frame of a block."""
    return max(0, BLOCK * block - 3)


def apart(first: Tensor, second: Tensor) -> Tensor:
    """The shortest way from the second place to the first, on a torus."""
    return (first - second + 0.5).remainder(1) - 0.5


def positions(clips: Sequence[Clip], index: int, frames: Tensor) -> Tensor:
    """Centers (x, y) of an object of each clip, float64 ``[N, T, 2]``; frames as for ``render``."""
    before = [clip.scene.things[index] for clip in clips]
    after = [clip.shown(clip.at).things[index] for clip in clips]
    start = torch.tensor([PLACES[thing.place] for thing in before]).double()[:, None] / 3 + 1 / 6
    at = torch.tensor([clip.at for clip in clips])[:, None]
    early, late = frames.minimum(at)[..., None], (frames - at).clamp_min(0)[..., None]
    return (start + velocities(before) * early + velocities(after) * late).remainder(1)


def velocities(things: Sequence[Thing]) -> Tensor:
    """Steps (x, y) from frame to frame, float64 ``[N, 1, 2]``."""
    toward = torch.tensor([DIRECTIONS[thing.direction] for thing in things]).double()
    periods = torch.tensor([BLOCK * PERIODS[thing.speed] for thing in things])
    return (toward / periods[:, None])[:, None]


def vocabulary() -> list[str]:
    """Every token, in the order of the ids."""
    tables = (*WORDS, GROUNDS, LIGHTS, ["a and from moving over"])
    words = {word for table in tables for entry in table for word in entry.split()}
    return ["<pad>", "</s>", UNKNOWN, *sorted(words)]


def tokenizer() -> Tokenizer:
    """Returns the tokenizer, as vidc's runtime reads it: one token a word, and the text's end."""
    ids = {word: index for index, word in enumerate(vocabulary())}
    made = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", END_ID)]
    )
    return made


def tokenize(captions: Sequence[str]) -> Tensor:
    """Captions to tokens, int64 ``[len(captions), LENGTH]``."""
    made = tokenizer()
    made.enable_padding(length=LENGTH, pad_id=PAD_ID, pad_token="<pad>")
    return torch.tensor([encoded.ids for encoded in made.encode_batch(list(captions))])
