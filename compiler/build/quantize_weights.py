"""Stage ``quantize:<group>``: quantizes weights to 8 bits and computes scales."""

from dataclasses import dataclass
from functools import partial

from vidc.compiler.quantize.apply import Quantization
from vidc.compiler.store.sources import class_modules, versions
from vidc.compiler.store.stage import Input, Key, Stage, Workspace
from vidc.exporters.families.family import Family
from vidc.plugins.names import weights_path


@dataclass(frozen=True)
class QuantizeWeights(Stage):
    """Writes ``weights/<group>.safetensors`` with 8-bit weights and scales.

    Attributes:
        model: model with the quantized part.
        precision: precision of the weights that are not quantized.
        formats: formats of the layers.
        calibration: stage that provides the ranges; None if the formats need none.
    """

    model: Family
    precision: str
    formats: Quantization
    calibration: str | None

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
                "precision": self.precision,
                "layers": self.formats.rules(),
            },
            tools=partial(versions, "torch"),
        )

    def run(self, workspace: Workspace) -> None:
        """Quantizes the weights and checks the written file against them.

        Raises:
            UsageError: ``VIDC-CALIBRATION-FOREIGN`` and what else ``read_calibration`` raises.
            GateError: ``VIDC-CALIBRATION-ZERO``, a head is constant, so it has no scale.
            BuildError: ``VIDC-QUANTIZE-WEIGHTS``.
        """
        from vidc.compiler.build.load import read_source
        from vidc.compiler.quantize.artifact import read_calibration
        from vidc.compiler.quantize.attention import require_faithful_attention
        from vidc.compiler.quantize.check import require_faithful
        from vidc.compiler.quantize.linears import linears_of
        from vidc.compiler.quantize.modules import quantized_components
        from vidc.compiler.quantize.weights import quantized_state
        from vidc.exporters.checkpoint.safetensors_file import read_safetensors
        from vidc.exporters.checkpoint.write import write_weights

        group, part = self.model.quantized_group, self.model.quantized_part
        loaded = workspace.inputs[f"load:{group}"]
        ranges = None
        if self.calibration is not None:
            ranges = read_calibration(workspace.inputs[self.calibration], self.model)
            ranges.require_fits(self.model, read_source(loaded)["digest"])
        network = part.network(self.precision)
        quantized_components(part, self.formats, network)
        weights = read_safetensors(loaded / weights_path(group))
        path = workspace.output / weights_path(group)
        path.parent.mkdir()
        write_weights(path, quantized_state(network.state_dict(), weights, self.formats, ranges))
        found = read_safetensors(path)
        require_faithful(found, weights, linears_of(self.formats), ranges)
        require_faithful_attention(found, self.formats.attention, ranges)
