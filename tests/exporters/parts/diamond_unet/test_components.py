"""Both components against an implementation in plain PyTorch, over noise levels and sizes."""

import math

import pytest
import torch
from diamond_models import ATARI, pair, resized
from torch.utils.flop_counter import FlopCounterMode

from vidc.compiler.config.presets import load_preset
from vidc.exporters.parts.diamond_unet.names import separate_shapes
from vidc.exporters.program import export_program

SIGMAS = (5.0, 1.7, 0.3, 0.002)


def relative_l2(found, expected):
    return float((found - expected).norm() / expected.norm())


def inputs_of(component, sigma, seed=0):
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        t.name: torch.randn(t.shape, generator=generator) * 0.4
        for t in component.signature.arguments
    }
    if "actions" in tensors:
        tensors["actions"] = (tensors["actions"] > 0).float()
    return tensors | {"sigma": torch.tensor([sigma])}


def component_of(made, name):
    return made.engines[name].module, made.model.part.components(made.model.part.network("fp32"))[
        name
    ]


@pytest.mark.parametrize("sigma", SIGMAS)
def test_denoise_equals_the_oracle(sigma):
    made = pair()
    module, component = component_of(made, "denoise")
    given = inputs_of(component, sigma) | {"past_noise": torch.tensor([math.log(0.005) / 4])}
    (found,) = module(*given.values())
    expected = made.agent.denoiser.before_truncation(
        given["x"], sigma, 0.005, given["past.low"] + given["added"], given["actions"][0]
    )
    assert relative_l2(found, expected) < 1e-5
    assert found.std() > 0.1
    assert (found.abs() == 1).float().mean() < 0.5


@pytest.mark.parametrize("sigma", SIGMAS)
def test_upsample_equals_the_oracle(sigma):
    made = pair()
    module, component = component_of(made, "upsample")
    given = inputs_of(component, sigma)
    (found,) = module(*given.values())
    images = torch.cat([given["past.full"], given["low"]], 1)
    expected = made.agent.upsampler.before_truncation(given["x"], sigma, 0, images)
    assert relative_l2(found, expected) < 1e-5


@pytest.mark.parametrize("size", [{"height": 8, "width": 16}, {"height": 7, "width": 5}])
def test_any_size_is_padded_and_cropped(size):
    made = resized(pair(), **size)
    module, component = component_of(made, "denoise")
    given = inputs_of(component, 1.0) | {"past_noise": torch.zeros(1)}
    (found,) = module(*given.values())
    expected = made.agent.denoiser.before_truncation(
        given["x"], 1.0, 1.0, given["past.low"] + given["added"], given["actions"][0]
    )
    assert found.shape[-2:] == (size["height"], size["width"])
    assert relative_l2(found, expected) < 1e-5


def test_a_model_without_noised_past_equals_the_oracle():
    made = pair(**ATARI)
    module, component = component_of(made, "denoise")
    assert "added" not in component.signature
    assert [*made.engines] == ["denoise"]
    given = inputs_of(component, 0.7)
    (found,) = module(*given.values())
    expected = made.agent.denoiser.before_truncation(
        given["x"], 0.7, 0, given["past.low"], given["actions"][0]
    )
    assert relative_l2(found, expected) < 1e-5


def test_all_norms_share_one_matmul():
    """Each component has the two Linears of the conditioning and one for all norms."""
    made = pair()
    program = export_program(component_of(made, "denoise")[1])
    linears = program.graph.find_nodes(op="call_function", target=torch.ops.aten.linear.default)
    assert len(linears) == 3


def test_random_weights_make_every_weight_matter():
    part = pair().model.part
    weights = {name: tensor.load() for name, tensor in part.random_weights(3).items()}
    from vidc.compiler.validate.reference import part_engines
    from vidc.exporters.models import with_weights

    network = with_weights(part.network("fp32"), weights)
    engines = part_engines(part, network)
    network.requires_grad_(True)
    total = 0
    for name, engine in engines.items():
        component = part.components(network)[name]
        (found,) = engine.module(*inputs_of(component, 5.0).values())
        assert 0.1 < float(found.detach().std()) < 0.8
        total = total + (found * torch.randn(found.shape)).sum()
    total.backward()
    unused = [n for n, p in network.named_parameters() if p.grad is None or not p.grad.any()]
    # Of the past noise's embedding, c_noise 0 leaves the frequencies of `upsample` without a slope.
    assert unused == ["upsampler.inner_model.noise_cond_emb.weight"]


def test_csgo_has_the_published_counts():
    part = load_preset("diamond-csgo").model.part
    shapes = separate_shapes(part.network("fp32"))
    for name, tensors, parameters in (
        ("denoiser", 303, 330_489_219),
        ("upsampler", 270, 51_149_187),
    ):
        own = {n: math.prod(s) for n, s in shapes.items() if n.startswith(name)}
        buffers = sum(size for n, size in own.items() if n.endswith("noise_emb.weight"))
        buffers += sum(size for n, size in own.items() if n.endswith("noise_cond_emb.weight"))
        assert (len(own), sum(own.values()) - buffers) == (tensors, parameters)
    assert part.denoise_work.flops == pytest.approx(31.8e9, rel=1e-3)
    assert part.upsample_work.flops == pytest.approx(85.8e9, rel=1e-3)


@pytest.mark.parametrize("millions", [529, 652])
def test_the_scaled_presets_have_their_size(millions):
    shapes = separate_shapes(load_preset(f"world-{millions}m").model.part.network("fp32"))
    denoiser = sum(math.prod(s) for name, s in shapes.items() if name.startswith("denoiser"))
    assert denoiser == pytest.approx(millions * 1e6, rel=1e-3)


@pytest.mark.parametrize("name", ["denoise", "upsample"])
def test_estimated_work_is_what_runs(name):
    part = load_preset("world-tiny").model.part
    component = part.components(part.network("fp32"))[name]
    arguments = [torch.empty(t.shape, device="meta") for t in component.signature.arguments]
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        component.module(*arguments)
    estimate = {"denoise": part.denoise_work, "upsample": part.upsample_work}[name]
    assert estimate.flops == pytest.approx(counter.get_total_flops(), rel=1e-3)


@pytest.mark.parametrize(("precision", "limit"), [("fp16", 4e-3), ("bf16", 3e-2)])
def test_half_precision_stays_close(precision, limit):
    from vidc.compiler.validate.reference import part_engines
    from vidc.exporters.models import PRECISIONS, with_weights

    made = pair()
    part, dtype = made.model.part, PRECISIONS[precision]
    weights = {name: tensor.to(dtype) for name, tensor in made.weights.items()}
    engines = part_engines(part, with_weights(part.network(precision), weights))
    for name, engine in made.engines.items():
        given = inputs_of(component_of(made, name)[1], 5.0)
        (expected,) = engine.module(*given.values())
        (found,) = engines[name].module(*given.values())
        assert found.dtype is torch.float32
        assert 0 < relative_l2(found, expected) < limit
