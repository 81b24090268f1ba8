"""`vidc build`: from a checkpoint to a validated bundle."""

import os
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vidc.compiler.cli import names
from vidc.compiler.cli.output import json_option, print_json, print_text
from vidc.compiler.cli.plan import print_plan
from vidc.compiler.cli.progress import stage_progress
from vidc.compiler.cli.settings import Flags, settings_options
from vidc.compiler.cli.sources import Given, sources_options
from vidc.compiler.config.environment import cache_root
from vidc.compiler.config.presets import preset_names
from vidc.compiler.config.resolve import Settings
from vidc.exporters.components import weights_groups
from vidc.plugins.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    from vidc.compiler.build.build import Build, Built
    from vidc.compiler.build.sources import Sources


@click.command()
@settings_options
@sources_options
@click.option(
    "--recipe",
    metavar="R",
    shell_complete=names.RECIPE,
    help="What --precision fp8 or int8 quantizes: a name or a TOML file.  [default: the preset's, "
    "or the target's]",
)
@click.option(
    "--calibration",
    type=click.Path(path_type=Path),
    help="The folder that vidc calibrate wrote, where the recipe takes ranges from one.  [default: "
    "ranges of the preset's prompts, recorded here]",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="The bundle's folder.  [default: out/PRESET-GPU-PRECISION]",
)
@click.option("--plan", "plan_only", is_flag=True, help="Say what would be done, and why.")
@json_option
def command(
    flags: Flags,
    given: Given,
    recipe: str | None,
    calibration: Path | None,
    output: Path | None,
    plan_only: bool,
    as_json: bool,
) -> None:
    """Build a validated bundle from a checkpoint.

    PRESET is a name or a path to a TOML file; longlive-1.3b by default.

    On a machine that lacks the GPU, all that can be done is left in a folder beside the bundle's,
    OUTPUT.portable, and the exit status is 3. There, PRESET is that folder: `vidc build FOLDER`
    takes everything from it.
    """
    if flags.preset is not None and _is_folder(Path(flags.preset)):
        _refuse_others(flags, given, recipe, calibration)
        _finish(Path(flags.preset), output, plan_only, as_json)
        return
    settings = flags.resolve(recipe=recipe)
    model, sources = given.resolve(settings.model)
    settings = replace(settings, model=model)
    sources = _with_calibration(settings, sources, calibration, flags, given)

    from vidc.compiler.build.build import lacking, whole

    reason = lacking(settings)
    if reason is not None:
        _begin(settings, sources, output, reason, plan_only, as_json)
        return
    _build(whole(settings, sources), output, plan_only, as_json)


def _begin(
    settings: Settings,
    sources: "Sources",
    output: Path | None,
    reason: str,
    plan_only: bool,
    as_json: bool,
) -> None:
    """Does what any machine can do, and says who does the rest."""
    from vidc.compiler.build.build import begun

    bundle = output or _default(settings)
    bundle = bundle if bundle.name else bundle.absolute()
    folder = bundle.with_name(f"{bundle.name}.portable")
    rest = shlex.join(["vidc", "build", str(folder), *(["-o", str(output)] if output else [])])
    why = f"this machine cannot finish a build for {settings.target.name}: {reason}"
    where = {"portable": str(folder), "command": rest, "reason": reason}
    build, cache = begun(settings, sources), cache_root(os.environ)
    if plan_only:
        click.echo(f"{why}; a build would leave {folder}", err=True)
        print_plan(settings, build.plan(folder, cache), as_json, where)
        return
    with stage_progress(build.count) as progress:
        built = build.run(folder, cache, progress)
    _print_built(built, folder, where, as_json)
    raise UnavailableError(
        "VIDC-BUILD-PORTABLE",
        f"{why}; what it can do of the build is done, and lies in {folder}",
        f"copy that folder to a machine that has the GPU, and there: {rest}",
    )


def _finish(folder: Path, output: Path | None, plan_only: bool, as_json: bool) -> None:
    """Builds the bundle that another machine began."""
    from vidc.compiler.build.build import lacking, rest
    from vidc.compiler.build.handed_over import open_portable

    build = rest(open_portable(folder))
    settings = build.settings
    reason = lacking(settings)
    if reason is not None and not plan_only:
        raise UnavailableError(
            "VIDC-PORTABLE-MACHINE",
            f"this machine cannot finish {folder}, which is for {settings.target.name}: {reason}",
            "finish it on a machine with that GPU; vidc doctor says what is missing here",
        )
    _build(build, output, plan_only, as_json)


def _build(build: "Build", output: Path | None, plan_only: bool, as_json: bool) -> None:
    """Publishes a bundle, or says what would be done."""
    settings, cache = build.settings, cache_root(os.environ)
    output = output or _default(settings)
    if plan_only:
        print_plan(settings, build.plan(output, cache), as_json, {})
        return
    _announce(settings)
    with stage_progress(build.count) as progress:
        built = build.run(output, cache, progress)
    _print_built(built, built.output, {"bundle": str(built.output)}, as_json)


def _is_folder(path: Path) -> bool:
    """Whether PRESET is a portable build folder, or a folder that was taken for one."""
    from vidc.compiler.build.handed_over import is_portable

    return path.is_dir() and (is_portable(path) or str(path) not in preset_names())


def _with_calibration(
    settings: Settings, sources: "Sources", folder: Path | None, flags: Flags, given: Given
) -> "Sources":
    """The sources with a calibration that fits the model, and says what is quantized by it.

    Without a folder the build records the ranges itself, on the preset's prompts.

    Raises:
        UsageError: ``VIDC-CALIBRATION-NEEDED``, there is no text encoder to record with: with the
            command that makes one; ``VIDC-CALIBRATION-UNUSED``; what ``read_calibration`` raises.
        GateError: ``VIDC-CALIBRATION-ZERO``.
        UnavailableError: ``VIDC-RECIPE-LOWERING``.
    """
    quantized = settings.quantization
    if quantized is None or not quantized.calibrated:
        if folder is not None:
            what = settings.named_precision("transformer")
            recipe = "" if quantized is None else f" by recipe {quantized.recipe.name}"
            raise UsageError(
                "VIDC-CALIBRATION-UNUSED",
                f"--calibration {folder} is given, and a transformer in {what}{recipe} takes no "
                "ranges from one",
                "leave --calibration out, or pass --precision or --recipe with one that does",
            )
        if quantized is not None:
            _tell_recipe(settings)
        return sources

    from vidc.compiler.backends import backend
    from vidc.compiler.quantize.artifact import read_calibration
    from vidc.compiler.quantize.heads import require_heads
    from vidc.compiler.quantize.lowering import lowered_formats

    form = backend(settings.backend).form(settings.target)
    formats = lowered_formats(quantized.recipe, settings.model, form)
    _tell_recipe(settings)
    if folder is None:
        _tell_calibration(settings, flags, given)
        return sources
    # Whose weights it is of is known when they are loaded; all else before minutes of exports.
    read = read_calibration(folder, settings.model)
    read.require_fits(settings.model, read.document.weights)
    require_heads(formats.attention, read)
    return replace(sources, calibration=folder)


def _tell_calibration(settings: Settings, flags: Flags, given: Given) -> None:
    """Says that the build records ranges itself, and how long that takes where it is minutes.

    Raises:
        UsageError: ``VIDC-CALIBRATION-NEEDED``; what ``build_prompts`` raises.
    """
    from vidc.compiler.build.stages import build_prompts, recording_device
    from vidc.compiler.cli.calibrate import tell_rollouts

    quantized = settings.quantization
    assert quantized is not None
    if settings.model.text_encoder is None:
        raise UsageError(
            "VIDC-CALIBRATION-NEEDED",
            f"recipe {quantized.recipe.name} takes ranges from a calibration: none is given, and "
            "without a text encoder there are no prompts to record one on",
            f"add --text-encoder FOLDER; or {_calibrate_command(settings, flags, given)}, then "
            f"build with --calibration out/{settings.preset}-calibration",
        )
    prompts = len(build_prompts(settings))
    click.echo(
        f"no --calibration is given: ranges come from rollouts of {prompts} prompts", err=True
    )
    if recording_device(settings) == "cpu":
        tell_rollouts(settings, prompts, "calibrate.prompts of a preset or --config says which")


def _tell_recipe(settings: Settings) -> None:
    """Says which recipe was chosen, and why; of one that was named, what the target's notes are."""
    quantized = settings.quantization
    assert quantized is not None
    origin = settings.origins["quantization.recipe"]
    why, notes = f"as {origin} says", settings.target.notes
    if origin == f"target {settings.target.name}":
        notes = ()
        from vidc.compiler.config.quantization import default_reason

        reason = default_reason(quantized.precision, settings.target)
        why = f"the default of {settings.target.name}: {reason}"
    click.echo(
        f"{quantized.precision}: recipe {quantized.recipe.name}, {why} "
        f"({quantized.recipe.description}); the rest stays in "
        f"{settings.precision['transformer']}",
        err=True,
    )
    for note in notes:
        click.echo(f"{settings.target.name}: {note}", err=True)


def _calibrate_command(settings: Settings, flags: Flags, given: Given) -> str:
    """The ``vidc calibrate`` that makes what a build with these flags needs."""
    weights = {
        "--checkpoint": given.checkpoint,
        "--text-encoder": given.text_encoder,
        "--lora": given.lora,
        "--random-weights": given.random_weights,
        "--config": flags.config,
    }
    words = ["vidc", "calibrate", flags.preset or settings.preset]
    for flag, value in weights.items():
        words += [] if value is None else [flag, str(value)]
    for assignment in flags.assignments:
        if not assignment.startswith("precision."):
            words += ["--set", assignment]
    if settings.origins["quantization.precision"] != "--precision":
        # Ranges are taken in high precision, whatever a preset says.
        words += ["--precision", settings.precision["transformer"]]
    return shlex.join(words)


def _refuse_others(
    flags: Flags, given: Given, recipe: str | None, calibration: Path | None
) -> None:
    """Refuses what would say again, or otherwise, what a portable build folder says."""
    others = (*vars(replace(flags, preset=None)).values(), recipe, calibration)
    if given.any or any(others):
        raise UsageError(
            "VIDC-PORTABLE-FLAG",
            f"{flags.preset} is a portable build folder, and other flags say what to build",
            "give no more than -o, --plan and --json, or name a preset to begin another build",
        )


def _default(settings: Settings) -> Path:
    groups = weights_groups(settings.model)
    precision = "-".join(sorted({settings.named_precision(group) for group in groups}))
    return Path("out") / f"{settings.preset}-{settings.target.name}-{precision}"


def _print_built(built: "Built", folder: Path, where: Mapping[str, str], as_json: bool) -> None:
    """Prints the folder, or what JSON says of it with the stages."""
    if as_json:
        stages = [vars(stage) for stage in built.stages]
        print_json({**where, "hit": built.stages[-1].hit, "stages": stages})
    else:
        print_text(str(folder))


def _announce(settings: Settings) -> None:
    from vidc.compiler.validate.estimate import announcement

    if (text := announcement(settings)) is not None:
        click.echo(text, err=True)
