"""Options of `vidc run` for bundles that animate an image."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vidc.plugins.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from vidc.runtime.programs.base import Session
    from vidc.runtime.programs.spec import ProgramSpec

_PATH = click.Path(path_type=Path)


@dataclass(frozen=True)
class ImageOptions:
    """An image on the command line, and how it moves; None where an option is not given.

    Attributes:
        image: picture's file.
        image_embeds: file of its CLIP embedding.
        motion: motion bucket.
        noise_aug: standard deviation of the noise that the encoded image gets.
    """

    image: Path | None
    image_embeds: Path | None
    motion: float | None
    noise_aug: float | None

    def read(
        self, bundle: Path, spec: "ProgramSpec", embeds: "Callable[[Path], Tensor]"
    ) -> "dict[str, Any]":
        """Returns arguments of ``Session.condition``; empty for a bundle that takes no image.

        Args:
            bundle: for messages.
            spec: of the bundle.
            embeds: reads a file of embeddings.

        Raises:
            UsageError: ``VIDC-CLIP-UNUSED``, ``VIDC-CLIP-NO-IMAGE``, ``VIDC-CLIP-FILE``,
                ``VIDC-CLIP-IMAGE``.
        """
        given = {name: value for name, value in vars(self).items() if value is not None}
        if not animates(spec):
            if given:
                raise UsageError(
                    "VIDC-CLIP-UNUSED",
                    f"{bundle} animates no image, and --{next(iter(given)).replace('_', '-')} is "
                    "given",
                    "leave it out",
                )
            return {}
        if self.image is None:
            raise UsageError(
                "VIDC-CLIP-NO-IMAGE", f"{bundle} animates an image", "give --image FILE"
            )
        found: dict[str, Any] = {"image": _picture(self.image, spec.frame_size)}
        if self.image_embeds is not None:
            found["embeds"] = embeds(self.image_embeds)
        return found | {name: given[name] for name in ("motion", "noise_aug") if name in given}


def animates(spec: "ProgramSpec") -> bool:
    """Returns True if a bundle's sessions start from an image."""
    return "image" in spec.condition_shapes


def image_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that ``ImageOptions`` holds, passed on together as ``images``."""

    @click.option(
        "--image", type=_PATH, help="Picture to animate, in RGB and of the bundle's size."
    )
    @click.option(
        "--image-embeds", type=_PATH,
        help="CLIP embedding of the picture (.safetensors), for a bundle without image encoder.",
    )  # fmt: skip
    @click.option("--motion", type=float, help="Motion bucket of the clip.  [default: 127]")
    @click.option("--noise-aug", type=float, help="Noise on the encoded picture.  [default: 0.02]")
    @functools.wraps(command)
    def with_images(
        image: Path | None,
        image_embeds: Path | None,
        motion: float | None,
        noise_aug: float | None,
        **others: Any,
    ) -> Any:
        return command(images=ImageOptions(image, image_embeds, motion, noise_aug), **others)

    return with_images


def clips(
    session: "Session[Any]", count: int, step: Callable[[], object]
) -> "Iterator[Callable[[], Tensor]]":
    """Yields the frames of each clip, as ``Session.fetch`` returns them.

    Args:
        session: conditioned on an image.
        count: number of clips.
        step: called after each denoising step.
    """
    for _ in range(count):
        latent = session.generate(progress=lambda *_: step())  # type: ignore[call-arg]
        yield session.fetch(session.decode(latent))


def _picture(path: Path, size: tuple[int, int]) -> "Tensor":
    from PIL import Image, UnidentifiedImageError

    from vidc.runtime.programs.image import image_tensor

    try:
        with Image.open(path) as opened:
            opened.load()
            tensor: Tensor = image_tensor(opened, size)
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise UsageError(
            "VIDC-CLIP-FILE", f"{path} cannot be read as an image: {error}", "give a .png or .jpg"
        ) from error
    return tensor
