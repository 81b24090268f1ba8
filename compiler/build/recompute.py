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
from vidc.exporters.models import PRECISIONS
from vidc.plugins.errors import BuildError
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
    model = model_from_json(manifest.config)
    precisions = {group: manifest.config["precision"][group] for group in model.parts}
    ema = CheckpointConfig.from_table(manifest.config.get("checkpoint", {}), "checkpoint").ema
    prompts = ValidateConfig.from_table(manifest.config["validate"], "validate").prompts
    loads = []
    for group, part in model.parts.items():
        weights, extra = sources.weights(part), sources.extra(model, group)
        averaged = ema and group == model.quantized_group
        loads.append(
            Load(
                part, type(model), precisions[group], weights, extra.loras, extra.tokenizer,
                averaged,
            )
        )  # fmt: skip
    play = PlayGolden(
        model, precisions, golden.scenario, prompts, manifest.target.device_type, target=None
    )
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
            found = _played(loads, play, folder, note)
    if all(engine.precision in PRECISIONS for engine in manifest.engines.values()):
        return found
    return replace(found, eager=golden.eager, eager_rollout=golden.eager_rollout)


def _played(
    loads: Sequence[Load], play: PlayGolden, folder: Path, note: Callable[[str], None]
) -> Golden:
    """Runs these stages in folders below ``folder`` and returns the last one's result."""
    inputs: dict[str, Path] = {}
    for stage in (*loads, play):
        output = folder / f"stage{len(inputs)}"
        output.mkdir()
        stage.run(Workspace(output, dict(inputs), note))
        inputs[stage.name] = output
    return Golden.load(inputs[play.name])
