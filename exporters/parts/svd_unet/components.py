"""The components a UNet is run as, and their signatures."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vidc.exporters.component import Component
from vidc.exporters.parts.svd_unet.config import IDS
from vidc.exporters.parts.svd_unet.network import LATENT_CHANNELS, Constants, SvdUnet
from vidc.exporters.parts.svd_unet.part import SvdUnetPart
from vidc.plugins.signature import DTYPE_NAMES, Access, Role, Signature, TensorSpec

_FIXED = ("clip.ids", "clip.weights")
_EACH = ("image.spatial", "image.temporal", "clip.frames")
"""States of each transformer."""


class Condition(nn.Module):
    """Component ``condition_clip``: all that stays the same in every step of a clip."""

    def __init__(self, unet: SvdUnet, halves: int) -> None:
        super().__init__()
        self.unet = unet
        self.halves = halves

    def forward(self, embeds: Tensor, ids: Tensor, *states: Tensor) -> tuple[()]:
        """Writes the states of ``Constants``.

        With guidance, the first half of each image vector is unconditional: its token is zeros.

        Args:
            embeds: CLIP embedding of the image, ``[1, 1, E]``.
            ids: frame rate less one, motion bucket and noise of the image, ``[1, 3]``.
            states: as in the signature.
        """
        unet = self.unet
        token = embeds[:, 0].to(unet.dtype)
        if self.halves == 2:
            token = torch.cat([torch.zeros_like(token), token])
        embedded, weights, *rest = states
        embedded.copy_(unet.embedded_ids(ids))
        weights.copy_(1 - torch.sigmoid(unet.mix_factors))
        groups = zip(rest[::3], rest[1::3], rest[2::3], strict=True)
        for transformer, (spatial, temporal, frames) in zip(unet.transformers, groups, strict=True):
            in_space, in_time = transformer.image_vectors(token)
            spatial.copy_(in_space)
            temporal.copy_(in_time)
            frames.copy_(transformer.frame_vectors(frames.shape[0]))
        return ()


class Denoise(nn.Module):
    """Component ``denoise``: one step's prediction, for all halves or for one of two.

    With DeepCache it also writes the state ``deep.features`` for ``Shallow``.
    """

    def __init__(self, unet: SvdUnet, one_half: bool, deep_cache: bool) -> None:
        super().__init__()
        self.unet = unet
        self.one_half = one_half
        self.deep_cache = deep_cache

    def forward(self, sample: Tensor, timestep: Tensor, *rest: Tensor) -> tuple[Tensor]:
        """Returns the prediction, float32 ``[B, T, 4, h, w]``; arguments as in the signature."""
        half, states = (rest[0], rest[1:]) if self.one_half else (None, rest)
        ids, weights, *each = states
        cached = [each.pop()] if self.deep_cache else []
        groups = _groups(each)
        if half is not None:
            groups = [
                (s.index_select(0, half), t.index_select(0, half), frames)
                for s, t, frames in groups
            ]
        constants = Constants(ids, weights, groups)
        result, features = self.unet(sample.to(self.unet.dtype), timestep, constants)
        for state in cached:
            state.copy_(features)
        return (result.float(),)


class Shallow(nn.Module):
    """Component ``denoise_shallow``: a step's prediction from an earlier step's deep features."""

    def __init__(self, unet: SvdUnet) -> None:
        super().__init__()
        self.unet = unet

    def forward(self, sample: Tensor, timestep: Tensor, *states: Tensor) -> tuple[Tensor]:
        """Returns the prediction, float32 ``[B, T, 4, h, w]``; arguments as in the signature."""
        ids, weights, *each, features = states
        constants = Constants(ids, weights, _groups(each))
        result = self.unet.shallow(sample.to(self.unet.dtype), timestep, constants, features)
        return (result.float(),)


def _groups(each: Sequence[Tensor]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Returns the states of each transformer."""
    return [*zip(each[::3], each[1::3], each[2::3], strict=True)]


def components(part: SvdUnetPart, unet: nn.Module) -> dict[str, Component]:
    """Returns the components of a part, which share the parameters of ``unet``."""
    assert isinstance(unet, SvdUnet)
    inputs = [
        TensorSpec("embeds", (1, 1, part.config.image_dim), "float32", Role.INPUT),
        TensorSpec("ids", (1, IDS), "float32", Role.INPUT),
    ]
    transformers = range(len([*unet.transformers]))
    condition = Signature((*inputs, *_states(part, unet, transformers, Access.WRITE)))
    batch, (height, width) = part.batch, part.latent
    shape = (batch, part.frames, LATENT_CHANNELS, height, width)
    one_half = part.halves > batch
    steps = [
        TensorSpec("sample", (*shape[:2], 2 * shape[2], *shape[3:]), "float32", Role.INPUT),
        TensorSpec("timestep", (1,), "float32", Role.INPUT),
        *([TensorSpec("half", (1,), "int64", Role.INPUT)] if one_half else []),
    ]
    velocity = TensorSpec("velocity", shape, "float32", Role.OUTPUT)
    constants = _states(part, unet, transformers, Access.READ)
    cache = [_features(part, unet, Access.WRITE)] if part.deep_cache else []
    denoise = Signature((*steps, *constants, *cache, velocity))
    found = {
        "condition_clip": Component("condition_clip", Condition(unet, part.halves), condition),
        "denoise": Component("denoise", Denoise(unet, one_half, part.deep_cache), denoise),
    }
    if part.deep_cache:
        few = _states(part, unet, unet.shallow_transformers, Access.READ)
        shallow = Signature((*steps, *few, _features(part, unet, Access.READ), velocity))
        found["denoise_shallow"] = Component("denoise_shallow", Shallow(unet), shallow)
    return found


def _features(part: SvdUnetPart, unet: SvdUnet, access: Access) -> TensorSpec:
    """Returns the spec of what the last up block gets from the one before."""
    shape = (part.batch * part.frames, part.config.channels[1], *part.latent)
    return TensorSpec("deep.features", shape, DTYPE_NAMES[unet.dtype], Role.STATE, access)


def _states(
    part: SvdUnetPart, unet: SvdUnet, places: Sequence[int], access: Access
) -> list[TensorSpec]:
    """Returns the specs of the clip's constants, in the order of ``Constants``.

    Args:
        part: the UNet's.
        unet: the network.
        places: indices of the transformers that are run.
        access: the component's access to the states.
    """
    dtype = DTYPE_NAMES[unet.dtype]
    sizes = ((1, part.config.time_dim), tuple(unet.mix_factors.shape))
    shapes = dict(zip(_FIXED, sizes, strict=True))
    transformers = [*unet.transformers]
    for index in places:
        transformer = transformers[index]
        rows = (part.halves, part.halves, part.frames)
        shapes |= {
            f"{name}.{index}": (count, transformer.channels)
            for name, count in zip(_EACH, rows, strict=True)
        }
    return [TensorSpec(n, shape, dtype, Role.STATE, access) for n, shape in shapes.items()]
