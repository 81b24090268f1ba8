"""Components of a GameNGen world beside diffusers' networks, at tiny and released sizes."""

import math

import pytest
import torch
from gamengen_models import ACTIONS, GUIDED, NOISED, drawn, model_of, pair
from torch.utils.flop_counter import FlopCounterMode

from vidc.compiler.validate.gates import Where, load_thresholds
from vidc.compiler.validate.metrics import compare
from vidc.exporters.models import PRECISIONS

LIMIT = 1e-5
TIMESTEPS = (999, 751, 501, 251, 1)

pytestmark = pytest.mark.usefixtures("without_gradients")


def predicted(made, timestep, precision="fp32", bucket=0):
    """The component's prediction and diffusers', of the same latents and actions."""
    part, (unet, _, embedding) = made.model.unet_part, made.networks
    components = part.components(made.network(part, precision))
    size, past = part.latent, part.config.past
    x, latents = drawn(1, 4, *size), drawn(1, 4 * past, *size, seed=1)
    actions = torch.arange(past)[None] % part.config.actions
    states = [
        torch.zeros(state.shape, dtype=PRECISIONS[precision])
        for state in components["condition_frame"].signature.states
        if state.writes
    ]
    rows = torch.nn.functional.one_hot(actions, part.config.actions).float()
    times = torch.tensor([7.0, timestep, *[3.0] * (part.steps - 2)])
    added = drawn(*latents.shape, seed=2)
    bucketed, noised = ((torch.tensor([bucket]),), (added,)) if part.noised else ((), ())
    components["condition_frame"].module(times, *bucketed, rows, *states)
    (found,) = components["denoise"].module(x, torch.tensor([1]), *noised, latents, *states)
    seen = torch.cat([latents + added if part.noised else latents, x], 1)
    label = torch.tensor([bucket])
    wanted = [unet(seen, timestep, embedding(actions), class_labels=label).sample]
    if part.halves == 2:
        seen[:, : part.zeroed] = 0
        wanted.insert(0, unet(seen, timestep, embedding(actions), class_labels=label).sample)
    return found, torch.cat(wanted)


@pytest.mark.parametrize("timestep", TIMESTEPS)
def test_denoise_equals_diffusers(timestep):
    found, wanted = predicted(pair(), timestep)
    assert compare(found, wanted).relative_l2 < LIMIT
    assert 0.3 < float(found.std()) < 3


@pytest.mark.parametrize(
    "frames", [{"height": 64, "width": 64}, {"height": 240, "width": 8}, {"height": 8, "width": 88}]
)
def test_any_size_of_latents_equals_diffusers(frames):
    found, wanted = predicted(pair(frames=frames), 501)
    assert compare(found, wanted).relative_l2 < LIMIT


@pytest.mark.parametrize("sampler", [GUIDED, GUIDED | {"zeroed": 4}, GUIDED | NOISED])
def test_both_halves_of_guidance_equal_diffusers(sampler):
    found, wanted = predicted(pair(sampler=sampler), 751)
    assert found.shape[0] == 2
    assert compare(found, wanted).relative_l2 < LIMIT
    assert compare(found[:1], wanted[1:]).relative_l2 > 1e-2


@pytest.mark.parametrize("bucket", [0, 4, 9])
def test_every_noise_level_of_the_past_has_a_class(bucket):
    made = pair(sampler=NOISED)
    found, wanted = predicted(made, 251, bucket=bucket)
    assert compare(found, wanted).relative_l2 < LIMIT


def test_buckets_are_those_of_training():
    sizes = model_of().unet
    levels = torch.linspace(0, 0.7, 100)
    wanted = torch.min(torch.round(levels / (torch.tensor(0.7) / 10)), torch.tensor(9.0))
    assert [sizes.bucket(float(level)) for level in levels] == wanted.int().tolist()


@pytest.mark.parametrize("frames", [{}, {"height": 40, "width": 16}])
def test_vae_equals_diffusers(frames):
    made = pair(frames=frames)
    part, (_, vae, _) = made.model.vae_part, made.networks
    components = part.components(made.network(part))
    image, latent = drawn(1, 3, part.height, part.width), drawn(1, 4, *part.latent_size)
    scale = vae.config.scaling_factor
    (encoded,) = components["vae_encode"].module(image)
    wanted = vae.encode(image).latent_dist.mode() * scale
    assert compare(encoded, wanted).relative_l2 < LIMIT
    (decoded,) = components["vae_decode"].module(latent)
    assert compare(decoded[0], vae.decode(latent / scale).sample).relative_l2 < LIMIT


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_half_precision_stays_close(precision):
    made, limit = pair(), load_thresholds(precision)[Where.COMPONENT]["relative_l2"]
    found, wanted = predicted(made, 501, precision)
    assert 1e-6 < compare(found, wanted).relative_l2 < limit
    part, (_, vae, _) = made.model.vae_part, made.networks
    components = part.components(made.network(part, precision))
    latent, image = drawn(1, 4, *part.latent_size), drawn(1, 3, part.height, part.width)
    (decoded,) = components["vae_decode"].module(latent)
    assert decoded.dtype is torch.float32
    decoder = vae.decode(latent / vae.config.scaling_factor).sample
    assert 1e-6 < compare(decoded[0], decoder).relative_l2 < limit
    (encoded,) = components["vae_encode"].module(image)
    wanted = vae.encode(image).latent_dist.mode() * vae.config.scaling_factor
    assert 1e-6 < compare(encoded, wanted).relative_l2 < limit


def test_random_weights_make_every_weight_matter():
    made = pair(sampler=NOISED)
    part = made.model.unet_part
    network = made.network(part).requires_grad_(True)
    size, past = part.latent, part.config.past
    with torch.enable_grad():
        shifts = network.embedded_times(torch.tensor([501.0]), torch.tensor([2]))
        actions = network.embedded_actions(torch.eye(5)[None, :past])
        found = network(drawn(1, 4 * (past + 1), *size), shifts, actions)
        (found * drawn(*found.shape, seed=1)).sum().backward()
    unused = [n for n, p in network.named_parameters() if p.grad is None or not p.grad.any()]
    assert unused == []


def test_released_sizes():
    model = model_of("world-860m")
    shapes = model.unet_part.shapes()
    parameters = {name: math.prod(shape) for name, shape in shapes.items()}
    # diffusers' UNet of the published config, and 18 embeddings of actions.
    assert sum(parameters.values()) - parameters[ACTIONS] == 859_637_444
    assert sum(math.prod(shape) for shape in model.vae_part.shapes().values()) == 83_653_863
    assert model.vae_part.weights_elements == 83_653_863


@pytest.mark.parametrize("sampler", [{}, GUIDED])
def test_estimated_work_is_what_runs(sampler):
    model = model_of("world-860m", sampler=sampler)
    for part, name, estimate in (
        (model.unet_part, "denoise", model.unet_part.step_flops),
        (model.vae_part, "vae_decode", model.decode_flops()),
        (model.vae_part, "vae_encode", model.vae_part.encode_flops),
    ):
        component = part.components(part.network("fp32"))[name]
        given = [torch.empty(t.shape, device="meta") for t in component.signature.arguments]
        with FlopCounterMode(display=False) as counter:
            component.module(*given)
        assert estimate == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_the_work_is_the_published_one():
    model = model_of("world-860m")
    assert model.unet_part.step_flops == pytest.approx(0.213e12, rel=0.01)
    assert model.decode_flops() == pytest.approx(0.74e12, rel=0.03)
