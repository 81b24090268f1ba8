"""A batch of clips for one forward: clean, recached and noisy groups in one sequence."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from demo_model.tokens import END, PAD
from demo_model.training.clips import mask_of
from demo_model.training.flow import draw_levels, noised, timesteps
from demo_model.training.forward import (
    Angles,
    KeysValues,
    LayerFunction,
    Sight,
    forward,
    text_keys_values,
)
from demo_model.training.layout import LayoutTensors
from demo_model.training.shelves import Shelf
from vidc.exporters.parts.causal_wan.network import CausalWan


@dataclass(frozen=True)
class Networks:
    """What is trained on latents, and what it needs beside them.

    Attributes:
        transformer: float32.
        text: the text encoder's component.
        angles: of every block that a clip may have.
        layer: see ``forward``.
    """

    transformer: CausalWan
    text: nn.Module
    angles: Angles
    layer: LayerFunction | None = None

    def embeds(self, tokens: Tensor) -> Tensor:
        """Embeddings ``[B, P, L, E]`` of prompts ``[B, P, L]``."""
        flat = tokens.flatten(0, 1)
        (embeds,) = self.text(flat, mask_of(flat))
        result: Tensor = embeds.unflatten(0, tokens.shape[:2])
        return result


@dataclass(frozen=True)
class Batch:
    """Rows of a shelf.

    Attributes:
        latents: clean, float32 ``[B, blocks, F, C, h, w]``.
        shown: where an object is, bool ``[B, blocks, F, h, w]``.
        tokens: int64 ``[B, 2, L]``.
        groups: of their layout.
        switched: whether the two prompts differ.
    """

    latents: Tensor
    shown: Tensor
    tokens: Tensor
    groups: LayoutTensors
    switched: bool

    def with_tokens(self, tokens: Tensor) -> "Batch":
        """The same clips under other prompts."""
        return replace(self, tokens=tokens)

    @property
    def prompts(self) -> Tensor:
        """Tokens ``[B, P, L]`` of as many prompts as a clip has."""
        return self.tokens if self.switched else self.tokens[:, :1]


def draw_batch(shelf: Shelf, size: int, draw: torch.Generator) -> Batch:
    """``size`` different rows of a shelf, or all it has."""
    rows = torch.randperm(len(shelf.latents), generator=draw, device=draw.device)[:size]
    return Batch(
        shelf.latents[rows].float(),
        shelf.shown[rows],
        shelf.tokens[rows],
        shelf.groups,
        shelf.layout.switch is not None,
    )


def without_prompt(tokens: Tensor, share: float, draw: torch.Generator) -> Tensor:
    """Tokens ``[B, P, L]`` of which a share of rows became the empty prompt."""
    empty = torch.full_like(tokens, PAD)
    empty[..., 0] = END
    chosen = torch.rand(len(tokens), generator=draw, device=draw.device) < share
    return torch.where(chosen[:, None, None], empty, tokens)


def flows_of(
    networks: Networks,
    groups: LayoutTensors,
    blocks: Tensor,
    noisy: Tensor,
    level: Tensor,
    text: Sequence[KeysValues],
) -> Tensor:
    """Flows ``[B, N, F, C, h, w]`` of all noisy groups, in one forward.

    Args:
        networks: see there.
        groups: of a layout.
        blocks: what clean and recached groups hold of each block, ``[B, blocks, F, C, h, w]``.
        noisy: what noisy groups hold, ``[B, N, F, C, h, w]``.
        level: share of noise of these, ``[B, N]``.
        text: see ``text_keys_values``.
    """
    latents = blocks[:, groups.index]
    latents[:, groups.noisy] = noisy
    times = torch.zeros(latents.shape[:2], device=latents.device)
    times[:, groups.noisy] = timesteps(level)
    flows, _ = forward(
        networks.transformer,
        latents,
        times,
        networks.angles(groups.blocks),
        text,
        Sight(groups.keys, groups.visible, groups.prompt, groups.full),
        flow_of=groups.noisy,
        layer=networks.layer,
    )
    return flows


def flow_loss(
    networks: Networks,
    batch: Batch,
    shift: float,
    emphasis: float,
    disturbance: float,
    draw: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Mean square errors of the flows of all noisy groups: as it is taught, and as it is.

    Args:
        networks: see there.
        batch: of clips.
        shift: of the sampler.
        emphasis: how much more, at most, an error counts where an object is: objects are a tenth of
            a picture, and of the rest much is texture that noise leaves open. It grows as noise
            falls. Where noise leaves open whether there is an object, the mean that is learnt would
            be drawn toward there being one.
        disturbance: most deviation of the noise on a clip's history. A history that the model
            made is never exact, and one that has only seen exact ones would follow its own errors.
        draw: of everything random.
    """
    clean, device = batch.latents, draw.device
    count = len(clean)

    def normal(shape: torch.Size) -> Tensor:
        return torch.randn(shape, generator=draw, device=device)

    strength = disturbance * torch.rand(count, generator=draw, device=device)
    # Of a block, not of a group: what is recached is the very latent that was clean before.
    disturbed = clean + strength.view(-1, 1, 1, 1, 1, 1) * normal(clean.shape)
    noisy = batch.groups.index[batch.groups.noisy]
    wanted = clean[:, noisy]
    level = draw_levels((count, len(noisy)), shift, draw)
    noise = normal(wanted.shape)
    text = text_keys_values(networks.transformer, networks.embeds(batch.prompts))
    flows = flows_of(networks, batch.groups, disturbed, noised(wanted, noise, level), level, text)
    square = (flows - (noise - wanted)).square()
    shown = batch.shown[:, noisy, :, None]
    weight = 1 + emphasis * (1 - level)[:, :, None, None, None, None] * shown
    return (weight * square).mean(), square.mean().detach()
