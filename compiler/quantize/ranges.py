"""Ranges as they are collected, and how those of several rollouts become one."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

Ranges = Mapping[str, Tensor]
"""By ``<kind>/<tensor>``: of ``amax`` and ``high``, float32, the larger of two is kept, of ``low``
the smaller; ``sum``, float64, and ``count``, int64, add up."""

_MERGE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "amax": torch.maximum,
    "high": torch.maximum,
    "low": torch.minimum,
    "sum": torch.add,
    "count": torch.add,
}


def merged(before: Ranges, after: Ranges) -> dict[str, Tensor]:
    """The ranges of both together; a tensor that only one of them holds stays as it is there.

    The order of the rollouts does not matter but for the rounding of sums.
    """
    names = dict.fromkeys([*before, *after])
    return {name: _both(name, before.get(name), after.get(name)) for name in names}


def finished(ranges: Ranges) -> dict[str, Tensor]:
    """The tensors of a calibration: sums become means, float32, contiguous, on the CPU.

    Raises:
        ValueError: a sum over nothing.
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
                    raise ValueError(f"{name} was never seen")
                tensors[f"{name}.mean"] = value / count
    return {name: value.float().cpu().contiguous() for name, value in sorted(tensors.items())}


def _both(name: str, before: Tensor | None, after: Tensor | None) -> Tensor:
    if before is None or after is None:
        found = before if after is None else after
        assert found is not None
        return found
    return _MERGE[name.partition("/")[0]](before, after)
