"""Options that name the sources of weights."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from vidc.compiler.build.sources import Sources
from vidc.exporters.families.family import Family
from vidc.plugins.errors import UsageError

ModelT = TypeVar("ModelT", bound=Family)
_PATH = click.Path(path_type=Path)


@dataclass(frozen=True)
class SourceOptions:
    """Sources of weights on the command line."""

    checkpoint: Path | None
    vae: Path | None
    text_encoder: Path | None
    loras: tuple[Path, ...]
    random_weights: int | None

    @property
    def any(self) -> bool:
        """True if any source is given."""
        return any(value not in (None, ()) for value in vars(self).values())

    def resolve(self, model: ModelT, *, vae: bool = True) -> tuple[ModelT, Sources]:
        """Returns the model with the sizes read from the sources, and the sources.

        Args:
            model: whose weights they are.
            vae: True if a VAE is needed.

        Raises:
            UsageError: ``VIDC-BUILD-SOURCES``, they leave a part without weights or contradict.
            VidcError: as ``Family.with_texts``.
        """
        sources, folder, group = self._sources(model, vae), self.text_encoder, model.text_group
        if self.checkpoint is not None and group is not None:
            inside = self.checkpoint / group
            folder = folder or (inside if inside.is_dir() else None)
        self._check_configs(model, sources)
        if folder is None:
            return model, sources
        model, found = model.with_texts(folder)
        checkpoints = {**sources.checkpoints, str(group): found.checkpoint}
        return model, replace(sources, checkpoints=checkpoints, tokenizer=found.tokenizer)

    def _check_configs(self, model: Family, sources: Sources) -> None:
        """Compares the configs beside the checkpoints with the model."""
        if self.checkpoint is None:
            return
        from vidc.exporters.checkpoint.config_file import require_config, require_pipeline

        if (self.checkpoint / model.quantized_group).is_dir():
            require_pipeline(self.checkpoint, model.pipeline_settings)
        for group, path in sources.checkpoints.items():
            require_config(path, model.parts[group].config_settings)

    def _sources(self, model: Family, needs_vae: bool) -> Sources:
        main, decoder = model.quantized_group, model.decoder_group
        checkpoint, vae = self.checkpoint, self.vae
        for path in (checkpoint, vae, *self.loras):
            if path is not None and not path.exists():
                raise UsageError(
                    "VIDC-CHECKPOINT-MISSING", f"{path} does not exist", "check the path"
                )
        if self.random_weights is not None:
            if checkpoint or self.loras or vae:
                raise UsageError(
                    "VIDC-BUILD-SOURCES",
                    "--random-weights is given together with a checkpoint",
                    "give either --random-weights SEED or --checkpoint FILE --vae FILE",
                )
            return Sources({}, seed=self.random_weights)
        if checkpoint is None:
            raise UsageError(
                "VIDC-BUILD-SOURCES",
                "no source of weights is given",
                "give --checkpoint FILE --vae FILE, or --random-weights SEED to try the build",
            )
        if (checkpoint / main).is_dir():
            vae = vae or checkpoint / decoder
            checkpoint = checkpoint / main
        if vae is None and needs_vae:
            raise UsageError(
                "VIDC-BUILD-SOURCES",
                f"{checkpoint} is a {main} alone, and no {decoder.upper()} is given",
                "add --vae FILE (Wan2.1_VAE.pth, or the vae folder of a diffusers pipeline)",
            )
        frames = {} if vae is None else {decoder: vae}
        return Sources({main: checkpoint, **frames}, loras=self.loras)


def sources_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that ``SourceOptions`` holds, passed on together as ``weights``."""

    @click.option(
        "--checkpoint",
        type=_PATH,
        help="Checkpoint of the transformer, or a diffusers folder with transformer/ and vae/.",
    )
    @click.option("--vae", type=_PATH, help="Checkpoint of the VAE.")
    @click.option(
        "--text-encoder",
        type=_PATH,
        help="UMT5 encoder with its tokenizer, for text prompts: a folder of diffusers or "
        "transformers, or of Wan's original download.",
    )
    @click.option(
        "--lora",
        "loras",
        type=_PATH,
        multiple=True,
        help="LoRA to merge into the transformer. Can be given several times.",
    )
    @click.option(
        "--random-weights",
        type=click.IntRange(0, 2**31 - 1),
        metavar="SEED",
        help="Seed of random weights in place of a checkpoint.",
    )
    @functools.wraps(command)
    def with_sources(
        checkpoint: Path | None,
        vae: Path | None,
        text_encoder: Path | None,
        loras: tuple[Path, ...],
        random_weights: int | None,
        **others: Any,
    ) -> Any:
        weights = SourceOptions(checkpoint, vae, text_encoder, loras, random_weights)
        return command(weights=weights, **others)

    return with_sources
