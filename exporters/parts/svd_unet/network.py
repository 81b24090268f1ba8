"""The UNet of Stable Video Diffusion, under the parameter names of diffusers.

diffusers' ``UNetSpatioTemporalConditionModel`` is the reference. Tensors that depend on the image,
the conditioning numbers and the weights alone are arguments here: component ``condition_clip``
computes them once a clip.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vidc.exporters.parts.spatio_temporal import (
    Conv2d,
    Downsampler,
    GroupNorm,
    ResBlock,
    Upsampler,
)
from vidc.exporters.parts.svd_unet.config import IDS, UnetConfig
from vidc.exporters.parts.svd_unet.layers import Embedding, Transformer, sinusoid

LATENT_CHANNELS = 4


@dataclass(frozen=True)
class Constants:
    """Tensors that stay the same in all steps of a clip, in the network's dtype.

    Attributes:
        ids: embedded conditioning numbers, ``[1, E]``.
        weights: weight of the temporal branch of every mixer, ``[mixers]``, in their order.
        transformers: for each transformer, the vectors that its two cross-attentions add,
            ``[B, C]`` each, and those of the frames' places, ``[T, C]``.
    """

    ids: Tensor
    weights: Tensor
    transformers: Sequence[tuple[Tensor, Tensor, Tensor]]


class _Block(nn.Module):
    """Residual blocks of one resolution, each with a transformer if the resolution has them."""

    resnets: Any
    attentions: Any

    def __init__(
        self,
        inputs: Sequence[int],
        outputs: int,
        config: UnetConfig,
        heads: int | None,
        eps: float,
    ) -> None:
        super().__init__()
        time = config.time_dim
        self.resnets = nn.ModuleList(ResBlock(c, outputs, time, eps, eps) for c in inputs)
        if heads is not None:
            self.attentions = nn.ModuleList(
                Transformer(outputs, heads, config.image_dim) for _ in inputs
            )

    @property
    def transformers(self) -> Sequence[Transformer | None]:
        """The transformer behind each residual block."""
        if "attentions" in dict(self.named_children()):
            return [*self.attentions]
        return [None] * len(self.resnets)

    @property
    def mixers(self) -> int:
        """Number of mixers: one in each residual block and transformer."""
        return len(self.resnets) + sum(each is not None for each in self.transformers)


class _Pass:
    """One run of the network: hands every block its constants, in the order of the blocks."""

    def __init__(self, constants: Constants, time: Tensor, frames: int) -> None:
        self.time = F.silu(time)
        self.frames = frames
        self.weights = iter(constants.weights.unbind())
        self.transformers = iter(constants.transformers)

    def resnet(self, block: ResBlock, x: Tensor) -> Tensor:
        """Runs a residual block on ``[B * T, C, H, W]``."""
        result: Tensor = block(x, self.frames, next(self.weights), self.time)
        return result

    def transformer(self, block: Transformer, x: Tensor) -> Tensor:
        """Runs a transformer on ``[B * T, C, H, W]``."""
        result: Tensor = block(x, *next(self.transformers), next(self.weights))
        return result

    def down(self, block: _Block, x: Tensor, skips: list[Tensor]) -> Tensor:
        """Runs a resolution on the way down, without its downsampler, and adds to ``skips``."""
        for resnet, transformer in zip(block.resnets, block.transformers, strict=True):
            x = self.resnet(resnet, x)
            x = x if transformer is None else self.transformer(transformer, x)
            skips.append(x)
        return x

    def up(self, block: _Block, x: Tensor, skips: list[Tensor]) -> Tensor:
        """Runs a resolution on the way up, without its upsampler, and takes from ``skips``."""
        for resnet, transformer in zip(block.resnets, block.transformers, strict=True):
            x = self.resnet(resnet, torch.cat([x, skips.pop()], 1))
            x = x if transformer is None else self.transformer(transformer, x)
        return x


class SvdUnet(nn.Module):
    """The network.

    Args:
        config: its sizes.
    """

    def __init__(self, config: UnetConfig) -> None:
        super().__init__()
        self.config = config
        channels, heads, layers = config.channels, config.heads, config.layers
        self.conv_in = Conv2d(2 * LATENT_CHANNELS, channels[0], 3, padding=1)
        self.time_embedding = Embedding(channels[0], config.time_dim, config.time_dim)
        self.add_embedding = Embedding(IDS * config.id_dim, config.time_dim, config.time_dim)
        self.down_blocks: Any = nn.ModuleList()
        skips = [channels[0]]
        last = len(channels) - 1
        for level, width in enumerate(channels):
            before = channels[max(level - 1, 0)]
            inputs = [before, *[width] * (layers - 1)]
            block = _Block(
                inputs, width, config,
                *((None, 1e-5) if level == last else (heads[level], 1e-6)),
            )  # fmt: skip
            skips += [width] * layers
            if level < last:
                block.downsamplers = nn.ModuleList([Downsampler(width)])
                skips.append(width)
            self.down_blocks.append(block)
        middle = channels[-1]
        self.mid_block = _Block([middle, middle], middle, config, None, 1e-5)
        self.mid_block.attentions = nn.ModuleList(
            [Transformer(middle, heads[-1], config.image_dim)]
        )
        self.up_blocks: Any = nn.ModuleList()
        width = middle
        for level in reversed(range(len(channels))):
            outputs = channels[level]
            inputs = [width + skips.pop(), *(outputs + skips.pop() for _ in range(layers))]
            block = _Block(inputs, outputs, config, None if level == last else heads[level], 1e-6)
            if level > 0:
                block.upsamplers = nn.ModuleList([Upsampler(outputs)])
            self.up_blocks.append(block)
            width = outputs
        self.conv_norm_out = GroupNorm(channels[0], 1e-5)
        self.conv_out = Conv2d(channels[0], LATENT_CHANNELS, 3, padding=1)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights."""
        return self.conv_in.weight.dtype

    @property
    def transformers(self) -> Iterator[Transformer]:
        """Every transformer, in the order in which they run."""
        return (module for module in self._in_order() if isinstance(module, Transformer))

    @property
    def mix_factors(self) -> Tensor:
        """The factors of all mixers ``[mixers]``, in the order in which they run."""
        mixers = (module.time_mixer for module in self._in_order())
        return torch.cat([mixer.get_parameter("mix_factor") for mixer in mixers])

    def _in_order(self) -> Iterator[ResBlock | Transformer]:
        """Every residual block and transformer, in the order in which they run."""
        for block in (*self.down_blocks, self.mid_block, *self.up_blocks):
            if block is self.mid_block:
                yield from (block.resnets[0], block.attentions[0], block.resnets[1])
                continue
            for resnet, transformer in zip(block.resnets, block.transformers, strict=True):
                yield resnet
                if transformer is not None:
                    yield transformer

    def embedded_ids(self, ids: Tensor) -> Tensor:
        """Embeds conditioning numbers: float32 ``[1, 3]`` to ``[1, E]``."""
        result: Tensor = self.add_embedding(sinusoid(ids[0], self.config.id_dim).view(1, -1))
        return result

    def forward(
        self, sample: Tensor, timestep: Tensor, constants: Constants
    ) -> tuple[Tensor, Tensor]:
        """Returns the network's prediction for noisy latents, and features for ``shallow``.

        Args:
            sample: scaled latents beside the image's, ``[B, T, 8, h, w]`` in the weights' dtype.
            timestep: ``0.25 log(sigma)``, float32 ``[1]``.
            constants: of the clip.

        Returns:
            ``[B, T, 4, h, w]``, and what the last up block gets from the one before,
            ``[B * T, C, h, w]``.
        """
        run = self._run(sample, timestep, constants)
        x = self.conv_in(sample.flatten(0, 1))
        skips = [x]
        for block in self.down_blocks:
            x = run.down(block, x, skips)
            for downsampler in getattr(block, "downsamplers", ()):
                x = downsampler(x)
                skips.append(x)
        first, second = self.mid_block.resnets
        x = run.resnet(first, x)
        x = run.resnet(second, run.transformer(self.mid_block.attentions[0], x))
        *deep, last = self.up_blocks
        for block in deep:
            x = run.up(block, x, skips)
            for upsampler in block.upsamplers:
                x = upsampler(x)
        return self._predicted(run.up(last, x, skips), sample), x

    def shallow(
        self, sample: Tensor, timestep: Tensor, constants: Constants, features: Tensor
    ) -> Tensor:
        """Returns the prediction from an earlier step's features (DeepCache, Ma et al. 2023).

        Only the blocks of the first resolution run.

        Args:
            sample: as in ``forward``.
            timestep: as in ``forward``.
            constants: of the clip; ``transformers`` are those of ``shallow_transformers`` alone.
            features: the second result of ``forward`` in an earlier step.
        """
        first, last = self.down_blocks[0], self.up_blocks[-1]
        weights = constants.weights
        few = [weights[: first.mixers], weights[len(weights) - last.mixers :]]
        constants = Constants(constants.ids, torch.cat(few), constants.transformers)
        run = self._run(sample, timestep, constants)
        x = self.conv_in(sample.flatten(0, 1))
        skips = [x]
        run.down(first, x, skips)
        return self._predicted(run.up(last, features, skips), sample)

    @property
    def shallow_transformers(self) -> tuple[int, ...]:
        """Places of the transformers of ``shallow`` among ``transformers``."""
        few = {*self.down_blocks[0].transformers, *self.up_blocks[-1].transformers}
        return tuple(place for place, each in enumerate(self.transformers) if each in few)

    def _run(self, sample: Tensor, timestep: Tensor, constants: Constants) -> _Pass:
        time = self.time_embedding(sinusoid(timestep, self.config.channels[0])) + constants.ids
        return _Pass(constants, time, sample.shape[1])

    def _predicted(self, x: Tensor, sample: Tensor) -> Tensor:
        """Maps the last block's result ``[B * T, C, h, w]`` to ``[B, T, 4, h, w]``."""
        result: Tensor = self.conv_out(F.silu(self.conv_norm_out(x)))
        return result.reshape(*sample.shape[:2], *result.shape[1:])
