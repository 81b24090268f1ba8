"""Detection of NaN and infinities in engines' results, without waiting for the device."""

import math

import torch
from torch import Tensor

from vidc.plugins.errors import GateError
from vidc.runtime.inputs import extremes


class Watch:
    """Flag on the device that turns NaN once a result was NaN or infinite.

    On a GPU, each ``look`` also queues a copy of the flag to pinned memory. ``check`` reads that
    copy without waiting, so it may miss results that the device has not computed yet.

    Args:
        name: name of the results, for messages.
        device: device of the results.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        self._name = name
        self._seen = torch.zeros(2, dtype=torch.float32, device=device)
        """Zeros; NaN after the first result that was not finite, until ``clear``."""
        self._known = self._seen
        if device.type == "cuda":
            self._known = torch.zeros(2, dtype=torch.float32, device="cpu", pin_memory=True)

    def look(self, results: Tensor) -> None:
        """Queues the check of results on the current stream."""
        # 0 times NaN or infinity is NaN.
        self._seen.add_(extremes(results), alpha=0)
        if self._known is not self._seen:
            self._known.copy_(self._seen, non_blocking=True)

    def check(self) -> None:
        """Raises an error if a result that the device has finished was not finite.

        Raises:
            GateError: ``VIDC-SESSION-NOT-FINITE``.
        """
        if not all(map(math.isfinite, self._known.tolist())):
            raise GateError(
                "VIDC-SESSION-NOT-FINITE",
                f"the engines computed {self._name} that are NaN or infinite, and all later ones "
                "would be, too",
                "session.reset(seed=...) starts anew; `vidc validate` tests the bundle",
            )

    def clear(self) -> None:
        """Forgets all earlier results; on a GPU, waits for the current stream."""
        self._seen.zero_()
        if self._known is not self._seen:
            self._known.copy_(self._seen)
