"""Checks of what callers give to a world: actions and the frames it starts from."""

import torch
from torch import Tensor
from torch.nn import functional

from vidc.plugins.errors import UsageError
from vidc.runtime.inputs import Input
from vidc.runtime.programs.action_spec import ActionSpec
from vidc.runtime.programs.pixels import COLORS
from vidc.runtime.programs.spec import ProgramSpec

ACTIONS = Input("actions", "VIDC-SESSION-ACTIONS", "give one value for each of the model's inputs")
NOISE = Input(
    "noise",
    "VIDC-SESSION-NOISE",
    "give the frame's draws, flattened one after the other: [1, values]",
)
FRAME = Input("latent", "VIDC-SESSION-LATENT", "pass a frame as generate returns it")
_START_HINT = "pass uint8, or floating point from -1 to 1, in the sizes of the bundle's model"


def action_of(
    value: object, spec: ActionSpec, shape: tuple[int, ...], device: torch.device
) -> Tensor:
    """Returns one or several actions in float32, on the device they are on.

    Args:
        value: actions of any dtype. For one-hot actions also indices: an int, or integers without
            the last dimension.
        spec: of the model.
        shape: expected; the last dimension counts an action's inputs.
        device: of the session.

    Raises:
        UsageError: ``VIDC-SESSION-ACTIONS``, ``VIDC-SESSION-FINITE``.
    """
    if spec.one_hot:
        value = _one_hot(value, spec.actions, len(shape) - 1)
    if type(value) is Tensor and not value.is_floating_point() and not value.is_complex():
        value = value.float()
    actions = ACTIONS.checked(value, shape, torch.float32, device)
    _require_values(actions, spec.movements)
    if spec.one_hot and not bool((actions.sum(-1) == 1).all()):
        raise UsageError(
            "VIDC-SESSION-ACTIONS",
            "the model takes one action at a time, and an action has none or several inputs at 1",
            f"pass a row of torch.eye({spec.actions})",
        )
    return actions


def _require_values(actions: Tensor, movements: tuple[int, ...]) -> None:
    """Refuses values other than 0 and 1; of movements, those beyond -1 to 1."""
    moves = torch.zeros(actions.shape[-1], dtype=torch.bool, device=actions.device)
    moves[list(movements)] = True
    pressed = (actions == 0) | (actions == 1)
    if bool(torch.where(moves, actions.abs() <= 1, pressed).all()):
        return
    what, hint = "actions have values other than 0 and 1", ""
    if movements:
        shown = ", ".join(map(str, movements))
        what += f", or beyond -1 to 1 in inputs {shown}"
        hint = f"; inputs {shown} are movements, from -1 to 1"
    raise UsageError(
        "VIDC-SESSION-ACTIONS",
        what,
        f"each input is a key, a button or a bin: 1 if it is pressed, else 0{hint}",
    )


def _one_hot(value: object, inputs: int, dimensions: int) -> object:
    """Returns indices of actions as rows with a 1; anything else as it is."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = torch.tensor(value)
    integers = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
    if type(value) is not Tensor or value.dtype not in integers or value.ndim != dimensions:
        return value
    if bool(((value < 0) | (value >= inputs)).any()):
        raise UsageError(
            "VIDC-SESSION-ACTIONS",
            f"an action is outside 0 to {inputs - 1}",
            f"the model takes {inputs} actions",
        )
    return functional.one_hot(value.long(), inputs).float()


def pixels_of(
    name: str,
    value: object,
    shape: tuple[int, ...] | None,
    device: torch.device,
    finite: bool = True,
) -> Tensor:
    """Returns frames in float32 from -1 to 1.

    Args:
        name: in messages.
        value: uint8, or floating point from -1 to 1.
        shape: expected; None if the caller has checked it.
        device: of the session.
        finite: True to refuse NaN and infinities, too.

    Raises:
        UsageError: ``VIDC-SESSION-START``, ``VIDC-SESSION-FINITE``.
    """
    if type(value) is Tensor and value.dtype is torch.uint8:
        value = value.float().div(255).mul(2).sub(1)
    expected = tuple(value.shape) if shape is None and isinstance(value, Tensor) else shape or ()
    start = Input(name, "VIDC-SESSION-START", _START_HINT)
    frames = start.checked(value, expected, torch.float32, device, finite)
    if bool(((frames.abs() > 1) & frames.isfinite()).any()):
        raise UsageError("VIDC-SESSION-START", f"{name} has values outside -1 to 1", _START_HINT)
    return frames


def images_of(value: object, spec: ProgramSpec, needed: int) -> Tensor:
    """Returns images as uint8 ``[needed, 3, H, W]``; the first one is repeated if there are fewer.

    Raises:
        UsageError: ``VIDC-SESSION-START``, not uint8 ``[n, H, W, 3]`` of the model's size.
    """
    size = (*spec.frame_size, COLORS)
    if (
        type(value) is not Tensor
        or value.dtype is not torch.uint8
        or value.ndim != 4
        or len(value) == 0
        or tuple(value.shape[1:]) != size
    ):
        found = f"{value.dtype}{[*value.shape]}" if isinstance(value, Tensor) else type(value)
        raise UsageError(
            "VIDC-SESSION-START",
            f"images are {found}, expected uint8 [n, {', '.join(map(str, size))}]",
            "resize them to the size of the model's frames",
        )
    images = value[-needed:].permute(0, 3, 1, 2)
    return torch.cat([images[:1].expand(needed - len(images), -1, -1, -1), images])
