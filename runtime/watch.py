"""Watch over engines' results for values that are not finite, without waiting for the device."""

import math

import torch
from torch import Tensor

from vidc.plugins.errors import GateError
from vidc.runtime.inputs import extremes


class Watch:
    """Remembers on the device whether any result was NaN or infinite.

    Each look is copied to memory of the host, which is read as far as the device has come.

    Args:
        name: of the results.
        device: of them.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        self._name = name
        self._seen = torch.zeros(2, dtype=torch.float32, device=device)
        """Zeros, or NaN for ever."""
        self._known = self._seen
        if device.type == "cuda":
            self._known = torch.zeros(2, dtype=torch.float32, device="cpu", pin_memory=True)

    def look(self, results: Tensor) -> None:
        """Looks at results on the current stream."""
        # 0 times NaN or infinity is NaN.
        self._seen.add_(extremes(results), alpha=0)
        if self._known is not self._seen:
            self._known.copy_(self._seen, non_blocking=True)

    def check(self) -> None:
        """Raises what is known of the results so far.

        Raises:
            GateError: ``VIDC-SESSION-NOT-FINITE``.
        """
        if not all(map(math.isfinite, self._known.tolist())):
            raise GateError(
                "VIDC-SESSION-NOT-FINITE",
                f"the engines gave {self._name} that are NaN or infinite, and so would be all "
                "that follow",
                "session.reset(seed=...) starts anew; `vidc validate` tests the bundle",
            )

    def clear(self) -> None:
        """Forgets all results on the current stream, after it has come to them."""
        self._seen.zero_()
        if self._known is not self._seen:
            self._known.copy_(self._seen)
