"""Stage ``golden:quantized``: what PyTorch makes of a recipe's numbers, beside the golden data."""

from collections.abc import Mapping
from dataclasses import replace

import torch

from vidc.compiler.build.golden_run import eager_engines, play_eager
from vidc.compiler.config.quantization import TRANSFORMER
from vidc.compiler.config.recipe import Recipe
from vidc.compiler.quantize.apply import apply_recipe
from vidc.compiler.quantize.artifact import read_calibration
from vidc.compiler.quantize.clipping import Clipping
from vidc.compiler.quantize.fake import FakeQuantizer
from vidc.compiler.quantize.form import Form
from vidc.compiler.store.stage import Workspace
from vidc.compiler.validate.golden import Golden
from vidc.exporters.causal_wan.model import CausalWan
from vidc.exporters.config import ModelConfig
from vidc.plugins.names import weights_path
from vidc.runtime.allocator import growing_segments
from vidc.runtime.faults import gpu_faults


def run(
    workspace: Workspace,
    config: ModelConfig,
    precisions: Mapping[str, str],
    recipe: Recipe,
    calibrated: bool,
    device_type: str,
    form: Form,
) -> None:
    """Writes ``golden/`` again, with eager's record that of the quantized model.

    Its Linears and attentions have the numbers that a build stores, computed from the calibration
    and not read from what the engines are given: an engine is held to a multiple of its error.

    Args:
        workspace: where to; weights, golden data and the calibration.
        config: of the model.
        precisions: of its weights groups, high.
        recipe: by which.
        calibrated: whether it takes ranges.
        device_type: where, ``cpu`` or ``cuda``.
        form: of the backend, whose scales these are.

    Raises:
        GateError: ``VIDC-CALIBRATION-RANGE``, ranges cut off what the model computes.
        UnavailableError: ``VIDC-GPU-MEMORY``, ``VIDC-GPU-LOST``.
    """
    weights = {g: workspace.inputs[f"load:{g}"] / weights_path(g) for g in precisions}
    calibration = None
    if calibrated:
        calibration = read_calibration(workspace.inputs[f"calibrate:{TRANSFORMER}"], config)
    golden = Golden.load(workspace.inputs["golden"])
    device = torch.device(device_type)
    exact = torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
    with exact, growing_segments(), gpu_faults(device):
        engines = eager_engines(config, weights, precisions, device)
        network = engines["denoise"].module.transformer
        assert isinstance(network, CausalWan)
        formats = apply_recipe(recipe, config)
        clipping = Clipping()
        quantizer = FakeQuantizer(network, formats, calibration, clipping, form)
        with quantizer.quantized(quantizer.layers):
            eager, rollout = play_eager(
                config, quantizer.engines(engines), golden.scenario,
                golden.inputs.to(device), golden.reference,
            )  # fmt: skip
    clipping.require_kept()
    replace(golden, eager=eager, eager_rollout=rollout).save(workspace.output)
