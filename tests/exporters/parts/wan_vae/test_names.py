import pytest
import torch
from wan_download import vae_name as original_name

from vidc.exporters.parts.wan_vae.config import VaeConfig
from vidc.exporters.parts.wan_vae.names import to_diffusers
from vidc.exporters.parts.wan_vae.network import create


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
