"""`vidc calibrate`: the ranges that quantisation needs, from the rollouts of real prompts."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vidc.compiler.cli.output import json_option, print_json, print_text
from vidc.compiler.cli.progress import stage_progress
from vidc.compiler.cli.settings import Flags, settings_options
from vidc.compiler.cli.sources import Given, sources_options
from vidc.compiler.settings.environment import cache_root

if TYPE_CHECKING:
    from vidc.compiler.calibrate.prompts import Prompts
    from vidc.compiler.settings.resolve import Settings


@click.command()
@settings_options
@sources_options
@click.option(
    "--prompts", type=click.Path(path_type=Path), metavar="FILE",
    help="Embeddings (.safetensors: [N, L, E] or several [L, E]) or, with a text encoder, texts "
    "(.txt: one a line; .json: a list).  [default: vidc's own]",
)  # fmt: skip
@click.option(
    "-n", "--count", type=click.IntRange(min=1), default=32, show_default=True,
    help="How many of the prompts.",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path),
    help="The calibration's folder.  [default: out/PRESET-calibration]",
)  # fmt: skip
@json_option
def command(
    flags: Flags,
    given: Given,
    prompts: Path | None,
    count: int,
    seed: int,
    output: Path | None,
    as_json: bool,
) -> None:
    """Record the ranges that quantisation needs.

    Runs the sampler in PyTorch, a rollout for each prompt: the cache fills, is full, and the prompt
    is switched. What is recorded holds for every target and precision. After an interruption the
    same command goes on where it was.
    """
    settings = flags.resolve(engines=False)
    model, sources = given.resolve(settings.model, vae=False)
    settings = replace(settings, model=model)

    from vidc.compiler.calibrate.run import calibrate, stage_count

    found = _prompts(settings, prompts, count)
    if found.kind == "synthetic" and not isinstance(sources.weights("transformer"), int):
        click.echo(
            "no prompts are given and there is no text encoder: drawn embeddings stand in, whose "
            "ranges a trained model may never have; --prompts FILE takes real ones",
            err=True,
        )
    _tell(settings, len(found))
    folder = output or Path("out") / f"{settings.preset}-calibration"
    with stage_progress(stage_count(found)) as progress:
        done = calibrate(settings, sources, found, seed, folder, cache_root(os.environ), progress)
    if as_json:
        print_json(
            {
                "calibration": str(done.output),
                "weights": done.document.weights,
                "prompts": vars(done.document.prompts),
                "groups": [vars(group) for group in done.document.groups],
            }
        )
    else:
        print_text(str(done.output))


def _tell(settings: "Settings", prompts: int) -> None:
    """Says how long a CPU takes, where that is minutes."""
    from vidc.compiler.calibrate.rollout import scenario
    from vidc.compiler.estimate import about, latents_seconds
    from vidc.compiler.stream import stream_spec

    played = scenario(stream_spec(settings.model))
    takes = about(prompts * latents_seconds(settings.model, played))
    if takes and not settings.target.is_gpu:
        click.echo(f"{prompts} rollouts: {takes} on this CPU; -n takes fewer prompts", err=True)


def _prompts(settings: "Settings", path: Path | None, count: int) -> "Prompts":
    from vidc.compiler.calibrate.prompts import default_prompts, read_prompts
    from vidc.compiler.stream import stream_spec

    stream, texts = stream_spec(settings.model), settings.model.text_encoder is not None
    if path is None:
        return default_prompts(stream, count, texts)
    return read_prompts(path, stream, count, texts)
