"""Settings of family `svd`: released sizes, work, and what is refused."""

import math

import pytest
import tiny_svd

from vidc.compiler.config.program import program_spec
from vidc.compiler.config.resolve import resolve
from vidc.exporters.families.family import Rollout
from vidc.plugins.errors import UsageError


def released(preset, *assignments):
    return resolve(preset, gpu="t4", assignments=assignments, environ={}).model


@pytest.fixture(scope="module")
def svd():
    return released("svd")


@pytest.mark.parametrize(
    ("group", "parameters"),
    [("unet", 1_524_623_082), ("vae", 97_742_847), ("image_encoder", 632_076_800)],
)
def test_released_sizes(svd, group, parameters):
    part = svd.parts[group]
    assert sum(math.prod(shape) for shape in part.shapes().values()) == parameters
    assert part.weights_elements == pytest.approx(parameters, rel=0.01)


def test_work_of_a_pass(svd):
    """Linear layers and convolutions of 14 frames of 576x1024, as counted in diffusers' UNet.

    Of its 44.8 TFLOP, 8.7 are attention over pixels and 1.7 cross-attention's.
    """
    part = svd.unet_part
    shapes = part.shapes()
    linear = [(n.removesuffix(".weight"), s) for n, s in shapes.items() if len(s) == 2]
    flops = sum(2 * math.prod(shape) * part.rows(name) for name, shape in linear)
    flops += sum(2 * weight * rows for weight, rows in part.other_products)
    assert flops / part.batch == pytest.approx(34.4e12, rel=0.02)
    assert part.pass_flops() == pytest.approx(44.8e12)


def test_presets():
    svd, xt, t4 = (released(name) for name in ("svd", "svd-xt", "svd-t4"))
    assert (svd.clip.frames, xt.clip.frames, t4.clip.frames) == (14, 25, 14)
    assert xt.unet.num_frames == 25
    large = released("svd-t4", "clip.height=576", "clip.width=1024")
    assert large.clip.chunk == t4.clip.chunk == 2
    assert t4.estimated_gb < large.estimated_gb < large.clip.memory_gb == 12
    assert resolve("svd-t4", gpu="t4", environ={}).precision["unet"] == "fp16"


def test_spec_follows_the_settings():
    low = program_spec(tiny_svd.model("clip.low_memory=true", "clip.image_encoder=false"))
    assert low.calls["block"] == {"denoise": 8}
    assert low.condition_shapes["embeds"] == (1, 1, 32)
    assert "image_encoder" not in low.components
    plain = program_spec(tiny_svd.model("sampler.guidance=[1.0, 1.0]", "clip.chunk=4"))
    assert (plain.halves, plain.chunks, plain.calls["block"]) == (1, 1, {"denoise": 4})


def test_estimates_grow_with_the_work(svd):
    one = svd.rollout_flops(Rollout(1, 1))
    assert svd.rollout_flops(Rollout(2, 1)) == 2 * one
    assert svd.rollout_flops(Rollout(1, 1), decoded=False) == one - svd.decode_flops()
    assert released("svd", "sampler.guidance=[1.0, 1.0]").rollout_flops(Rollout(1, 1)) < 0.6 * one


@pytest.mark.parametrize(
    ("assignments", "match"),
    [
        (("clip.chunk=3",), r"clip\.chunk = 3 does not divide clip\.frames = 4.*\n.*1, 2 or 4"),
        (("clip.height=100",), r"clip\.height = 100 is not a multiple of 64"),
        (("clip.low_memory=true", "sampler.guidance=[1.0, 1.0]"), r"clip\.low_memory"),
        (("sampler.guidance=[3.0, 1.0]",), r"sampler\.guidance"),
        (("sampler.steps=0",), r"sampler\.steps"),
        (("image_encoder.projection=64",), r"image_encoder\.projection"),
        (("clip.memory_gb=0.01",), r"clip\.memory_gb"),
        (("model.channels=[32, 64]",), r"model\.channels"),
        (("model.heads=[1, 1, 1, 3]",), r"model\.channels has 64"),
        (("vae.channels=[32, 32, 64, 65]",), r"vae\.channels"),
    ],
)
def test_refuses(assignments, match):
    with pytest.raises(UsageError, match=rf"VIDC-CONFIG-SIZES[\s\S]*{match}"):
        tiny_svd.model(*assignments)
