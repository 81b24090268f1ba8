"""`vidc build`: from a checkpoint to a validated bundle."""

import os
import shlex
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vidc.compiler.cli import names
from vidc.compiler.cli.group import PATH, Command
from vidc.compiler.cli.output import json_option, print_json, print_plan, print_text
from vidc.compiler.cli.progress import stage_progress
from vidc.compiler.cli.settings import Flags, settings_options
from vidc.compiler.cli.sources import SourceOptions, sources_options
from vidc.compiler.config.environment import cache_root
from vidc.compiler.config.presets import preset_names
from vidc.compiler.config.resolve import Settings
from vidc.exporters.families.flags import CHECKPOINT, flag_of
from vidc.plugins.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    from vidc.compiler.build.build import Build, Built
    from vidc.compiler.build.sources import Sources
    from vidc.runtime.manifest import Manifest


@click.command(cls=Command)
@settings_options
@sources_options
@click.option(
    "--recipe",
    metavar="R",
    shell_complete=names.RECIPE,
    help="Recipe of --precision fp8 or int8: a name or a TOML file.  [default: the preset's, "
    "or the target's]",
)
@click.option(
    "--calibration",
    type=PATH,
    help="Folder of vidc calibrate, for recipes with static scales.  [default: ranges recorded on "
    "the preset's prompts]",
)
@click.option(
    "-o",
    "--output",
    type=PATH,
    help="Folder of the bundle.  [default: out/PRESET-GPU-PRECISION]",
)
@click.option(
    "--sign",
    type=PATH,
    metavar="KEY",
    help="Sign the bundle with this Ed25519 private key, in PEM.",
)
@click.option("--plan", "plan_only", is_flag=True, help="Print which stages would run, and why.")
@json_option
def command(
    flags: Flags,
    weights: SourceOptions,
    recipe: str | None,
    calibration: Path | None,
    output: Path | None,
    sign: Path | None,
    plan_only: bool,
    as_json: bool,
) -> None:
    """Build a validated bundle from a checkpoint.

    PRESET is a name or a path to a TOML file; longlive-1.3b by default.

    On a machine without the GPU, the stages that need none go to a portable folder beside the
    bundle, OUTPUT.portable, and the exit status is 3. `vidc build FOLDER` finishes it on a machine
    with the GPU.
    """
    if flags.preset is not None and _is_folder(Path(flags.preset)):
        _refuse_others(flags, weights, recipe, calibration)
        _finish(Path(flags.preset), output, sign, plan_only, as_json)
        return
    settings = flags.resolve(recipe=recipe)
    model, sources = weights.resolve(settings.model)
    settings = replace(settings, model=model)
    if model.lacks_text_encoder:
        flag = flag_of(str(model.text_group))
        click.echo(
            f"no {flag} is given: the bundle will take embeddings as prompts, not texts", err=True
        )
    sources = _with_calibration(settings, sources, calibration, flags, weights)

    from vidc.compiler.build.build import lacking, whole

    reason = lacking(settings)
    if reason is not None:
        _begin(settings, sources, output, sign, reason, plan_only, as_json)
        return
    _build(whole(settings, sources), output, sign, plan_only, as_json)


def _begin(
    settings: Settings,
    sources: "Sources",
    output: Path | None,
    sign: Path | None,
    reason: str,
    plan_only: bool,
    as_json: bool,
) -> None:
    """Runs the stages that need no GPU and writes a portable build folder."""
    from vidc.compiler.build.handover import begun

    bundle = output or _default(settings)
    bundle = bundle if bundle.name else bundle.absolute()
    folder = bundle.with_name(f"{bundle.name}.portable")
    flags = {"-o": output, "--sign": sign}
    given = [word for flag, path in flags.items() if path for word in (flag, str(path))]
    rest = shlex.join(["vidc", "build", str(folder), *given])
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
        f"{why}; the finished stages are in {folder}",
        f"copy that folder to a machine that has the GPU, and there: {rest}",
    )


def _finish(
    folder: Path, output: Path | None, sign: Path | None, plan_only: bool, as_json: bool
) -> None:
    """Finishes a build that another machine began, from its portable folder."""
    from vidc.compiler.build.build import lacking
    from vidc.compiler.build.handed_over import open_portable, rest

    build = rest(open_portable(folder))
    settings = build.settings
    reason = lacking(settings)
    if reason is not None and not plan_only:
        raise UnavailableError(
            "VIDC-PORTABLE-MACHINE",
            f"this machine cannot finish {folder}, which is for {settings.target.name}: {reason}",
            "finish it on a machine with that GPU; vidc doctor lists what is missing here",
        )
    _build(build, output, sign, plan_only, as_json)


def _build(
    build: "Build", output: Path | None, sign: Path | None, plan_only: bool, as_json: bool
) -> None:
    """Publishes a bundle and signs it if there is a key; with ``--plan`` only prints the plan."""
    settings, cache = build.settings, cache_root(os.environ)
    output = output or _default(settings)
    if plan_only:
        print_plan(settings, build.plan(output, cache), as_json, {})
        return
    if sign is not None:
        from vidc.runtime.trust import private_key

        private_key(sign)  # Refuses a bad key before the build.
    _announce(settings)
    began = time.monotonic()
    with stage_progress(build.count) as progress:
        built = build.run(output, cache, progress)
    document = _signed(built.output, sign)
    click.echo(f"manifest digest: {document.digest}", err=True)
    _tell_next(document, built.output, time.monotonic() - began)
    where = {"bundle": str(built.output), "digest": document.digest}
    _print_built(built, built.output, where, as_json)


def _signed(bundle: Path, key: Path | None) -> "Manifest":
    """Returns the manifest of a bundle after signing it, if there is a key."""
    if key is None:
        from vidc.runtime.manifest import read_manifest

        return read_manifest(bundle)
    from vidc.compiler.build.sign import sign_bundle

    return sign_bundle(bundle, key)


def _is_folder(path: Path) -> bool:
    """Returns True if PRESET names a folder: a portable one, or any that is not a preset's name."""
    if not path.is_dir():
        return False
    from vidc.compiler.build.handed_over import is_portable

    return is_portable(path) or str(path) not in preset_names()


def _with_calibration(
    settings: Settings,
    sources: "Sources",
    folder: Path | None,
    flags: Flags,
    weights: SourceOptions,
) -> "Sources":
    """Returns the sources with the calibration, checked against the settings; prints the recipe.

    Without a folder the build records the ranges itself, on the preset's prompts.

    Raises:
        UsageError: ``VIDC-CALIBRATION-NEEDED``, there is no text encoder to record with; the hint
            has a ``vidc calibrate`` command. ``VIDC-CALIBRATION-UNUSED``; what
            ``read_calibration`` raises.
        GateError: ``VIDC-CALIBRATION-ZERO``.
        UnavailableError: ``VIDC-RECIPE-LOWERING``.
    """
    quantized = settings.quantization
    if quantized is None or not quantized.calibrated:
        if folder is not None:
            group = settings.model.quantized_group
            what = settings.named_precision(group)
            recipe = "" if quantized is None else f" by recipe {quantized.recipe.name}"
            raise UsageError(
                "VIDC-CALIBRATION-UNUSED",
                f"--calibration {folder} is given, and a {group} in {what}{recipe} takes no ranges "
                "from one",
                "leave --calibration out, or pass --precision or --recipe with one that does",
            )
        if quantized is not None:
            _tell_recipe(settings)
        return sources

    from vidc.compiler.build.stages import quantized_formats
    from vidc.compiler.quantize.artifact import read_calibration
    from vidc.compiler.quantize.attention import require_heads

    formats = quantized_formats(settings)
    _tell_recipe(settings)
    if folder is None:
        _tell_calibration(settings, flags, weights)
        return sources
    # The weights' digest is known, and compared, only after loading; all else is checked here.
    read = read_calibration(folder, settings.model)
    read.require_fits(settings.model, read.document.weights)
    require_heads(formats.attention, read)
    return replace(sources, calibration=folder)


def _tell_calibration(settings: Settings, flags: Flags, weights: SourceOptions) -> None:
    """Prints that the build records ranges itself, and how long a CPU takes if it is minutes.

    Raises:
        UsageError: ``VIDC-CALIBRATION-NEEDED``; what ``build_prompts`` raises.
    """
    from vidc.compiler.build.calibrate import build_prompts, recording_device
    from vidc.compiler.cli.calibrate import tell_rollouts

    quantized = settings.quantization
    assert quantized is not None
    if settings.model.lacks_text_encoder:
        raise UsageError(
            "VIDC-CALIBRATION-NEEDED",
            f"recipe {quantized.recipe.name} takes ranges from a calibration: none is given, and "
            "without a text encoder there are no prompts to record one on",
            f"add {flag_of(str(settings.model.text_group))} FOLDER; or "
            f"{_calibrate_command(settings, flags, weights)}, then build with --calibration "
            f"out/{settings.preset}-calibration",
        )
    prompts = len(build_prompts(settings))
    click.echo(
        f"no --calibration is given: ranges come from rollouts of {prompts} prompts", err=True
    )
    if recording_device(settings) == "cpu":
        tell_rollouts(settings, prompts, "calibrate.prompts of a preset or --config says which")


def _tell_recipe(settings: Settings) -> None:
    """Prints the chosen recipe and the reason; the target's notes too if it is not the default."""
    quantized = settings.quantization
    assert quantized is not None
    origin = settings.origins["quantization.recipe"]
    why, notes = f"as {origin} says", settings.target.notes
    from vidc.compiler.config.quantization import default_origin, default_reason

    family = type(settings.model)
    if origin == default_origin(settings.target, family):
        notes = ()
        reason = default_reason(quantized.precision, settings.target, family)
        why = f"the default of {origin.partition(' ')[-1]}: {reason}"
    click.echo(
        f"{quantized.precision}: recipe {quantized.recipe.name}, {why} "
        f"({quantized.recipe.description}); the rest stays in "
        f"{settings.precision[settings.model.quantized_group]}",
        err=True,
    )
    for note in notes:
        click.echo(f"{settings.target.name}: {note}", err=True)


def _calibrate_command(settings: Settings, flags: Flags, weights: SourceOptions) -> str:
    """Returns the ``vidc calibrate`` command for a build with these flags."""
    values = {
        CHECKPOINT: weights.checkpoint,
        "--random-weights": weights.random_weights,
        "--config": flags.config,
    }
    words = ["vidc", "calibrate", flags.preset or settings.preset]
    for flag, value in values.items():
        words += [] if value is None else [flag, str(value)]
    if flags.ema is not None:
        words.append("--ema" if flags.ema else "--no-ema")
    for lora in weights.loras:
        words += ["--lora", str(lora)]
    for assignment in flags.assignments:
        if not assignment.startswith("precision."):
            words += ["--set", assignment]
    if settings.origins["quantization.precision"] != "--precision":
        # Ranges are recorded in high precision for every preset.
        words += ["--precision", settings.precision[settings.model.quantized_group]]
    return shlex.join(words)


def _refuse_others(
    flags: Flags, weights: SourceOptions, recipe: str | None, calibration: Path | None
) -> None:
    """Refuses flags that a portable build folder already decides."""
    others = (*vars(replace(flags, preset=None)).values(), recipe, calibration)
    if weights.any or any(value not in (None, ()) for value in others):
        raise UsageError(
            "VIDC-PORTABLE-FLAG",
            f"{flags.preset} is a portable build folder, which already decides what to build",
            "give only -o, --sign, --plan and --json, or name a preset to begin another build",
        )


def _default(settings: Settings) -> Path:
    groups = settings.model.parts
    precision = "-".join(sorted({settings.named_precision(group) for group in groups}))
    return Path("out") / f"{settings.preset}-{settings.target.name}-{precision}"


def _print_built(built: "Built", folder: Path, where: Mapping[str, str], as_json: bool) -> None:
    """Prints the folder; with ``--json``, ``where`` and the stages."""
    if as_json:
        stages = [vars(stage) for stage in built.stages]
        print_json({**where, "hit": built.stages[-1].hit, "stages": stages})
    else:
        print_text(str(folder))


def _tell_next(manifest: "Manifest", bundle: Path, seconds: float) -> None:
    """Prints the bundle's size, the time of the build, and the command that plays the bundle."""
    from vidc.compiler.config.program import run_words
    from vidc.compiler.store.disk import byte_sizes

    click.echo(f"built in {_duration(seconds)}, {byte_sizes(manifest.sizes)}", err=True)
    click.echo(f"next: {shlex.join(run_words(manifest, str(bundle)))}", err=True)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


def _announce(settings: Settings) -> None:
    from vidc.compiler.validate.estimate import announcement

    if (text := announcement(settings)) is not None:
        click.echo(text, err=True)
