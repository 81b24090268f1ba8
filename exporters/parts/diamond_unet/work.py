"""Floating-point operations and weights of one call of a network."""

from dataclasses import dataclass

from vidc.exporters.parts.diamond_unet.config import COLORS, ResidualSizes, UNetConfig


@dataclass(frozen=True)
class Work:
    """Work of one call.

    Attributes:
        flops: of convolutions, Linears and attention, two to a multiply-add.
        weights: elements of the matrices, without biases, norms and embeddings.
    """

    flops: int
    weights: int


def unet_work(config: UNetConfig, images: int, size: tuple[int, int]) -> Work:
    """Returns the work of one call.

    Args:
        config: sizes of the network.
        images: number of images that the network sees.
        size: height and width of each.
    """
    pixels = size[0] * size[1]
    # Height and width after padding.
    padded = [-(-side // config.stride) * config.stride for side in size]
    area = [padded[0] * padded[1] // 4**level for level in range(len(config.channels))]
    width, widths = config.channels[0], sum(2 * (b.inputs + b.outputs) for b in config.blocks)
    linears = config.cond * (2 * config.cond + widths)
    ends = 9 * width * (images * COLORS + COLORS)
    flops, weights = 2 * (linears + pixels * ends), linears + ends
    for block in config.blocks:
        elements, tokens = _block_weights(block), area[block.level]
        weights += elements
        flops += 2 * tokens * elements + (4 * tokens**2 * block.outputs if block.attention else 0)
    for level, each in enumerate(config.channels[:-1]):
        weights += 2 * 9 * each**2
        # One convolution halves this level's size, one runs after doubling the next one's.
        flops += 2 * 9 * each**2 * (area[level] + area[level + 1])
    return Work(flops, weights)


def _block_weights(block: ResidualSizes) -> int:
    """Returns the elements of a block's convolutions; each multiplies every pixel once."""
    inputs, outputs = block.inputs, block.outputs
    shortcut = 0 if inputs == outputs else inputs * outputs
    attention = 4 * outputs**2 if block.attention else 0
    return 9 * outputs * (inputs + outputs) + shortcut + attention
