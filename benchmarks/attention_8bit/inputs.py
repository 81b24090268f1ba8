"""The fixed inputs that 8-bit attention is measured on: outlying keys, peaked logits, sinks.

``draw`` makes, for every batch row alike and for each head on its own:

- keys ``k = f * (4 s + n)``: ``n`` is standard normal, ``s`` a random sign for each channel, so
  that a channel's mean is 4 of its standard deviations, ``f`` is 1, or 20 for one channel in a
  hundred of all heads together. Outlying channels come in RoPE's pairs ``(2i, 2i + 1)``: keys are
  cached after RoPE, which mixes the two.
- queries: standard normal, plus one standard normal vector that all queries of a head share, and
  scaled row by row so that a row's logits over the keys have a standard deviation drawn evenly from
  0.5 to 2, in nats.
- peaks: every fourth query is drawn toward a random key of its own, whose logit rises by 8.
- sinks: the keys of the first four slots are the head's mean key plus as much of its mean query as
  gives the head's mean logit over queries 8 more than an ordinary key's. Their values are ordinary.
- values: ``v = g * (z + c)``: ``z`` is standard normal, ``c`` a normal offset of the channel with
  standard deviation 0.25, ``g = exp(normal / 2)`` the channel's scale.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

SEED = 20
OUTLIER = 20.0
OUTLIERS = 0.01
MEAN = 4.0
SPREADS = (0.5, 2.0)
PEAK = 8.0
PEAK_EVERY = 4
SINK = 8.0
SINKS = 4
OFFSET = 0.25


@dataclass(frozen=True)
class Inputs:
    """Queries ``[B, T, H, D]``, keys and values ``[B, S, H, D]``, float32."""

    query: Tensor
    key: Tensor
    value: Tensor


def draw(
    queries: int, slots: int, heads: int, head_dim: int, batch: int = 1, seed: int = SEED
) -> Inputs:
    """Draws the inputs that this module describes, on the CPU, the same on every machine."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    pairs = heads * head_dim // 2
    factor = torch.ones(pairs)
    factor[torch.randperm(pairs, generator=generator)[: max(1, round(OUTLIERS * pairs))]] = OUTLIER
    factor = factor.repeat_interleave(2).view(heads, head_dim)
    mean = factor * MEAN * normal(heads, head_dim).sign()
    shared = normal(heads, head_dim)
    gain = torch.exp(normal(heads, head_dim) / 2)
    offset = OFFSET * normal(heads, head_dim)

    noise = normal(batch, slots, heads, head_dim)
    query = normal(batch, queries, heads, head_dim) + shared
    low, high = SPREADS
    spread = low + (high - low) * torch.rand(batch, queries, heads, 1, generator=generator)
    # The noise is white, so that a row's logits have this standard deviation before it is scaled.
    query *= spread / ((query * factor).norm(dim=3, keepdim=True) / math.sqrt(head_dim))

    sought = torch.randint(slots, (queries,), generator=generator)[::PEAK_EVERY]
    target = noise[:, sought]
    reach = PEAK * math.sqrt(head_dim) / target.square().sum(3, keepdim=True)
    query[:, ::PEAK_EVERY] += reach * target / factor

    toward = query.mean(dim=1, keepdim=True)
    lift = SINK * math.sqrt(head_dim) / toward.square().sum(3, keepdim=True)
    key = mean + factor * noise
    key[:, :SINKS] = mean + lift * toward
    value = gain * (normal(batch, slots, heads, head_dim) + offset)
    return Inputs(query, key, value)
