import re

import pytest
import torch

from vidc.exporters.parts.wan_vae.config import VaeConfig
from vidc.exporters.parts.wan_vae.names import to_diffusers
from vidc.exporters.parts.wan_vae.network import create

IN_RESIDUAL = {
    "norm1": "residual.0",
    "conv1": "residual.2",
    "norm2": "residual.3",
    "conv2": "residual.6",
    "conv_shortcut": "shortcut",
}
OUTSIDE = {"conv_in": "conv1", "norm_out": "head.0", "conv_out": "head.2"}
MIDDLE = {"resnets.0": "0", "attentions.0": "1", "resnets.1": "2"}


def original_name(name: str) -> str:
    """The name in ``Wan2.1_VAE.pth``, where blocks and resamplings count in one row."""
    name = re.sub(r"^quant_conv", "conv1", name)
    name = re.sub(r"^post_quant_conv", "conv2", name)
    name = re.sub(r"\.(conv_in|norm_out|conv_out)\.", lambda m: f".{OUTSIDE[m[1]]}.", name)
    name = re.sub(
        r"\.(norm1|conv1|norm2|conv2|conv_shortcut)\.(?=\w+$)",
        lambda m: f".{IN_RESIDUAL[m[1]]}." if "block" in name else m[0],
        name,
    )
    name = re.sub(
        r"mid_block\.(resnets\.\d|attentions\.0)", lambda m: f"middle.{MIDDLE[m[1]]}", name
    )
    name = name.replace("down_blocks", "downsamples")
    name = re.sub(
        r"up_blocks\.(\d)\.resnets\.(\d)",
        lambda m: f"upsamples.{4 * int(m[1]) + int(m[2])}",
        name,
    )
    return re.sub(
        r"up_blocks\.(\d)\.upsamplers\.0", lambda m: f"upsamples.{4 * int(m[1]) + 3}", name
    )


@pytest.mark.parametrize("base_dim", [8, 96])
def test_original_names_give_the_same_weights(base_dim):
    weights = create(VaeConfig(base_dim=base_dim), torch.float32, "meta").state_dict()
    original = {original_name(name): value for name, value in weights.items()}
    assert len(original) == len(weights)

    converted = to_diffusers(original)

    assert converted.keys() == weights.keys()
    assert all(converted[name] is weights[name] for name in weights)


@pytest.mark.parametrize(
    ("name", "original"),
    [
        ("quant_conv.bias", "conv1.bias"),
        ("decoder.conv_in.weight", "decoder.conv1.weight"),
        ("encoder.down_blocks.5.time_conv.weight", "encoder.downsamples.5.time_conv.weight"),
        (
            "decoder.up_blocks.1.resnets.0.conv_shortcut.weight",
            "decoder.upsamples.4.shortcut.weight",
        ),
        (
            "decoder.up_blocks.2.upsamplers.0.resample.1.bias",
            "decoder.upsamples.11.resample.1.bias",
        ),
        ("decoder.mid_block.resnets.1.norm2.gamma", "decoder.middle.2.residual.3.gamma"),
    ],
)
def test_names_as_in_the_released_file(name, original):
    assert original_name(name) == original
    assert to_diffusers({original: 0}) == {name: 0}
