"""Files of TAEHV: published names, those of other projects, and what is refused."""

import pytest
import torch
from safetensors.torch import save_file

from vidc.exporters.checkpoint.layout import recognize
from vidc.exporters.families.causal_video import CausalVideo
from vidc.exporters.parts.taehv.config import TaehvConfig
from vidc.exporters.parts.taehv.part import TaehvPart
from vidc.plugins.errors import BuildError

LAYOUTS = CausalVideo.layouts()
TAEW2_2 = {"latent_channels": 48, "patch": 2}


def part_of(**sizes: int) -> TaehvPart:
    config = TaehvConfig(widths=(16, 8, 8, 8), encoder_width=8, **sizes)
    return TaehvPart(config, 1, 1, 16 * 8, 16 * 8)


def drawn(part: TaehvPart) -> dict[str, torch.Tensor]:
    return {name: tensor.load().half() for name, tensor in part.random_weights(0).items()}


def load(part: TaehvPart, path):
    return part.load(path, (), LAYOUTS, False)


@pytest.mark.parametrize("sizes", [{}, TAEW2_2], ids=["taew2_1", "taew2_2"])
@pytest.mark.parametrize("end", ["pth", "safetensors"])
def test_reads_the_published_files(tmp_path, sizes, end):
    part, path = part_of(**sizes), tmp_path / f"tae.{end}"
    expected = drawn(part)
    if end == "pth":
        torch.save(expected, path)
    else:
        save_file(expected, path)
    found = load(part, path)
    assert found.provenance["layout"] == "TAEHV"
    assert found.tensors.keys() == expected.keys()
    assert all(torch.equal(t.load(), expected[name]) for name, t in found.tensors.items())


def test_published_sizes_have_the_published_weights():
    part = TaehvPart(TaehvConfig(), 1, 3, 480, 832)
    shapes = part.shapes()
    elements = dict.fromkeys(("encoder", "decoder"), 0)
    for name, shape in shapes.items():
        elements[name.partition(".")[0]] += torch.Size(shape).numel()
    assert len(shapes) == 128
    assert elements == {"encoder": 1470928, "decoder": 9844611}
    assert shapes["decoder.3.conv.0.weight"] == (256, 512, 3, 3)
    assert shapes["decoder.13.conv.weight"] == (256, 128, 1, 1)
    assert shapes["decoder.22.bias"] == (3,)
    assert shapes["encoder.2.conv.weight"] == (64, 128, 1, 1)
    assert shapes["encoder.17.weight"] == (16, 64, 3, 3)


@pytest.mark.parametrize(
    ("half", "renamed"), [("decoder", "decoder.blocks"), ("decoder", "taehv.decoder")]
)
def test_reads_files_with_wrapped_names(tmp_path, half, renamed):
    part, path = part_of(), tmp_path / "tae.safetensors"
    expected = drawn(part)
    other = {"decoder": "encoder", "encoder": "decoder"}[half]
    wrapped = {half: renamed, other: renamed.replace(half, other)}
    save_file(
        {
            f"{wrapped[name.partition('.')[0]]}.{name.partition('.')[2]}": tensor
            for name, tensor in expected.items()
        },
        path,
    )
    found = load(part, path)
    assert all(torch.equal(t.load(), expected[name]) for name, t in found.tensors.items())


def test_takes_the_last_frames_of_layers_that_grow_more(tmp_path):
    part, path = part_of(), tmp_path / "tae.safetensors"
    expected = drawn(part)
    name = "decoder.7.conv.weight"
    save_file({**expected, name: torch.cat([expected[name] + 1, expected[name]])}, path)
    found = load(part, path).tensors[name]
    assert found.shape == expected[name].shape
    assert torch.equal(found.load(), expected[name])


def test_names_the_sizes_that_a_file_contradicts(tmp_path):
    path = tmp_path / "taew2_2.safetensors"
    save_file(drawn(part_of(**TAEW2_2)), path)
    with pytest.raises(BuildError) as caught:
        load(part_of(), path)
    assert caught.value.code == "VIDC-CHECKPOINT-MISMATCH"
    assert "taehv.latent_channels = 48, not 16, taehv.patch = 2, not 1" in caught.value.message


def test_names_of_other_networks_are_not_taken_for_it():
    shapes = part_of().shapes()
    assert recognize(shapes, LAYOUTS).name == "TAEHV"
    wan = ["decoder.middle.0.residual.0.gamma", "decoder.upsamples.0.residual.2.weight"]
    assert recognize(wan, LAYOUTS).name == "original Wan VAE"
