"""A residual block and a transformer over the frames of a clip, with weights and inputs."""

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from vidc.exporters.parts.spatio_temporal import ResBlock
from vidc.exporters.parts.svd_unet.layers import Transformer
from vidc.exporters.program import drop_assertions
from vidc.exporters.tracing import tracing

HALF = torch.float16
FRAMES, CHANNELS = 5, 64


class Block(nn.Module):
    """A residual block and a transformer of one resolution, as in a UNet over frames."""

    def __init__(self, channels: int = CHANNELS) -> None:
        super().__init__()
        self.resnet = ResBlock(channels, channels, 16, 1e-6, 1e-6)
        self.transformer = Transformer(channels, 1, 8)

    def forward(self, x: Tensor, time: Tensor, weight: Tensor, token: Tensor) -> Tensor:
        x = self.resnet(x, FRAMES, weight, time)
        spatial, temporal = self.transformer.image_vectors(token)
        frames = self.transformer.frame_vectors(FRAMES)
        return self.transformer(x, spatial, temporal, frames, weight)


def drawn(*shape: int, dtype: torch.dtype = HALF) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


def made(module: nn.Module, dtype: torch.dtype = HALF) -> nn.Module:
    """Draws a module's weights."""
    generator = torch.Generator().manual_seed(1)
    for weight in module.parameters():
        fan_in = weight[0].numel() if weight.dim() > 1 else 4
        weight.data = torch.randn(weight.shape, generator=generator) / fan_in**0.5
        weight.requires_grad_(False)
    return module.to(dtype).eval()


def block_inputs(dtype: torch.dtype = HALF) -> tuple[Tensor, ...]:
    shapes = ((2 * FRAMES, CHANNELS, 6, 7), (1, 16), (), (2, 8))
    return tuple(drawn(*shape, dtype=dtype) for shape in shapes)


def exported(module: nn.Module, *inputs: Tensor) -> ExportedProgram:
    """A program as ``export_program`` makes it."""
    with tracing():
        program = torch.export.export(module, inputs, strict=False).run_decompositions({})
    drop_assertions(program)
    return program


def error(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())
