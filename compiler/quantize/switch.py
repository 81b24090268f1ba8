"""Switching layers of a network that is in memory to quantized modules, and back."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from torch import Tensor, nn

from vidc.compiler.config.recipe import HIGH, AttentionFormat
from vidc.compiler.quantize.apply import Quantization
from vidc.compiler.quantize.artifact import Calibration
from vidc.compiler.quantize.clipping import Clipping
from vidc.compiler.quantize.modules import quantized_modules
from vidc.compiler.quantize.weights import quantized_state
from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.exporters.part import Part


class QuantizedLayers:
    """Switches layers of a network to the modules that a build exports, and back.

    An engine's kernels may round differently. That is not simulated.

    Args:
        part: the part.
        network: its network in high precision; changed and restored.
        formats: formats of its layers.
        calibration: calibration of its weights; None if no layer needs one.
        clipping: records clipping errors; None for no record.
    """

    def __init__(
        self,
        part: Part,
        network: nn.Module,
        formats: Quantization,
        calibration: Calibration | None,
        clipping: Clipping | None = None,
    ) -> None:
        self._part, self.network = part, network
        self._formats, self._calibration, self._clipping = formats, calibration, clipping
        self.device = next(network.parameters()).device
        """The network's device."""
        # The weights in high precision, also while quantized modules replace their layers.
        self._weights = {n: _on_cpu(tensor) for n, tensor in network.state_dict().items()}

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers with 8-bit formats."""
        linear = (n for n, f in self._formats.linear.items() if f.weights != HIGH)
        attention = (n for n, f in self._formats.attention.items() if f != AttentionFormat())
        return (*linear, *attention)

    @contextmanager
    def quantized(self, layers: Collection[str]) -> Iterator[None]:
        """Quantizes these layers within the context; KeyError for layers without 8-bit formats.

        Layers that share a quantized input must come together. Rings become 8-bit states, so the
        caller must create the components again, inside the context and after it.
        """
        every = quantized_modules(self._part, self.network, self._formats)
        chosen = {name: module for layer in layers for name, module in every[layer].items()}
        self._load(chosen)
        originals = {name: self.network.get_submodule(name) for name in chosen}
        try:
            for layer in layers:
                for name, module in every[layer].items():
                    if self._clipping is not None:
                        self._clipping.watch(layer, module)
                    self.network.set_submodule(name, module)
            yield
        finally:
            for name, original in originals.items():
                self.network.set_submodule(name, original)

    def _load(self, modules: Mapping[str, nn.Module]) -> None:
        types = {
            f"{name}.{key}": tensor
            for name, module in modules.items()
            for key, tensor in module.state_dict().items()
        }
        state = quantized_state(types, self._weights, self._formats, self._calibration)
        for name, module in modules.items():
            values = {key: state[f"{name}.{key}"].load() for key in module.state_dict()}
            moved = {key: value.to(self.device) for key, value in values.items()}
            module.load_state_dict(moved, assign=True)


def _on_cpu(tensor: Tensor) -> LazyTensor:
    # The calibration is on the CPU.
    return LazyTensor(tuple(tensor.shape), tensor.dtype, partial(tensor.detach().to, "cpu"))
