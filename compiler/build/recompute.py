"""Golden data computed again from a checkpoint, instead of those that the bundle holds."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from vidc.compiler.build.golden import PlayGolden
from vidc.compiler.build.load import Load
from vidc.compiler.build.sources import Sources
from vidc.compiler.config.schema import CheckpointConfig, ValidateConfig
from vidc.compiler.config.tables import model_from_json
from vidc.compiler.store.disk import stage_errors
from vidc.compiler.store.stage import Workspace
from vidc.compiler.validate.golden import Golden
from vidc.compiler.validate.scenario import Scenario
from vidc.exporters.families.family import Family
from vidc.exporters.families.flags import flag_of, title_of
from vidc.exporters.models import PRECISIONS
from vidc.exporters.part import Part
from vidc.plugins.errors import BuildError, UsageError
from vidc.runtime.manifest import Manifest


def recompute(
    manifest: Manifest, sources: Sources, golden: Golden, note: Callable[[str], None]
) -> Golden:
    """Plays the scenario of a bundle in PyTorch, with a checkpoint's weights.

    The record of a quantized model stays the bundle's own: ranges are not in a checkpoint.

    Args:
        manifest: of the bundle, which says what the model is and at which precisions.
        sources: of every weights group of the bundle.
        golden: of the bundle.
        note: shows a line of progress.

    Raises:
        UsageError: ``VIDC-BUILD-SOURCES``, a weights group of the bundle has no source.
        BuildError: ``VIDC-BUILD-DISK``, the weights do not fit the folder of temporary files.
        VidcError: what the loading of checkpoints raises.
    """
    config = model_from_json(manifest.config)
    precisions = {group: manifest.config["precision"][group] for group in config.parts}
    ema = CheckpointConfig.from_table(manifest.config.get("checkpoint", {}), "checkpoint").ema
    prompts = ValidateConfig.from_table(manifest.config["validate"], "validate").prompts
    weights = {g: _weights(manifest.name, sources, part) for g, part in config.parts.items()}
    try:
        scratch = tempfile.TemporaryDirectory(prefix="vidc-validate-")
    except OSError as error:
        raise BuildError(
            "VIDC-BUILD-DISK",
            f"temporary files cannot be written: {error}",
            "set TMPDIR to a folder with room for the weights",
        ) from error
    with scratch as name:
        folder = Path(name)
        remedy = f"free space in {folder.parent}, or set TMPDIR to a folder with more"
        with stage_errors("golden", folder, folder, None, remedy):
            device_type = manifest.target.device_type
            found = _golden(
                config, precisions, weights, sources, ema, golden.scenario, prompts, device_type,
                folder, note,
            )  # fmt: skip
    if all(engine.precision in PRECISIONS for engine in manifest.engines.values()):
        return found
    return replace(found, eager=golden.eager, eager_rollout=golden.eager_rollout)


def _golden(
    config: Family,
    precisions: dict[str, str],
    weights: dict[str, Path | int],
    sources: Sources,
    ema: bool,
    scenario: Scenario,
    prompts: Sequence[str],
    device_type: str,
    folder: Path,
    note: Callable[[str], None],
) -> Golden:
    inputs = {}
    for group, precision in precisions.items():
        output = folder / group
        output.mkdir()
        extra = sources.extra(config, group)
        Load(
            config.parts[group],
            type(config),
            precision,
            weights[group],
            extra.loras,
            extra.tokenizer,
            ema and group == config.quantized_group,
        ).run(Workspace(output, {}, note))
        inputs[f"load:{group}"] = output
    output = folder / "golden"
    output.mkdir()
    played = PlayGolden(config, precisions, scenario, tuple(prompts), device_type, target=None)
    played.run(Workspace(output, inputs, note))
    return Golden.load(output)


def _weights(bundle: str, sources: Sources, part: Part) -> Path | int:
    weights = sources.checkpoints.get(part.group, sources.seed)
    # A text encoder is nothing without its tokenizer, which no seed gives.
    if weights is None or (part.needs_tokenizer and isinstance(weights, int)):
        raise UsageError(
            "VIDC-BUILD-SOURCES",
            f"{bundle} has a {title_of(part.group)}, and nothing says where its weights come from",
            f"give {flag_of(part.group)} as for its build, or no source of weights to use the "
            "bundle's own reference",
        )
    return weights
