"""Command-line flags that name the checkpoint of one part of a shipped family.

They stand in a table of their own so that ``--help`` and completion import no family. Any other
part is read from the folder of ``--checkpoint`` that has the name of its weights group.
"""

from dataclasses import dataclass

CHECKPOINT = "--checkpoint"


@dataclass(frozen=True)
class PartFlag:
    """Flag for one weights group.

    Attributes:
        title: the part, as messages name it.
        help: for ``--help``.
        value: placeholder of its value, for hints.
        setting: setting that adds the part to a model that lacks it; empty if there is none.
    """

    title: str
    help: str
    value: str
    setting: str = ""


PART_FLAGS = {
    "unet": PartFlag(
        "UNet",
        "Checkpoint of the UNet, for models that have one: in place of the one in the folder of "
        "--checkpoint.",
        "FILE (AnimateLCM-SVD-xt.safetensors)",
    ),
    "vae": PartFlag(
        "VAE",
        "Checkpoint of the VAE.",
        "FILE (Wan2.1_VAE.pth, or the vae folder of a diffusers pipeline)",
        "--set vae.kind=wan, or both",
    ),
    "taehv": PartFlag(
        "TAEHV",
        "Checkpoint of a TAEHV, a tiny video decoder, for models with vae.kind taehv or both.",
        "FILE (taew2_1.pth, or lighttaew2_1.safetensors)",
        "--set vae.kind=taehv, or both",
    ),
    "text_encoder": PartFlag(
        "text encoder",
        "UMT5 encoder with its tokenizer, for text prompts: a folder of diffusers or "
        "transformers, or of Wan's original download.",
        "FOLDER",
    ),
}
"""Flags by weights group; a flag is spelled as its group."""


def flag_of(group: str) -> str:
    """Returns the flag that names a group's checkpoint."""
    return "--" + group.replace("_", "-") if group in PART_FLAGS else CHECKPOINT


def title_of(group: str) -> str:
    """Returns the name of a group's part in messages."""
    return PART_FLAGS[group].title if group in PART_FLAGS else group.replace("_", " ")
