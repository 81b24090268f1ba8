"""Checks of what callers give to a session: numbers and tensors."""

import math
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from vidc.plugins.arguments import dtype_name
from vidc.plugins.errors import UsageError

_LIMIT = 2**63


@dataclass(frozen=True)
class Input:
    """A tensor that callers give to a session.

    Attributes:
        name: its name in messages.
        code: code of the error for anything but a dense tensor of the expected shape, of a float
            dtype, on the CPU or the session's device.
        hint: what to try if the shape is wrong.
    """

    name: str
    code: str
    hint: str

    def checked(
        self,
        value: object,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        finite: bool = True,
    ) -> Tensor:
        """Returns the value as a tensor of ``dtype``, on its own device.

        Args:
            value: what the caller gave.
            shape: expected.
            dtype: dtype of the result; a value of any float dtype is accepted.
            device: device of the session; a tensor on the CPU is accepted too.
            finite: True to refuse NaN and infinities, too; this waits for a tensor on a GPU.

        Raises:
            UsageError: ``code``; ``VIDC-SESSION-FINITE``.
        """
        if type(value) is not Tensor:
            shown, hint = _kind(value), "pass a torch.Tensor"
        else:
            shown = f"{dtype_name(value.dtype)}{list(value.shape)} on {value.device}"
            hint = self._problem(value, shape, device)
        if hint:
            raise UsageError(
                self.code,
                f"{self.name} is {shown}, expected floating point {list(shape)} on "
                + " or ".join(dict.fromkeys(("cpu", str(device)))),
                hint,
            )
        assert isinstance(value, Tensor)
        converted = value.to(dtype)
        if finite and not is_finite(converted):
            raise UsageError(
                "VIDC-SESSION-FINITE",
                f"{self.name} has values that are NaN or infinite in {dtype_name(dtype)}",
                "compute it again without overflow; x.isfinite().logical_not().nonzero() shows "
                "which values they are",
            )
        return converted

    def _problem(self, value: Tensor, shape: tuple[int, ...], device: torch.device) -> str:
        """Returns what to try for a tensor that is refused; empty if it is accepted."""
        if value.layout is not torch.strided:
            return "pass a dense tensor: x.to_dense()"
        if value.device.type != "cpu" and value.device not in (device, here(device)):
            return f'pass x.to("{device}") or x.cpu()'
        if not value.is_floating_point():
            return "pass x.float()"
        if not _has_memory(value):
            return "pass x.clone() outside of torch.func, before its memory is freed"
        if value.requires_grad:
            return "pass x.detach(): it requires a gradient, and engines compute none"
        return self.hint if tuple(value.shape) != shape else ""


def _has_memory(value: Tensor) -> bool:
    """Returns False for a tensor of torch.func, and for one whose storage was freed."""
    try:
        return not value.numel() or value.data_ptr() != 0
    except RuntimeError:
        return False


NOISE = Input(
    "noise",
    "VIDC-SESSION-NOISE",
    "give one entry a denoising step: [steps, batch, frames, channels, h, w]",
)
LATENT = Input("latent", "VIDC-SESSION-LATENT", "pass a latent as generate returns it")
PROMPT = Input(
    "prompt",
    "VIDC-PROMPT-SHAPE",
    "pad the prompt's embeddings with zeros to the bundle's text length",
)


def here(device: torch.device) -> torch.device:
    """Returns a device with its index: of a GPU without one, the current GPU's."""
    if device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", torch.cuda.current_device())


def require_frames(value: object, device: torch.device) -> None:
    """Refuses anything but a tensor on the session's device.

    Raises:
        UsageError: ``VIDC-SESSION-FRAMES``.
    """
    if type(value) is not Tensor or value.device not in (device, here(device)):
        where = f" on {value.device}" if isinstance(value, Tensor) else ""
        raise UsageError(
            "VIDC-SESSION-FRAMES",
            f"frames are {_kind(value)}{where}, expected a tensor on {device}",
            "pass frames as step or decode returns them",
        )


def checked_number(value: object, name: str) -> int:
    """Returns a whole number from 0 to ``2**63 - 1``, such as a seed; accepts numpy's integers.

    Raises:
        UsageError: ``VIDC-SESSION-NUMBER``.
    """
    if isinstance(value, Integral) and not isinstance(value, bool) and 0 <= int(value) < _LIMIT:
        return int(value)
    shown = value if isinstance(value, int | float) else _kind(value)
    raise UsageError(
        "VIDC-SESSION-NUMBER",
        f"{name} is {str(shown)[:60]}, expected a whole number from 0 to {_LIMIT - 1}",
        f"such as {name}=7",
    )


def extremes(tensor: Tensor) -> Tensor:
    """Returns the least and the largest value, ``[2]``: finite only if all values are.

    One pass over the values. ``isfinite`` and ``all`` take 40 times as long on a CPU.
    """
    return torch.stack(torch.aminmax(tensor))


def is_finite(tensor: Tensor) -> bool:
    """Returns True if no value is NaN or infinite; waits for a tensor on a GPU."""
    return all(map(math.isfinite, extremes(tensor).tolist()))


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__module__}.{type(value).__qualname__}"
