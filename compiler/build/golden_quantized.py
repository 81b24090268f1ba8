"""Stage ``golden:quantized``: golden data of the quantized model in PyTorch eager."""

from dataclasses import dataclass, replace
from functools import partial

from vidc.compiler.build.golden import PlayGolden
from vidc.compiler.config.program import model_modules
from vidc.compiler.quantize.apply import Quantization
from vidc.compiler.store.stage import Input, Key, Stage, Workspace
from vidc.compiler.validate.scenario import QUANTIZED_STAGE
from vidc.plugins.names import weights_path


@dataclass(frozen=True)
class PlayQuantized(Stage):
    """Writes the golden data again, with the results of the quantized model in PyTorch.

    It runs the quantized modules that are exported. Their weights and scales are computed anew from
    the calibration and not read from the engines' files, so that a fault in those files shows:
    the limits of some gates are multiples of the error found here.

    Attributes:
        exact: the stage that ran the same scenario in high precision.
        formats: formats of the quantized layers.
        calibration: stage that provides the ranges; None if the formats need none.
    """

    name = QUANTIZED_STAGE
    portable = False  # PyTorch runs on the target.

    exact: PlayGolden
    formats: Quantization
    calibration: str | None

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The golden data, the weights, and the calibration."""
        ranges = () if self.calibration is None else (Input(self.calibration),)
        return (Input(self.exact.name), *self.exact.inputs, *ranges)

    def key(self) -> Key:
        """Returns the key; scenario and prompts are in it through the golden data, an input."""
        return replace(
            self.exact.key(),
            entries=(__name__, *model_modules(self.exact.model)),
            config={
                "model": self.exact.model.to_json(),
                "precisions": dict(self.exact.precisions),
                "layers": self.formats.rules(),
            },
        )

    def run(self, workspace: Workspace) -> None:
        """Runs the scenario of the golden data in PyTorch.

        Raises:
            GateError: ``VIDC-CALIBRATION-RANGE``, static ranges clip too much of an input.
            UnavailableError: ``VIDC-GPU-MEMORY``, ``VIDC-GPU-LOST``.
        """
        import torch

        from vidc.compiler.quantize.artifact import read_calibration
        from vidc.compiler.quantize.clipping import Clipping
        from vidc.compiler.quantize.switch import QuantizedLayers
        from vidc.compiler.validate.golden import Golden
        from vidc.compiler.validate.reference import (
            eager_engines,
            part_engines,
            play_eager,
            quantized_network,
        )
        from vidc.runtime.allocator import growing_segments
        from vidc.runtime.faults import gpu_faults

        model, precisions = self.exact.model, self.exact.precisions
        weights = {g: workspace.inputs[f"load:{g}"] / weights_path(g) for g in precisions}
        calibration = None
        if self.calibration is not None:
            calibration = read_calibration(workspace.inputs[self.calibration], model)
        golden = Golden.load(workspace.inputs[self.exact.name])
        device = torch.device(self.exact.device_type)
        exact = torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
        with exact, growing_segments(), gpu_faults(device):
            engines = eager_engines(model, weights, precisions, device)
            network = quantized_network(engines, model)
            part, clipping = model.quantized_part, Clipping()
            layers = QuantizedLayers(part, network, self.formats, calibration, clipping)
            with layers.quantized(layers.layers):
                made = part_engines(part, network)
                for name, engine in made.items():
                    engine.module.register_forward_pre_hook(partial(clipping.enter, name))
                eager, rollout = play_eager(
                    model, engines | made, golden.scenario,
                    golden.inputs.to(device), golden.reference,
                )  # fmt: skip
        clipping.require_within_limits()
        replace(golden, eager=eager, eager_rollout=rollout).save(workspace.output)
