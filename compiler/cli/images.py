"""Options of `vidc run` for bundles that animate an image."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vidc.compiler.cli.prompts import read_embeds
from vidc.plugins.errors import UsageError
from vidc.plugins.untrusted_files import require_regular

if TYPE_CHECKING:
    from torch import Tensor

    from vidc.runtime.programs.base import Session
    from vidc.runtime.programs.spec import ProgramSpec


@dataclass(frozen=True)
class ImageInputs:
    """Arguments for the session's ``condition``; empty for a bundle that takes no image."""

    given: dict[str, Any] = field(default_factory=dict)

    def begin(self, session: Any) -> None:
        """Conditions the session on the image."""
        if self.given:
            session.condition(**self.given)

    def before(self, session: Any, block: int) -> None:
        """Does nothing: every clip starts from the image."""


@dataclass(frozen=True)
class ImageOptions:
    """Image options on the command line; None where an option is not given.

    Attributes:
        image: file of the picture.
        image_embeds: file of its CLIP embedding.
        motion: Stable Video Diffusion's motion bucket, larger for more motion.
        noise_aug: standard deviation of the noise that the encoded image gets.
    """

    image: Path | None
    image_embeds: Path | None
    motion: float | None
    noise_aug: float | None

    def read(self, bundle: Path, spec: "ProgramSpec", fps: int) -> ImageInputs:
        """Reads the files.

        Raises:
            UsageError: ``VIDC-CLIP-UNUSED``, ``VIDC-CLIP-NO-IMAGE``, ``VIDC-CLIP-FILE``,
                ``VIDC-CLIP-IMAGE``, ``VIDC-PROMPT-FILE``.
        """
        given = {name: value for name, value in vars(self).items() if value is not None}
        if "image" not in spec.condition_shapes:
            if given:
                option = next(iter(given)).replace("_", "-")
                raise UsageError(
                    "VIDC-CLIP-UNUSED",
                    f"{bundle} animates no image, and --{option} is given",
                    "leave it out",
                )
            return ImageInputs()
        if self.image is None:
            raise UsageError(
                "VIDC-CLIP-NO-IMAGE", f"{bundle} animates an image", "give --image FILE"
            )
        found: dict[str, Any] = {"image": _picture(self.image, spec.frame_size), "fps": fps}
        if self.image_embeds is not None:
            found["embeds"] = read_embeds(self.image_embeds, spec)
        numbers = {name: given[name] for name in ("motion", "noise_aug") if name in given}
        return ImageInputs(found | numbers)


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
        require_regular(path)
        with Image.open(path) as opened:
            opened.load()
            tensor: Tensor = image_tensor(opened, size)
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise UsageError(
            "VIDC-CLIP-FILE", f"{path} cannot be read as an image: {error}", "give a .png or .jpg"
        ) from error
    return tensor
