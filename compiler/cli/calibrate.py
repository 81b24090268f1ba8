"""`vidc calibrate`: records activation ranges on rollouts of real prompts."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vidc.compiler.cli.analysis import AnalysisOptions, analysis_options, tell_plan, write_recipe
from vidc.compiler.cli.group import PATH, Command
from vidc.compiler.cli.output import columns, json_option, print_json, print_plan, print_text
from vidc.compiler.cli.progress import stage_progress
from vidc.compiler.cli.settings import Flags, settings_options
from vidc.compiler.cli.sources import SourceOptions, sources_options
from vidc.compiler.config.environment import cache_root
from vidc.compiler.config.schema import CALIBRATION_PROMPTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vidc.compiler.analyze.run import Analysis
    from vidc.compiler.build.calibrate_command import Calibrated
    from vidc.compiler.build.calibration_prompts import Prompts
    from vidc.compiler.config.resolve import Settings
    from vidc.compiler.store.stage import Stage


@click.command(cls=Command)
@settings_options
@sources_options
@click.option(
    "--prompts", type=PATH, metavar="FILE",
    help="Embeddings (.safetensors: [N, L, E] or several [L, E]) or, with a text encoder, texts "
    "(.txt: one a line; .json: a list).  [default: the preset's, or vidc's own]",
)  # fmt: skip
@click.option(
    "-n", "--count", type=click.IntRange(min=1), default=CALIBRATION_PROMPTS, show_default=True,
    help="Number of prompts to use.",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True)
@click.option(
    "-o", "--output", type=PATH,
    help="Folder of the calibration.  [default: out/PRESET-calibration]",
)  # fmt: skip
@analysis_options
@click.option("--plan", "plan_only", is_flag=True, help="Print which stages would run, and why.")
@json_option
def command(
    flags: Flags,
    weights: SourceOptions,
    options: AnalysisOptions,
    prompts: Path | None,
    count: int,
    seed: int,
    output: Path | None,
    plan_only: bool,
    as_json: bool,
) -> None:
    """Record the ranges that quantization needs.

    Runs one rollout for each prompt in PyTorch, with a full cache and a prompt switch. The ranges
    hold for every target and precision. The same command resumes after an interruption.

    With --analyze, layer groups are quantized one at a time and their rollouts are compared with
    high precision: as frames with a VAE, else as latents. Times are predicted from the target's
    peaks. --budget chooses a mix, plays it and writes its recipe.
    """
    options.require_consistent()
    settings = flags.resolve(engines=False)
    model, sources = weights.resolve(settings.model, decoded=False)
    settings = replace(settings, model=model)

    from vidc.compiler.build.calibrate_command import calibrate, calibration_stages

    found = _prompts(settings, prompts, count)
    if prompts is not None and len(found) < count:
        click.echo(
            f"{prompts} holds {len(found)} prompts, and -n is {count}: all are used", err=True
        )
    if found.kind == "synthetic" and not isinstance(sources.weights(model.quantized_part), int):
        click.echo(
            "no prompts are given and there is no text encoder: drawn embeddings stand in, whose "
            "ranges a trained model may never have; --prompts FILE takes real ones",
            err=True,
        )
    if not settings.target.is_gpu:
        tell_rollouts(settings, len(found), "-n takes fewer prompts")
    folder = output or Path("out") / f"{settings.preset}-calibration"
    plan = options.plan(settings, folder) if options.any else None
    few, cache = options.prompts(found), cache_root(os.environ)
    recorded = calibration_stages(settings, sources, found, seed)
    analyzed: list[Stage] = []
    if plan is not None:
        from vidc.compiler.analyze.run import analysis_stages, analyze, decodes

        tell_plan(plan, settings, len(few), decodes(model, sources))
        analyzed = analysis_stages(plan, settings, sources, few, seed, recorded[-1])
    if plan_only:
        _print_plan(settings, analyzed or recorded, cache, as_json)
        return
    analysis = None
    with stage_progress(len(recorded) + len(analyzed)) as progress:
        done = calibrate(settings, sources, found, seed, folder, cache, progress)
        if plan is not None:
            analysis = analyze(plan, settings, analyzed, len(few), cache, progress)
    _print(done, analysis, options, as_json)


def _print_plan(
    settings: "Settings", stages: "Sequence[Stage]", cache: Path, as_json: bool
) -> None:
    from vidc.compiler.build.stages import slot
    from vidc.compiler.store.plan import plan
    from vidc.compiler.store.store import Store

    with Store(cache) as store:
        rows = plan(stages, store, slot(settings))
    print_plan(settings, rows, as_json, {})


def _print(
    done: "Calibrated", analysis: "Analysis | None", options: AnalysisOptions, as_json: bool
) -> None:
    document: dict[str, Any] = {
        "calibration": str(done.output),
        "weights": done.document.weights,
        "prompts": vars(done.document.prompts),
        "groups": [vars(group) for group in done.document.groups],
    }
    lines = [str(done.output)]
    if analysis is not None:
        from vidc.compiler.analyze.report import analysis_json, summary, table

        document["analysis"] = analysis_json(analysis)
        lines.append(columns(table(analysis)))
        if analysis.mix is not None:
            recipe_file = options.recipe_file(done.output)
            write_recipe(analysis, recipe_file)
            document["analysis"]["recipe_file"] = str(recipe_file)
            lines.append(str(recipe_file))
            for line in summary(analysis):
                click.echo(line, err=True)
    if as_json:
        print_json(document)
    else:
        print_text("\n".join(lines))


def tell_rollouts(settings: "Settings", prompts: int, fewer: str) -> None:
    """Prints how long a CPU takes for the rollouts if that is minutes.

    Args:
        settings: settings of the model.
        prompts: number of rollouts.
        fewer: text that says how to run fewer.
    """
    from vidc.compiler.build.calibration_rollouts import scenario
    from vidc.compiler.validate.estimate import about, latents_seconds

    played = scenario(settings.model)
    takes = about(prompts * latents_seconds(settings.model, played))
    if takes:
        click.echo(f"{prompts} rollouts: {takes} on this CPU; {fewer}", err=True)


def _prompts(settings: "Settings", path: Path | None, count: int) -> "Prompts":
    from vidc.compiler.build.calibration_prompts import default_prompts, read_prompts
    from vidc.compiler.config.program import program_spec

    spec, texts = program_spec(settings.model), settings.model.texts
    if path is None:
        return default_prompts(spec, count, texts, settings.calibrate.prompts)
    return read_prompts(path, spec, count, texts)
