"""Network of a DIAMOND world model: two UNets, each conditioned on past frames."""

from collections.abc import Iterator

from torch import Tensor, nn
from torch.nn import functional

from vidc.exporters.parts.diamond_unet.config import (
    COLORS,
    DenoiserConfig,
    UNetConfig,
    UpsamplerConfig,
)
from vidc.exporters.parts.diamond_unet.layers import (
    AdaptiveGroupNorm,
    Downsample,
    Fourier,
    GroupNorm,
    Level,
    Upsample,
)


class UNet(nn.Module):
    """A UNet with a skip connection around every residual block."""

    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        self.stride = config.stride
        self.d_blocks = nn.ModuleList([Level(sizes) for sizes in config.down])
        self.mid_blocks = Level(config.middle)
        self.u_blocks = nn.ModuleList([Level(sizes) for sizes in config.up])
        halved = [Downsample(width) for width in config.channels[:-1]]
        doubled = [Upsample(width) for width in config.channels[-2::-1]]
        self.downsamples = nn.ModuleList([nn.Identity(), *halved])
        self.upsamples = nn.ModuleList([nn.Identity(), *doubled])

    def forward(self, x: Tensor, modulation: Iterator[Tensor]) -> Tensor:
        """Maps ``[B, C, h, w]`` to the same shape; ``modulation`` as in ``ResidualBlock``."""
        height, width = x.shape[-2:]
        # Padded at the right and at the bottom, and cropped again.
        x = functional.pad(x, (0, -width % self.stride, 0, -height % self.stride))
        skips: list[Tensor] = []
        for level, halve in zip(self.d_blocks, self.downsamples, strict=True):
            x = halve(x)
            made = level(x, modulation)
            skips += [x, *made]
            x = made[-1]
        x = self.mid_blocks(x, modulation)[-1]
        for level, double in zip(self.u_blocks, self.upsamples, strict=True):
            x = level(double(x), modulation, skips)[-1]
        return x[..., :height, :width]


class InnerModel(nn.Module):
    """A UNet with its conditioning: noise levels and, for a denoiser, actions.

    The scales and shifts of all norms come from one Linear, ``modulation``. A checkpoint has a
    Linear a norm, which ``names.fuse`` stacks.

    Args:
        config: sizes.
        images: images that the UNet sees: past frames, a low-resolution frame, the noisy one.
        actions: inputs of an action; 0 if the network takes none.
        noised_past: True if the past frames' noise level is part of the conditioning.
    """

    def __init__(
        self, config: UNetConfig, images: int, actions: int = 0, noised_past: bool = True
    ) -> None:
        super().__init__()
        cond, width = config.cond, config.channels[0]
        self.noise_emb = Fourier(cond)
        self.noise_cond_emb = Fourier(cond) if noised_past else None
        # A ModuleList, for the checkpoint's name `act_emb.0.weight`.
        shares = nn.Embedding(actions, cond // config.past) if actions else None
        self.act_emb = None if shares is None else nn.ModuleList([shares])
        self.cond_proj = nn.Sequential(nn.Linear(cond, cond), nn.SiLU(), nn.Linear(cond, cond))
        self.conv_in = nn.Conv2d(images * COLORS, width, 3, padding=1)
        self.unet = UNet(config)
        self.norm_out = GroupNorm(width)
        self.conv_out = nn.Conv2d(width, COLORS, 3, padding=1)
        self.widths = [2 * n for each in config.blocks for n in (each.inputs, each.outputs)]
        self.modulation = nn.Linear(cond, sum(self.widths))

    @property
    def norms(self) -> list[str]:
        """Names of the modulated norms, in the order in which they run."""
        named = {id(module): name for name, module in self.named_modules()}
        levels = [*self.unet.d_blocks, self.unet.mid_blocks, *self.unet.u_blocks]
        blocks = [
            block for level in levels for block in level.get_submodule("resblocks").children()
        ]
        modules = [norm for block in blocks for norm in block.children()]
        return [named[id(m)] for m in modules if isinstance(m, AdaptiveGroupNorm)]

    def forward(
        self,
        images: Tensor,
        noise: Tensor,
        past_noise: Tensor | None,
        actions: Tensor | None = None,
    ) -> Tensor:
        """Returns the network's raw output F, float32 ``[1, 3, h, w]``.

        Args:
            images: float32 ``[1, 3 images, h, w]``, preconditioned, the noisy one last.
            noise: EDM's c_noise of the noisy image, float32 ``[1]``.
            past_noise: EDM's c_noise of the past frames, float32 ``[1]``; None for a network
                without this input.
            actions: one for each past frame, float32 ``[1, past, inputs]``.
        """
        dtype = self.conv_in.weight.dtype
        cond = self.noise_emb(noise)
        if self.noise_cond_emb is not None:
            cond = cond + self.noise_cond_emb(past_noise)
        if self.act_emb is not None:
            assert actions is not None
            table = self.act_emb.get_parameter("0.weight")
            cond = cond + (actions.to(dtype) @ table).flatten(1).float()
        cond = self.cond_proj(cond.to(dtype))
        modulation = self.modulation(cond).split(self.widths, dim=1)
        x = self.unet(self.conv_in(images.to(dtype)), iter(modulation))
        output: Tensor = self.conv_out(functional.silu(self.norm_out(x)))
        return output.float()


class Preconditioned(nn.Module):
    """A network under the name ``inner_model`` that checkpoints give it."""

    def __init__(self, inner_model: InnerModel) -> None:
        super().__init__()
        self.inner_model = inner_model


class WorldModel(nn.Module):
    """Denoiser and, if the model has one, upsampler."""

    def __init__(self, denoiser: DenoiserConfig, upsampler: UpsamplerConfig) -> None:
        super().__init__()
        self.denoiser = Preconditioned(
            InnerModel(denoiser, denoiser.past + 1, denoiser.actions, denoiser.noised_past)
        )
        if upsampler.factor > 1:
            # The low-resolution frame is an image as well.
            self.upsampler = Preconditioned(InnerModel(upsampler, upsampler.past + 2))
