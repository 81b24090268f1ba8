"""Sizes of a CLIP image encoder."""

from dataclasses import dataclass

from vidc.exporters.table import Table


@dataclass(frozen=True)
class ClipVisionConfig(Table):
    """Sizes of a vision transformer with a projection; the defaults are those of ViT-H/14.

    Attributes:
        width: channels of a token.
        hidden: channels inside a feed-forward layer.
        layers: transformer layers.
        heads: attention heads.
        patch: side of a patch in pixels.
        image: side of the square that an image is resized to.
        projection: width of the embedding.
    """

    width: int = 1280
    hidden: int = 5120
    layers: int = 32
    heads: int = 16
    patch: int = 14
    image: int = 224
    projection: int = 1024

    def __post_init__(self) -> None:
        self.require_sizes(
            "image_encoder",
            *("width", "hidden", "layers", "heads", "patch", "image", "projection"),
        )
        self.require(
            self.width % self.heads == 0,
            f"image_encoder.width = {self.width} is not a multiple of image_encoder.heads = "
            f"{self.heads}",
            "use a multiple of the heads",
        )
        self.require(
            self.image % self.patch == 0,
            f"image_encoder.image = {self.image} is not a multiple of image_encoder.patch = "
            f"{self.patch}",
            "use a multiple of the patch",
        )

    @property
    def tokens(self) -> int:
        """Tokens of an image: its patches and the class."""
        return (self.image // self.patch) ** 2 + 1
