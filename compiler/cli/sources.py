"""Options that name the sources of weights."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import click

from vidc.compiler.build.sources import Sources
from vidc.compiler.cli.group import PATH
from vidc.exporters.families.family import Family
from vidc.exporters.families.flags import CHECKPOINT, PART_FLAGS, flag_of, title_of
from vidc.plugins.errors import UsageError

ModelT = TypeVar("ModelT", bound=Family)
_HUB = "hf:"
"""Prefix of references to files of the Hugging Face Hub."""
_DEMO = Path("demo")
"""Name for the demo's weights, which come with the package ``vidc-demo`` or a checkout."""


@dataclass(frozen=True)
class SourceOptions:
    """Sources of weights on the command line.

    Attributes:
        checkpoint: checkpoint of the main network, which is the quantized group, or a folder with a
            checkpoint for each part.
        parts: checkpoints of single parts by weights group.
        loras: LoRA files to merge into the main network.
        random_weights: seed of random weights in place of checkpoints.
    """

    checkpoint: Path | None = None
    parts: Mapping[str, Path] = field(default_factory=dict)
    loras: tuple[Path, ...] = ()
    random_weights: int | None = None

    @property
    def any(self) -> bool:
        """True if any source is given."""
        return self.random_weights is not None or bool(self.checkpoint or self.parts or self.loras)

    def resolve(self, model: ModelT, *, decoded: bool = True) -> tuple[ModelT, Sources]:
        """Returns the model with the sizes read from the sources, and the sources.

        Args:
            model: model that the weights are for.
            decoded: True if weights of the decoder, which makes frames, are required.

        Raises:
            UsageError: ``VIDC-BUILD-SOURCES``, a part has no source or options contradict each
                other; ``VIDC-CHECKPOINT-MISSING``.
            VidcError: as ``Family.with_texts`` and ``fetch``.
        """
        if (located := self._located()) is not self:
            return located.resolve(model, decoded=decoded)
        for unknown in self.parts.keys() - {*model.parts, model.text_group}:
            raise _no_part(model, unknown)
        sources, group = self._sources(model, decoded), model.text_group
        self._check_configs(model, sources)
        if group is None:
            return model, sources
        folder = self.parts.get(group)
        if self.checkpoint is not None and folder is None and (self.checkpoint / group).is_dir():
            folder = self.checkpoint / group
        if folder is None:
            return model, sources
        model, found = model.with_texts(folder)
        checkpoints = {**sources.checkpoints, group: found.checkpoint}
        return model, replace(sources, checkpoints=checkpoints, tokenizer=found.tokenizer)

    def _located(self) -> "SourceOptions":
        """Returns the options with ``hf:`` references and ``demo`` replaced by local paths.

        Returns self if there are none.
        """
        given = (self.checkpoint, *self.parts.values(), *self.loras)
        named = self.checkpoint == _DEMO and not _DEMO.exists()
        if not named and not any(str(path).startswith(_HUB) for path in given):
            return self
        return replace(
            self,
            checkpoint=None if self.checkpoint is None else _local_or_demo(self.checkpoint),
            parts={group: _local(path) for group, path in self.parts.items()},
            loras=tuple(_local(path) for path in self.loras),
        )

    def _check_configs(self, model: Family, sources: Sources) -> None:
        """Refuses checkpoints whose config files contradict the model."""
        if self.checkpoint is None:
            return
        from vidc.exporters.checkpoint.config_file import require_config, require_pipeline

        if (self.checkpoint / model.quantized_group).is_dir():
            require_pipeline(self.checkpoint, model.pipeline_settings)
        for group, path in sources.checkpoints.items():
            require_config(path, model.parts[group].config_settings)

    def _sources(self, model: Family, decoded: bool) -> Sources:
        """Returns the sources of every part but a text encoder."""
        main, decoder = model.quantized_group, model.decoder_group
        checkpoint, files = self.checkpoint, f"{CHECKPOINT} FILE"
        if flag_of(decoder) != CHECKPOINT:
            files += f" {flag_of(decoder)} FILE"
        parts = {group: path for group, path in self.parts.items() if group != model.text_group}
        for path in (checkpoint, *parts.values(), *self.loras):
            if path is not None and not path.exists():
                raise UsageError(
                    "VIDC-CHECKPOINT-MISSING", f"{path} does not exist", "check the path"
                )
        if self.random_weights is not None:
            if checkpoint or self.loras or parts:
                raise UsageError(
                    "VIDC-BUILD-SOURCES",
                    "--random-weights is given together with a checkpoint",
                    f"give either --random-weights SEED or {files}",
                )
            return Sources({}, seed=self.random_weights)
        if checkpoint is None:
            raise UsageError(
                "VIDC-BUILD-SOURCES",
                "no source of weights is given",
                f"give {files}, or --random-weights SEED to try the build",
            )
        if (checkpoint / (decoder if main in parts else main)).is_dir():
            parts = {g: checkpoint / g for g in model.parts if g != model.text_group} | parts
            _require_folders(checkpoint, model, parts)
            checkpoint = checkpoint / main
        elif model.single_file and checkpoint.is_file() and decoder not in parts:
            parts = {g: checkpoint for g in model.parts if g != model.text_group} | parts
        for each in model.decoder_groups if decoded else ():
            if each not in (*parts, main):
                raise _no_decoder(checkpoint, main, each)
        return Sources({main: checkpoint, **parts}, loras=self.loras)


def _local(path: Path) -> Path:
    """Returns the path; downloads a reference such as ``hf:ORG/NAME:FILE`` and returns its path."""
    if not str(path).startswith(_HUB):
        return path
    from vidc.compiler.store.hub import Reference, fetch

    reference = Reference.parse(str(path))
    click.echo(f"fetching {reference}", err=True)
    return fetch(reference)


def _local_or_demo(path: Path) -> Path:
    """Returns the folder of the demo's weights for ``demo``; any other path is as for ``_local``.

    A file or folder ``demo`` in the working directory precedes them.

    Raises:
        UsageError: ``VIDC-CHECKPOINT-MISSING``, the weights are not installed.
    """
    if path != _DEMO or path.exists():
        return _local(path)
    folder = Path(str(files("vidc.configs").joinpath("demo")))
    if not folder.is_dir():
        raise UsageError(
            "VIDC-CHECKPOINT-MISSING",
            f"the demo's weights are not installed: there is no {folder}",
            "install the wheel of vidc-demo, which `make wheels` builds in a checkout",
        )
    return folder


def _require_folders(pipeline: Path, model: Family, parts: Mapping[str, Path]) -> None:
    """Refuses a pipeline's folder without an optional part that the preset has.

    The message says which flags build without that part.

    Raises:
        UsageError: ``VIDC-CHECKPOINT-MISSING``.
    """
    for group, flags in model.optional.items():
        if group in parts and not parts[group].exists():
            raise UsageError(
                "VIDC-CHECKPOINT-MISSING",
                f"{pipeline} holds no {group}/, and the preset has an {title_of(group)}",
                f"fetch that folder too, or build without: {flags}",
            )


def _no_part(model: Family, group: str) -> UsageError:
    """Returns the error for a checkpoint of a part that the model does not have."""
    flag, title = flag_of(group), title_of(group)
    setting = PART_FLAGS[group].setting if group in model.groups else ""
    owner = "the model's settings choose" if setting else f"models of family {model.name} have"
    return UsageError(
        "VIDC-BUILD-SOURCES",
        f"{flag} is given, and {owner} no {title}",
        f"leave {flag} out" + (f", or pass {setting}" if setting else ""),
    )


def _no_decoder(checkpoint: Path, main: str, decoder: str) -> UsageError:
    flag = PART_FLAGS.get(decoder)
    folder = f"give a folder with {main}/ and {decoder}/"
    return UsageError(
        "VIDC-BUILD-SOURCES",
        f"{checkpoint} is a {main} alone, and no {title_of(decoder)} is given",
        folder if flag is None else f"add {flag_of(decoder)} {flag.value}",
    )


def sources_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of ``SourceOptions``, passed on together as ``weights``."""

    @click.option(
        CHECKPOINT,
        type=PATH,
        help="Checkpoint of the main network, or a diffusers folder with one for each part. This "
        "and the other checkpoints may be of the Hugging Face Hub: hf:ORG/NAME[@REVISION][:FILE]. "
        "`demo` names the demo's own weights.",
    )
    @_part_options
    @click.option(
        "--lora",
        "loras",
        type=PATH,
        multiple=True,
        help="LoRA to merge into the main network. Can be given several times.",
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
        loras: tuple[Path, ...],
        random_weights: int | None,
        **others: Any,
    ) -> Any:
        given = {group: others.pop(group) for group in PART_FLAGS}
        parts = {group: path for group, path in given.items() if path is not None}
        weights = SourceOptions(checkpoint, parts, loras, random_weights)
        return command(weights=weights, **others)

    return with_sources


def _part_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the flag of each part that has one, in their order."""
    for group, flag in reversed(PART_FLAGS.items()):
        command = click.option(flag_of(group), type=PATH, help=flag.help)(command)
    return command
