"""Stage ``quantize:<group>``: weights in 8 bits and scales, from a calibration."""

from dataclasses import dataclass
from functools import partial

from vidc.compiler.config.recipe import Recipe
from vidc.compiler.quantize.support import QuantizationSupport
from vidc.compiler.store.sources import class_modules
from vidc.compiler.store.stage import Input, Key, Stage, Workspace
from vidc.compiler.store.versions import versions
from vidc.exporters.families.family import Family
from vidc.plugins.names import weights_path


@dataclass(frozen=True)
class QuantizeWeights(Stage):
    """Writes ``weights/<group>.safetensors``.

    Attributes:
        model: whose quantized part they are of.
        recipe: what is quantized, and how.
        calibration: the stage that gives the ranges; None if the recipe needs none.
        form: of the components that read the weights.
    """

    model: Family
    recipe: Recipe
    calibration: str | None
    form: QuantizationSupport

    @property
    def name(self) -> str:
        """``quantize:<group>``."""
        return f"quantize:{self.model.quantized_group}"

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The weights in high precision, and the calibration."""
        ranges = () if self.calibration is None else (Input(self.calibration),)
        return (Input(f"load:{self.model.quantized_group}"), *ranges)

    def key(self) -> Key:
        """Returns the key."""
        return Key(
            (__name__, *class_modules(type(self.model))),
            {
                "sizes": self.model.quantized_part.config.to_json(),
                "rules": self.recipe.rules(),
                "form": self.form.name,
            },
            tools=partial(versions, "torch"),
        )

    def run(self, workspace: Workspace) -> None:
        """Quantizes the weights and checks what is written against them.

        Raises:
            UsageError: ``VIDC-CALIBRATION-FOREIGN`` and what else ``read_calibration`` raises.
            GateError: ``VIDC-CALIBRATION-ZERO``, a head has nothing to round.
            BuildError: ``VIDC-QUANTIZE-WEIGHTS``.
        """
        from vidc.compiler.build.load import read_source
        from vidc.compiler.quantize.artifact import read_calibration
        from vidc.compiler.quantize.attention import (
            attention_weights,
            quantized_attention,
            require_faithful_attention,
        )
        from vidc.compiler.quantize.check import require_faithful
        from vidc.compiler.quantize.lowering import quantized_linears
        from vidc.compiler.quantize.weights import quantized_weights
        from vidc.exporters.checkpoint import write_weights
        from vidc.exporters.checkpoint.safetensors_file import read_safetensors

        group, form = self.model.quantized_group, self.form
        loaded = workspace.inputs[f"load:{group}"]
        ranges = None
        if self.calibration is not None:
            ranges = read_calibration(workspace.inputs[self.calibration], self.model)
            ranges.require_fits(self.model, read_source(loaded)["digest"])
        linears = quantized_linears(self.recipe, self.model, form)
        attentions = quantized_attention(self.recipe, self.model, form)
        weights = read_safetensors(loaded / weights_path(group))
        path = workspace.output / weights_path(group)
        path.parent.mkdir()
        made = quantized_weights(weights, linears, ranges, form)
        write_weights(path, made | attention_weights(attentions, ranges))
        found = read_safetensors(path)
        require_faithful(found, weights, linears, ranges, form)
        require_faithful_attention(found, attentions, ranges)
