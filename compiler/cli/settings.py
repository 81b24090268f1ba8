"""Options that choose what to build, shared by several commands."""

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from vidc.compiler.cli import names
from vidc.compiler.cli.group import PATH, taken
from vidc.compiler.config.resolve import Settings, resolve


@dataclass(frozen=True)
class Flags:
    """Preset and flags as given on the command line."""

    preset: str | None
    gpu: str | None
    precision: str | None
    backend: str | None
    ema: bool | None
    assignments: tuple[str, ...]
    config: Path | None

    def resolve(self, *, engines: bool = True, recipe: str | None = None) -> Settings:
        """Resolves flags, environment and presets to settings.

        Args:
            recipe: ``--recipe``; None if it is not given.
            engines: True if engines are built; False to export graphs, which need no backend.

        Raises:
            VidcError: as ``vidc.compiler.config.resolve.resolve``.
        """
        return resolve(
            self.preset,
            gpu=self.gpu,
            precision=self.precision,
            recipe=recipe,
            backend=self.backend,
            ema=self.ema,
            assignments=self.assignments,
            config=self.config,
            environ=os.environ,
            engines=engines,
        )


def settings_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds PRESET and its flags, passed on together as ``flags``."""

    @click.argument("preset", required=False, shell_complete=names.PRESET)
    @click.option(
        "--gpu", metavar="TARGET", shell_complete=names.GPU,
        help="Target: a GPU such as h100, cpu, or auto for this machine's.  [default: auto]",
    )  # fmt: skip
    @click.option(
        "--precision", metavar="P", shell_complete=names.PRECISION,
        help="fp32, fp16, bf16, fp8 or int8.  [default: the preset's]",
    )  # fmt: skip
    @click.option(
        "--backend", metavar="B", shell_complete=names.BACKEND,
        help="onnxruntime, aoti, tensorrt or torch_tensorrt.  [default: by target]",
    )  # fmt: skip
    @click.option(
        "--ema/--no-ema", default=None,
        help="Take the moving average (EMA) of the weights from the checkpoint, or the trained "
        "weights.  [default: the preset's]",
    )  # fmt: skip
    @click.option(
        "--set", "assignments", multiple=True, metavar="KEY=VALUE",
        help="Change a setting that `vidc presets show` lists, such as stream.window=9.",
    )  # fmt: skip
    @click.option("--config", type=PATH, help="TOML file of settings.")
    @functools.wraps(command)
    def with_flags(**given: Any) -> Any:
        flags = taken(Flags, given)
        return command(flags=flags, **given)

    return with_flags
