"""Wan's decoder with its layers at full resolution in chunks of frames.

Activations are largest there: at 480x832, 12 frames of 96 channels take 920 MB in fp16, and an
engine holds five times that. The convolutions are causal and carry their last input frames from
chunk to chunk as from block to block, so chunks change no result.
"""

from typing import Any

import torch
from torch import Tensor, nn


def decode_in_chunks(
    decoder: nn.Module, frames: int, x: Tensor, feat_cache: list[Any], feat_idx: list[int]
) -> Tensor:
    """Returns what ``decoder(x, feat_cache, feat_idx)`` returns.

    Args:
        decoder: diffusers' ``WanDecoder3d``.
        frames: video frames of a chunk.
        x: latents ``[B, C, F, h, w]``.
        feat_cache: memory of the causal convolutions, in the order in which they run.
        feat_idx: index of the next entry of ``feat_cache``.
    """
    parts: Any = decoder
    x = _causal(parts.conv_in, x, feat_cache, feat_idx)
    x = parts.mid_block(x, feat_cache=feat_cache, feat_idx=feat_idx)
    layers = [
        layer for block in parts.up_blocks for layer in (*block.resnets, *(block.upsamplers or ()))
    ]
    early = len(layers) - len(parts.up_blocks[-1].resnets) - 1
    for layer in layers[:early]:
        x = layer(x, feat_cache=feat_cache, feat_idx=feat_idx)
    start, outputs = feat_idx[0], []
    for chunk in x.split(frames, dim=2):
        feat_idx[0] = start
        for layer in layers[early:]:
            chunk = layer(chunk, feat_cache=feat_cache, feat_idx=feat_idx)
        chunk = parts.nonlinearity(parts.norm_out(chunk))
        outputs.append(_causal(parts.conv_out, chunk, feat_cache, feat_idx))
    return torch.cat(outputs, dim=2)


def _causal(
    convolution: nn.Module, x: Tensor, feat_cache: list[Any], feat_idx: list[int]
) -> Tensor:
    """Runs a causal convolution and leaves the last two frames of its input in ``feat_cache``."""
    index = feat_idx[0]
    past = feat_cache[index]
    last = x[:, :, -2:].clone()
    if last.shape[2] < 2 and past is not None:
        last = torch.cat([past[:, :, -1:], last], dim=2)
    result: Tensor = convolution(x, past)
    feat_cache[index] = last
    feat_idx[0] += 1
    return result
