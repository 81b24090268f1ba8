"""A clip before it has pixels: a seed, and the scenes it shows one after the other."""

from dataclasses import dataclass

from demo_model.attributes import Scene

LATENT_STRIDE = 4
"""Frames of a latent frame, after the first, which is one frame."""

TRANSITION_FRAMES = 8
"""What a switch changes has changed after so many frames: less than a block of 12."""


@dataclass(frozen=True)
class Clip:
    """Everything that decides a clip's pixels, but for its length and size.

    Args:
        seed: of textures, phases and where objects start.
        scenes: with the frame that each starts at, the first at 0.

    Raises:
        ValueError: frames not in order, or scenes that differ in more than color, shape and
            direction of their objects.
    """

    seed: int
    scenes: tuple[tuple[int, Scene], ...]

    def __post_init__(self) -> None:
        starts = [start for start, _ in self.scenes]
        if not starts or starts[0] != 0 or starts != sorted(set(starts)):
            raise ValueError(f"scenes start at 0 and then later and later, not at {starts}")
        if len({_kept(scene) for _, scene in self.scenes}) > 1:
            raise ValueError("a switch changes colors, shapes and directions alone")

    @classmethod
    def of(cls, scene: Scene, seed: int) -> "Clip":
        """A clip of one scene for ever."""
        return cls(seed, ((0, scene),))


def _kept(scene: Scene) -> tuple[object, ...]:
    """What a switch leaves alone."""
    things = tuple((thing.size, thing.speed, thing.rotation) for thing in scene.things)
    return (scene.background, scene.light, things)


def frames_of(latents: int) -> int:
    """Frames that the VAE makes of so many latent frames, the stream's first among them.

    Raises:
        ValueError: there are none.
    """
    if latents < 1:
        raise ValueError(f"a clip has at least one latent frame, not {latents}")
    return LATENT_STRIDE * (latents - 1) + 1
