"""Stage ``golden:quantized``: golden data again, with PyTorch eager in a recipe's numbers."""

from dataclasses import dataclass, replace

from vidc.compiler.build.golden import PlayGolden
from vidc.compiler.config.recipe import Recipe
from vidc.compiler.quantize.support import QuantizationSupport
from vidc.compiler.store.sources import class_modules
from vidc.compiler.store.stage import Input, Key, Stage, Workspace
from vidc.compiler.validate.scenario import QUANTIZED_STAGE
from vidc.plugins.names import weights_path


@dataclass(frozen=True)
class PlayQuantized(Stage):
    """Writes ``golden/`` again, with eager's record that of the quantized model.

    Its Linears and attentions have the numbers that a build stores, computed from the calibration
    and not read from what the engines are given: an engine is held to a multiple of its error.

    Attributes:
        exact: the stage that played the same in high precision.
        recipe: by which.
        calibration: the stage that gives the ranges; None if the recipe needs none.
        form: of the backend, whose scales these are.
    """

    exact: PlayGolden
    recipe: Recipe
    calibration: str | None
    form: QuantizationSupport

    @property
    def name(self) -> str:
        """``golden:quantized``."""
        return QUANTIZED_STAGE

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The golden data, what they are of, and the calibration."""
        ranges = () if self.calibration is None else (Input(self.calibration),)
        return (Input(self.exact.name), *self.exact.inputs, *ranges)

    @property
    def portable(self) -> bool:
        """False: PyTorch plays on the target."""
        return False

    def key(self) -> Key:
        """Returns the key; the scenario and the prompts reach it by the golden data."""
        return replace(
            self.exact.key(),
            entries=(__name__, *class_modules(type(self.exact.model))),
            config={
                "model": self.exact.model.to_json(),
                "precisions": dict(self.exact.precisions),
                "rules": self.recipe.rules(),
                "form": self.form.name,
            },
        )

    def run(self, workspace: Workspace) -> None:
        """Plays the golden scenario.

        Raises:
            GateError: ``VIDC-CALIBRATION-RANGE``, ranges cut off what the model computes.
            UnavailableError: ``VIDC-GPU-MEMORY``, ``VIDC-GPU-LOST``.
        """
        import torch

        from vidc.compiler.quantize.apply import apply_recipe
        from vidc.compiler.quantize.artifact import read_calibration
        from vidc.compiler.quantize.clipping import Clipping
        from vidc.compiler.quantize.fake import FakeQuantizer
        from vidc.compiler.validate.eager import quantized_network
        from vidc.compiler.validate.golden import Golden
        from vidc.compiler.validate.reference import eager_engines, play_eager
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
            formats, clipping = apply_recipe(self.recipe, model), Clipping()
            quantizer = FakeQuantizer(network, formats, calibration, clipping, self.form)
            with quantizer.quantized(quantizer.layers):
                eager, rollout = play_eager(
                    model, quantizer.engines(engines), golden.scenario,
                    golden.inputs.to(device), golden.reference,
                )  # fmt: skip
        clipping.require_within_limits()
        replace(golden, eager=eager, eager_rollout=rollout).save(workspace.output)
