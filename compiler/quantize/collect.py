"""Range collection with ModelOpt's quantizers, one for each tensor and group of passes."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from vidc.plugins.errors import GateError


@cache
def _modelopt() -> Any:
    # The import takes seconds and warns of library versions.
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import modelopt.torch.quantization as mtq
    return mtq


def _quantizer(axis: tuple[int, ...]) -> Any:
    mtq = _modelopt()
    attributes = mtq.config.QuantizerAttributeConfig(num_bits=8, axis=axis, calibrator="max")
    quantizer = mtq.nn.TensorQuantizer(attributes)
    quantizer.disable_quant()
    quantizer.enable_calib()
    return quantizer


def weight_amax(weight: Tensor) -> Tensor:
    """Returns the amax of each output channel of a layer's weight, float32 ``[out]``."""
    quantizer = _quantizer((0,))
    quantizer(weight)
    found: Tensor = quantizer._calibrator.compute_amax()
    return found.flatten().float()


class Collector:
    """Ranges of one rollout.

    Args:
        groups: names of the groups of passes, in the order of the ranges' first dimension.
    """

    def __init__(self, groups: Sequence[str]) -> None:
        self._index = {name: index for index, name in enumerate(groups)}
        self._quantizers: dict[str, dict[str, Any]] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._ends: dict[str, tuple[Tensor, Tensor]] = {}
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}

    def activation(self, name: str, group: str, x: Tensor) -> None:
        """Collects the per-channel amax of a linear layer's input, ``[..., in]``.

        Raises:
            GateError: ``VIDC-CALIBRATION-NONFINITE``, it has NaN or Inf.
        """
        self._collect(name, group, x, (x.ndim - 1,))

    def channels(self, name: str, group: str, x: Tensor) -> None:
        """Collects the amax of each channel of ``[N, C, H, W]``; raises as ``activation``."""
        self._collect(name, group, x, (1,))

    def heads(self, name: str, group: str, x: Tensor) -> None:
        """Collects the amax by head and channel of ``[B, T, H, D]``; raises as ``activation``."""
        self._collect(name, group, x, (2, 3))

    def ends(self, name: str, x: Tensor) -> None:
        """Collects the minimum and maximum of each channel of ``[B, T, ...]``."""
        low, high = x.amin((0, 1)).float(), x.amax((0, 1)).float()
        if name in self._ends:
            low = torch.minimum(low, self._ends[name][0])
            high = torch.maximum(high, self._ends[name][1])
        self._ends[name] = low, high

    def mean(self, name: str, x: Tensor) -> None:
        """Collects the mean of each channel of ``[B, T, ...]`` over all calls."""
        total = x.sum((0, 1), dtype=torch.float64)
        self._sums[name] = self._sums[name] + total if name in self._sums else total
        self._counts[name] = self._counts.get(name, 0) + x.shape[0] * x.shape[1]

    def ranges(self) -> dict[str, Tensor]:
        """Returns all ranges on the CPU, for ``merged``."""
        found = {
            f"amax/{name}": self._by_group(quantizers, self._shapes[name])
            for name, quantizers in self._quantizers.items()
        }
        for name, (low, high) in self._ends.items():
            found |= {f"low/{name}": low, f"high/{name}": high}
        for name, total in self._sums.items():
            found |= {f"sum/{name}": total, f"count/{name}": torch.tensor(self._counts[name])}
        return {name: value.cpu() for name, value in found.items()}

    def _collect(self, name: str, group: str, x: Tensor, axis: tuple[int, ...]) -> None:
        quantizers = self._quantizers.setdefault(name, {})
        self._shapes[name] = tuple(x.shape[dimension] for dimension in axis)
        if group not in quantizers:
            quantizers[group] = _quantizer(axis)
        try:
            quantizers[group](x)
        except AssertionError as error:  # ModelOpt raises it for NaN and Inf.
            raise GateError(
                "VIDC-CALIBRATION-NONFINITE",
                f"{name} in group {group}: {error}",
                "try --precision fp32 or bf16; if it stays, the checkpoint does not fit the preset",
            ) from error

    def _by_group(self, quantizers: Mapping[str, Any], shape: tuple[int, ...]) -> Tensor:
        rows = torch.zeros(len(self._index), *shape)
        for group, quantizer in quantizers.items():
            rows[self._index[group]] = quantizer._calibrator.compute_amax().reshape(shape).cpu()
        return rows
