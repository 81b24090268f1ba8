"""Stage ``quantize:transformer``: weights in 8 bits and scales, from a calibration."""

from vidc.compiler.build.load_run import read_source
from vidc.compiler.config.recipe import Recipe
from vidc.compiler.quantize.artifact import read_calibration
from vidc.compiler.quantize.attention import (
    attention_weights,
    quantized_attention,
    require_faithful_attention,
)
from vidc.compiler.quantize.check import require_faithful
from vidc.compiler.quantize.form import Form
from vidc.compiler.quantize.lowering import quantized_linears
from vidc.compiler.quantize.weights import quantized_weights
from vidc.compiler.store.stage import Workspace
from vidc.exporters.checkpoint import write_weights
from vidc.exporters.checkpoint.safetensors_file import read_safetensors
from vidc.exporters.config import ModelConfig
from vidc.plugins.names import weights_path


def run(
    workspace: Workspace,
    config: ModelConfig,
    group: str,
    recipe: Recipe,
    calibrated: bool,
    form: Form,
) -> None:
    """Writes ``weights/<group>.safetensors``.

    Args:
        workspace: where to, the weights in high precision and the calibration.
        config: of the model.
        group: of the weights.
        recipe: what is quantized, and how.
        calibrated: whether the recipe takes ranges from a calibration.
        form: of the components that read them.

    Raises:
        UsageError: ``VIDC-CALIBRATION-FOREIGN`` and what else ``read_calibration`` raises.
        GateError: ``VIDC-CALIBRATION-ZERO``, a head has nothing to round.
        BuildError: ``VIDC-QUANTIZE-WEIGHTS``.
    """
    loaded = workspace.inputs[f"load:{group}"]
    ranges = None
    if calibrated:
        ranges = read_calibration(workspace.inputs[f"calibrate:{group}"], config)
        ranges.require_fits(config, read_source(loaded)["digest"])
    linears = quantized_linears(recipe, config, form)
    weights = read_safetensors(loaded / weights_path(group))
    path = workspace.output / weights_path(group)
    path.parent.mkdir()
    attentions = quantized_attention(recipe, config, form)
    made = quantized_weights(weights, linears, ranges, form)
    write_weights(path, made | attention_weights(attentions, ranges))
    found = read_safetensors(path)
    require_faithful(found, weights, linears, ranges, form)
    require_faithful_attention(found, attentions, ranges)
