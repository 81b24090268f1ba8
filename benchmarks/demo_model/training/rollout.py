"""A stream without gradients: the calls of a session, over many videos and levels at once.

What a session keeps in its ring is kept here as tensors, one for each block.
"""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from demo_model.training.batches import Networks
from demo_model.training.flow import clean_of, noised, timesteps
from demo_model.training.forward import KeysValues, Sight, forward
from demo_model.training.layout import in_ring, recached
from vidc.runtime.programs.stream import StreamSpec


class Stream:
    """Videos of a batch, block by block.

    Args:
        networks: see there.
        spec: of the stream; its sink and window are whole blocks.
        text: keys and values of prompts, as ``text_keys_values`` gives them.
    """

    def __init__(self, networks: Networks, spec: StreamSpec, text: Sequence[KeysValues]) -> None:
        self._networks = networks
        self._spec = spec
        self._text = text
        self._prompt = 0
        self._kept: dict[int, list[KeysValues]] = {}
        self._latents: dict[int, Tensor] = {}

    def flows(self, latents: Tensor, levels: Tensor, block: int) -> Tensor:
        """Flows of G noisy versions of a block, none of which sees another.

        Args:
            latents: ``[B, G, F, C, h, w]``.
            levels: shares of noise, ``[B, G]``.
            block: absolute.
        """
        past = [b for b in in_ring(block, self._spec) if b != block and b in self._kept]
        groups = latents.shape[1]
        own = torch.arange(groups)[:, None] + len(past)
        keys = torch.cat([torch.arange(len(past)).expand(groups, -1), own], 1)
        flows, _ = self._forward(latents, timesteps(levels), [block] * groups, keys, past)
        return flows

    def remember(self, latent: Tensor, block: int) -> None:
        """Takes a clean latent ``[B, F, C, h, w]`` as a block of the stream."""
        past = [b for b in in_ring(block, self._spec) if b != block and b in self._kept]
        keys = torch.arange(len(past) + 1)[None]
        self._write([block], latent[:, None], keys, past)
        for old in self._kept.keys() - set(in_ring(block, self._spec)):
            del self._kept[old], self._latents[old]

    def switch_prompt(self, block: int) -> None:
        """The next prompt, before ``block``: the window is computed again, the sink stays."""
        self._prompt += 1
        known = [b for b in recached(block, self._spec) if b in self._kept]
        if not known:
            return
        past = [b for b in in_ring(known[-1], self._spec) if b in self._kept and b not in known]
        keys = torch.arange(len(past) + len(known)).expand(len(known), -1)
        latents = torch.stack([self._latents[b] for b in known], 1)
        self._write(known, latents, keys, past)

    def _write(
        self, blocks: Sequence[int], latents: Tensor, keys: Tensor, past: Sequence[int]
    ) -> None:
        levels = torch.zeros(latents.shape[:2], device=latents.device)
        _, made = self._forward(latents, levels, blocks, keys, past)
        for index, block in enumerate(blocks):
            self._kept[block] = [
                (k[:, index : index + 1], v[:, index : index + 1]) for k, v in made
            ]
            self._latents[block] = latents[:, index]

    @torch.no_grad()
    def _forward(
        self,
        latents: Tensor,
        times: Tensor,
        blocks: Sequence[int],
        keys: Tensor,
        past: Sequence[int],
    ) -> tuple[Tensor, list[KeysValues]]:
        device = latents.device
        networks = self._networks
        history = None
        if past:
            layers = range(len(self._kept[past[0]]))
            history = [
                (
                    torch.cat([self._kept[b][i][0] for b in past], 1),
                    torch.cat([self._kept[b][i][1] for b in past], 1),
                )
                for i in layers
            ]
        prompt = torch.full((len(blocks),), self._prompt, device=device)
        keys = keys.to(device)
        sight = Sight(keys, torch.ones_like(keys, dtype=torch.bool), prompt, full=True)
        rope = networks.angles(torch.tensor(list(blocks), device=device))
        return forward(
            networks.transformer, latents, times, rope, self._text, sight, history,
            layer=networks.layer,
        )  # fmt: skip


def few_steps(
    stream: Stream, noise: Tensor, levels: Sequence[float], block: int
) -> list[tuple[Tensor, Tensor]]:
    """A block as a session samples it.

    Args:
        stream: where it comes next.
        noise: ``[S, B, F, C, h, w]``, one entry a step.
        levels: share of noise of each step, falling from 1.
        block: absolute.

    Returns:
        Of each step the latent that it began with and the clean one that it found, each
        ``[B, F, C, h, w]``; the last one found is the block.
    """
    steps = []
    latent = noise[0]
    for index, level in enumerate(levels):
        shares = torch.full((latent.shape[0], 1), level, device=latent.device)
        if index:
            latent = noised(latent, noise[index], shares[:, 0])
        clean = clean_of(latent, stream.flows(latent[:, None], shares, block)[:, 0], shares[:, 0])
        steps.append((latent, clean))
        latent = clean
    return steps


def follow_flow(
    stream: Stream,
    latent: Tensor,
    levels: Sequence[float],
    block: int,
    without: Stream | None = None,
    guidance: float = 1.0,
) -> Tensor:
    """Where a flow leads a noisy latent ``[B, F, C, h, w]``, in Heun's steps between levels.

    Args:
        stream: whose network's flow.
        latent: at the first of the levels.
        levels: shares of noise, falling, the last 0.
        block: absolute.
        without: the same stream under no prompt.
        guidance: how much further than without a prompt to go; 1 needs no ``without``.
    """

    def flow(at: Tensor, level: float) -> Tensor:
        shares = torch.full((len(at), 1), level, device=at.device)
        found = stream.flows(at[:, None], shares, block)[:, 0]
        if without is None or guidance == 1.0:
            return found
        plain = without.flows(at[:, None], shares, block)[:, 0]
        return plain + guidance * (found - plain)

    for level, lower in itertools.pairwise(levels):
        first = flow(latent, level)
        ahead = latent + (lower - level) * first
        if lower > 0:
            first = (first + flow(ahead, lower)) / 2
        latent = latent + (lower - level) * first
    return latent
