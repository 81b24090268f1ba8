"""Where a build's weights come from."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vidc.plugins.errors import UsageError


@dataclass(frozen=True)
class Sources:
    """Where the weights come from: files, or a seed in their place.

    Attributes:
        checkpoints: a file or folder for each weights group.
        lora: merged into the transformer.
        seed: of random weights, for groups without a checkpoint.
        tokenizer: the text encoder's.
        calibration: the folder of the transformer's ranges.
    """

    checkpoints: Mapping[str, Path]
    lora: Path | None = None
    seed: int | None = None
    tokenizer: Path | None = None
    calibration: Path | None = None

    def weights(self, group: str) -> Path | int:
        """A group's checkpoint, or the seed of its random weights.

        Raises:
            UsageError: ``VIDC-BUILD-SOURCES``, there is neither, or no text encoder's tokenizer.
        """
        found = self.checkpoints.get(group, self.seed)
        if found is None or (group == "text_encoder" and self.tokenizer is None):
            raise UsageError(
                "VIDC-BUILD-SOURCES",
                f"nothing says where the weights of the {group.replace('_', ' ')} come from",
                "give --checkpoint, --vae and, for a model with a text encoder, --text-encoder; "
                "--random-weights SEED stands for the first two",
            )
        return found
