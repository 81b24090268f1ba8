"""Sources of a build's weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vidc.exporters.families.flags import flag_of, title_of
from vidc.exporters.part import Part
from vidc.plugins.errors import UsageError


@dataclass(frozen=True)
class Sources:
    """Sources of the weights: files, or a seed in their place.

    Attributes:
        checkpoints: a file or folder for each weights group.
        loras: LoRA files to merge into the quantized group.
        seed: seed of random weights, for groups without a checkpoint.
        tokenizer: tokenizer of the text encoder.
        calibration: folder of a finished calibration; None to record ranges if a recipe needs them.
    """

    checkpoints: Mapping[str, Path]
    loras: tuple[Path, ...] = ()
    seed: int | None = None
    tokenizer: Path | None = None
    calibration: Path | None = None

    def weights(self, part: Part) -> Path | int:
        """Returns a part's checkpoint, or the seed of its random weights.

        Raises:
            UsageError: ``VIDC-BUILD-SOURCES``, there is neither, or no tokenizer for a part that
                needs one.
        """
        found = self.checkpoints.get(part.group, self.seed)
        if found is None or (part.needs_tokenizer and self.tokenizer is None):
            raise UsageError(
                "VIDC-BUILD-SOURCES",
                f"nothing says where the weights of the {title_of(part.group)} come from",
                f"give {flag_of(part.group)}; --random-weights SEED stands for the checkpoints of "
                "all parts but a text encoder",
            )
        return found
