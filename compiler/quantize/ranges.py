"""Merging of the ranges of several rollouts into a calibration's tensors."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

Ranges = Mapping[str, Tensor]
"""Ranges by ``<kind>/<tensor>``: ``amax``, ``high`` and ``low``, float32; ``sum``, float64;
``count``, int64."""

_MERGE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "amax": torch.maximum,
    "high": torch.maximum,
    "low": torch.minimum,
    "sum": torch.add,
    "count": torch.add,
}


def merged(before: Ranges, after: Ranges) -> dict[str, Tensor]:
    """Merges two ranges. The order matters for the rounding of sums only."""
    names = dict.fromkeys([*before, *after])
    return {name: _both(name, before.get(name), after.get(name)) for name in names}


def finished(ranges: Ranges) -> dict[str, Tensor]:
    """Returns the tensors of a calibration, float32, contiguous, on the CPU; sums become means.

    Raises:
        ValueError: a count is zero.
    """
    tensors = {}
    for key, value in ranges.items():
        kind, _, name = key.partition("/")
        match kind:
            case "amax":
                tensors[name] = value
            case "low" | "high":
                tensors[f"{name}.{kind}"] = value
            case "sum":
                count = int(ranges[f"count/{name}"])
                if count == 0:
                    raise ValueError(f"{name} was never collected")
                tensors[f"{name}.mean"] = value / count
    return {name: value.float().cpu().contiguous() for name, value in sorted(tensors.items())}


def _both(name: str, before: Tensor | None, after: Tensor | None) -> Tensor:
    if before is None or after is None:
        found = before if after is None else after
        assert found is not None
        return found
    return _MERGE[name.partition("/")[0]](before, after)
