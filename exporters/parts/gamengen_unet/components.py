"""The components a GameNGen UNet is run as, and their signatures."""

import torch
from torch import Tensor, nn

from vidc.exporters.component import Component
from vidc.exporters.parts.gamengen_unet.network import LATENT_CHANNELS, GameNGenUnet
from vidc.exporters.parts.gamengen_unet.part import GameNGenUnetPart
from vidc.plugins.signature import DTYPE_NAMES, Access, Role, Signature, TensorSpec


class ConditionFrame(nn.Module):
    """Component ``condition_frame``: all that stays the same in every step of a frame."""

    def __init__(self, unet: GameNGenUnet) -> None:
        super().__init__()
        self.unet = unet

    def forward(self, timesteps: Tensor, *rest: Tensor) -> tuple[()]:
        """Writes the states ``action.kv`` and ``step.shifts``; arguments as in the signature."""
        *bucket, actions, keys_values, shifts = rest
        keys_values.copy_(self.unet.embedded_actions(actions))
        shifts.copy_(self.unet.embedded_times(timesteps, bucket[0] if bucket else None))
        return ()


class Denoise(nn.Module):
    """Component ``denoise``: one prediction for a step, or both predictions of guidance.

    Args:
        unet: the network.
        halves: 2 to predict without past latents, too; that prediction is the first.
        zeroed: channels of the past, from the oldest frame on, that are zeros in that prediction.
    """

    def __init__(self, unet: GameNGenUnet, halves: int, zeroed: int) -> None:
        super().__init__()
        self.unet = unet
        self.halves = halves
        self.zeroed = zeroed

    def forward(self, x: Tensor, step: Tensor, *rest: Tensor) -> tuple[Tensor]:
        """Returns v, float32 ``[halves, 4, h, w]``; arguments as in the signature."""
        *added, past, actions, shifts = rest
        sample = torch.cat([past + added[0] if added else past, x], 1)
        if self.halves == 2:
            kept = sample[:, self.zeroed :]
            without = torch.cat([torch.zeros_like(sample[:, : self.zeroed]), kept], 1)
            sample = torch.cat([without, sample])
        shift = shifts.index_select(0, step)
        velocity = self.unet(sample.to(self.unet.dtype), shift, actions)
        return (velocity.float(),)


def components(part: GameNGenUnetPart, unet: nn.Module) -> dict[str, Component]:
    """Returns ``condition_frame`` and ``denoise``, which share the parameters of ``unet``.

    The program shifts the states ``past``, float32 ``[1, 4 past, h, w]`` with the newest latent
    last, and ``actions``, float32 one-hot rows ``[1, past, actions]``.
    """
    assert isinstance(unet, GameNGenUnet)
    config = part.config
    latent = (LATENT_CHANNELS, *part.latent)
    past = (1, config.past * LATENT_CHANNELS, *part.latent)
    condition = Signature(
        (
            _input("timesteps", (part.steps,)),
            *((_input("bucket", (1,), "int64"),) if part.noised else ()),
            _state("actions", (1, config.past, config.actions), "float32", Access.READ),
            *_conditions(part, unet, Access.WRITE),
        )
    )
    denoise = Signature(
        (
            _input("x", (1, *latent)),
            _input("step", (1,), "int64"),
            *((_input("added", past),) if part.noised else ()),
            _state("past", past, "float32", Access.READ),
            *_conditions(part, unet, Access.READ),
            TensorSpec("velocity", (part.halves, *latent), "float32", Role.OUTPUT),
        )
    )
    module = Denoise(unet, part.halves, part.zeroed)
    return {
        "condition_frame": Component("condition_frame", ConditionFrame(unet), condition),
        "denoise": Component("denoise", module, denoise),
    }


def _conditions(
    part: GameNGenUnetPart, unet: GameNGenUnet, access: Access
) -> tuple[TensorSpec, ...]:
    """Returns the specs of what ``condition_frame`` computes for ``denoise``."""
    dtype, past = DTYPE_NAMES[unet.dtype], part.config.past
    return (
        _state("action.kv", (1, past, sum(unet.action_widths)), dtype, access),
        _state("step.shifts", (part.steps, sum(unet.shift_widths)), dtype, access),
    )


def _input(name: str, shape: tuple[int, ...], dtype: str = "float32") -> TensorSpec:
    return TensorSpec(name, shape, dtype, Role.INPUT)


def _state(name: str, shape: tuple[int, ...], dtype: str, access: Access) -> TensorSpec:
    return TensorSpec(name, shape, dtype, Role.STATE, access)
