"""The options that say where weights come from."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from vidc.compiler.graph import Sources
from vidc.plugins.errors import UsageError

_PATH = click.Path(path_type=Path)


def sources_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``--checkpoint``, ``--vae``, ``--lora`` and ``--random-weights``."""
    for option in (
        click.option(
            "--random-weights",
            type=click.IntRange(0, 2**31 - 1),
            metavar="SEED",
            help="Draw the weights instead of loading them.",
        ),
        click.option("--lora", type=_PATH, help="A LoRA to merge into the transformer."),
        click.option("--vae", type=_PATH, help="The VAE's checkpoint."),
        click.option(
            "--checkpoint",
            type=_PATH,
            help="The transformer's checkpoint, or a diffusers folder with transformer/ and vae/.",
        ),
    ):
        command = option(command)
    return command


def sources_of(
    checkpoint: Path | None, random_weights: int | None, lora: Path | None, vae: Path | None
) -> Sources:
    """The sources that these options name.

    Raises:
        UsageError: ``VIDC-BUILD-SOURCES``, they leave a part without weights or contradict.
    """
    if random_weights is not None:
        if checkpoint or lora or vae:
            raise UsageError(
                "VIDC-BUILD-SOURCES",
                "--random-weights is given together with a checkpoint",
                "give either --random-weights SEED or --checkpoint FILE --vae FILE",
            )
        return Sources({}, seed=random_weights)
    if checkpoint is None:
        raise UsageError(
            "VIDC-BUILD-SOURCES",
            "nothing says where the weights come from",
            "give --checkpoint FILE --vae FILE, or --random-weights SEED to try the build",
        )
    if (checkpoint / "transformer").is_dir():
        vae = vae or checkpoint / "vae"
        checkpoint = checkpoint / "transformer"
    if vae is None:
        raise UsageError(
            "VIDC-BUILD-SOURCES",
            f"{checkpoint} is a transformer alone, and no VAE is given",
            "add --vae FILE (Wan2.1_VAE.pth, or the vae folder of a diffusers pipeline)",
        )
    return Sources({"transformer": checkpoint, "vae": vae}, lora=lora)
