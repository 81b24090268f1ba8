"""Golden data computed again from a checkpoint, instead of those that the bundle holds."""

import tempfile
from pathlib import Path

from vidc.compiler.graph import Sources
from vidc.compiler.pipeline.stage import Workspace
from vidc.compiler.settings.tables import model_from_json
from vidc.compiler.stages import golden as golden_stage
from vidc.compiler.stages import load as load_stage
from vidc.compiler.validate.golden import Golden
from vidc.compiler.validate.scenario import Scenario
from vidc.exporters.components import weights_groups
from vidc.runtime.manifest import Manifest


def recompute(manifest: Manifest, sources: Sources, scenario: Scenario) -> Golden:
    """What PyTorch makes of a checkpoint in the scenario of a bundle.

    Args:
        manifest: of the bundle, which says what the model is and at which precisions.
        sources: of every weights group of the bundle.
        scenario: what is played.

    Raises:
        VidcError: what the loading of checkpoints raises.
    """
    config = model_from_json(manifest.config)
    precisions = {group: manifest.config["precision"][group] for group in weights_groups(config)}
    with tempfile.TemporaryDirectory(prefix="vidc-validate-") as folder:
        inputs = {}
        for group, precision in precisions.items():
            output = Path(folder, group)
            output.mkdir()
            load_stage.run(
                Workspace(output, {}, print),
                config,
                group,
                precision,
                sources.weights(group),
                sources.lora if group == "transformer" else None,
                sources.tokenizer if group == "text_encoder" else None,
            )
            inputs[f"load:{group}"] = output
        output = Path(folder, "golden")
        output.mkdir()
        golden_stage.run(Workspace(output, inputs, print), config, precisions, scenario)
        return Golden.load(output)
