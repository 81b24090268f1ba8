"""Oasis's components against an implementation in plain PyTorch."""

import math

import oasis_oracle as oracle
import pytest
import torch
from oasis_models import actions_of, images_of, pair
from torch.utils.flop_counter import FlopCounterMode

from vidc.compiler.config.presets import load_preset
from vidc.exporters.families.oasis import kept_signal
from vidc.exporters.models import PRECISIONS, with_weights
from vidc.runtime.states import Buffers, States

LEVELS = (999, 499, 99, 0)


def relative_l2(found, expected):
    return float((found - expected).norm() / expected.norm())


class Calls:
    """Calls engines of a model over one set of states."""

    def __init__(self, engines):
        self.engines = engines
        self.states = States((e.signature for e in engines.values()), torch.device("cpu"))

    def __call__(self, name, **inputs):
        engine = self.engines[name]
        buffers = Buffers(engine.signature, torch.device("cpu"))
        buffers.set(inputs)
        engine.run(buffers, self.states)
        return buffers

    def place(self, frame, window):
        pairs = self.engines["denoise"].signature["rope_cos"].shape[1]
        angles = frame * 10000.0 ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
        valid = min(frame + 1, window)
        return {
            "rope_cos": angles.cos()[None], "rope_sin": angles.sin()[None],
            "position": frame, "valid_length": valid,
        }  # fmt: skip


@pytest.mark.parametrize("level", LEVELS)
def test_single_calls_equal_the_oracle(level):
    """Frames enter the ring at timestep 14; the next frame's velocity is that of the window."""
    made = pair()
    window, latent = made.model.stream.window, made.model.spec()["latent"]
    calls, actions = Calls(made.engines), actions_of(made.model, 4)
    frames = torch.randn(4, *latent, generator=torch.Generator().manual_seed(3))
    times = torch.zeros(made.model.sampler.steps + 1)
    times[0], times[-1] = level, 14
    for index in range(4):
        calls("condition_frame", timesteps=times, action=actions[index][None])
        given = {"latent": frames[index][None], **calls.place(index, window)}
        found = calls("denoise", step=0, **given)["velocity"]
        t = torch.tensor([14] * index + [level])
        expected = made.transformer(frames[: index + 1], t, actions[: index + 1])[-1:]
        assert relative_l2(found, expected) < 1e-5
        assert 0.3 < found.std() < 10
        calls("kv_update", step=len(times) - 1, **given)


def test_ring_keeps_keys_and_values_of_the_clean_pass():
    made = pair()
    calls, actions = Calls(made.engines), actions_of(made.model, 1)
    latent = torch.randn(1, *made.model.spec()["latent"])
    times = torch.tensor([999.0, 699, 399, 99, 14])
    calls("condition_frame", timesteps=times, action=actions)
    given = {"latent": latent, **calls.place(0, made.model.stream.window)}
    calls("kv_update", step=4, **given)
    kept = [oracle.Kept() for _ in made.transformer.blocks]
    made.transformer(latent, torch.tensor([14]), actions, kept)
    for layer, keep in enumerate(kept):
        for name, expected in zip("kv", keep.newest[0], strict=True):
            ring = calls.states[f"ring.{name}.{layer}"]
            assert relative_l2(ring[:, 0], expected[:, :, 0]) < 1e-5
            assert not ring[:, 1:].any()


def test_vae_equals_the_oracle():
    made = pair()
    calls = Calls(made.engines)
    image = images_of(made.model, 1).permute(0, 3, 1, 2) / 127.5 - 1
    latent = made.vae.encode(image)
    assert relative_l2(calls("vae_encode", image=image)["latent"], latent) < 1e-5
    found = calls("vae_decode", latent=latent)["frames"][:, 0]
    assert relative_l2(found, made.vae.decode(latent)) < 1e-5


def test_noise_schedule_is_the_published_one():
    alphas = oracle.cumulative_alphas()
    found = torch.tensor([kept_signal(t) for t in range(1000)], dtype=torch.float64)
    assert torch.allclose(found, alphas.double(), rtol=1e-4)
    assert found[0] > 0.999
    assert found[-1] < 1e-6
    sampler = load_preset("oasis-500m").model.sampler
    assert sampler.timesteps == (999, 899, 799, 699, 599, 499, 399, 299, 199, 99)
    assert [*reversed(sampler.timesteps)] == oracle.levels_of(10)[1:]


def test_500m_has_the_published_counts():
    model = load_preset("oasis-500m").model
    elements = {
        group: sum(math.prod(shape) for shape in part.shapes().values())
        for group, part in model.parts.items()
    }
    assert elements["oasis"] == pytest.approx(607.9e6, rel=1e-3)
    assert elements["vae"] == pytest.approx(229e6, rel=3e-3)
    with torch.device("meta"):
        sizes = oracle.Sizes()
        networks = {"oasis": oracle.Transformer(sizes), "vae": oracle.Vae(sizes)}
    for group, network in networks.items():
        shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
        assert model.parts[group].shapes() == shapes
    part = model.transformer_part
    assert part.pass_flops == pytest.approx(0.116e12, rel=0.02)
    frame = part.condition_flops + part.passes * part.pass_flops
    assert frame == pytest.approx(1.3e12, rel=0.03)
    assert model.decode_flops() == pytest.approx(0.19e12, rel=0.1)


@pytest.mark.parametrize("name", ["condition_frame", "denoise", "vae_encode", "vae_decode"])
def test_estimated_work_is_what_runs(name):
    model = load_preset("oasis-tiny").model
    part = model.parts[model.components[name]]
    component = part.components(part.network("fp32"))[name]
    arguments = [
        torch.empty(t.shape, device="meta", dtype=t.torch_dtype)
        for t in component.signature.arguments
    ]
    ring = torch.ops.vidc.ring_attention

    def attention(query, keys, *_, out_shape=None, **__):
        return 4 * math.prod(query) * keys[1]

    with FlopCounterMode(display=False, custom_mapping={ring: attention}) as counter:
        component.module(*arguments)
    transformer = model.transformer_part
    estimates = {
        "condition_frame": transformer.condition_flops,
        "denoise": transformer.pass_flops,
        "vae_encode": model.vae_part.encode_flops(),
        "vae_decode": model.decode_flops(),
    }
    assert estimates[name] == pytest.approx(counter.get_total_flops(), rel=1e-3)


def results_of(networks, model):
    """Results of every layer of both networks, from fixed inputs."""
    generator = torch.Generator().manual_seed(1)
    transformer, vae = networks["oasis"], networks["vae"]
    latent = torch.randn(1, *model.spec()["latent"], generator=generator)
    action = torch.randn(1, model.transformer.actions, generator=generator)
    vectors = transformer.modulation(torch.tensor([699.0]), action)[0, :, None, None]
    x, rope = transformer.x_embedder.proj(latent), (torch.ones(1, 16), torch.zeros(1, 16))
    places, window = model.transformer_part.frame_tokens, model.stream.window
    for index, block in enumerate(transformer.layers):
        spatial, temporal = vectors[12 * index : 12 * index + 12].split(6)
        ring = [torch.randn(places, window, 2, 32, generator=generator) for _ in "kv"]
        x = block.spatial(x, spatial, transformer.spatial_rope(x.device))
        x = block.temporal(x, temporal, rope, ring, torch.tensor([5]), torch.tensor([6]))
    frame = vae.decode(latent)
    return transformer.velocity(x, vectors[-2:]), frame, vae.encode(frame.clamp(-1, 1))


def test_random_weights_make_every_weight_matter():
    model = load_preset("oasis-tiny").model
    networks = {}
    for group, part in model.parts.items():
        weights = {name: tensor.load() for name, tensor in part.random_weights(3).items()}
        networks[group] = with_weights(part.network("fp32"), weights)
    velocity, frame, latent = results_of(networks, model)
    assert 0.3 < float(velocity.std()) < 3
    assert 0.2 < float(frame.std()) < 1
    unused = []
    for network in networks.values():
        for name, weight in network.named_parameters():
            kept = weight.clone()
            weight.zero_()
            pairs = zip(results_of(networks, model), (velocity, frame, latent), strict=True)
            if max(relative_l2(*pair) for pair in pairs) < 1e-4:
                unused.append(name)
            weight.copy_(kept)
    assert unused == []


@pytest.mark.parametrize(("precision", "limit"), [("fp16", 4e-3), ("bf16", 3e-2)])
def test_half_precision_stays_close(precision, limit):
    made = pair()
    latent = torch.randn(
        1, *made.model.spec()["latent"], generator=torch.Generator().manual_seed(1)
    )
    times, action = torch.tensor([999.0, 699, 399, 99, 14]), actions_of(made.model, 1)

    def results(engines):
        calls = Calls(engines)
        calls("condition_frame", timesteps=times, action=action)
        given = {"latent": latent, **calls.place(0, made.model.stream.window)}
        velocity = calls("denoise", step=1, **given)["velocity"]
        return velocity, calls("vae_decode", latent=latent / 10)["frames"]

    from vidc.compiler.validate.reference import part_engines

    narrow = {}
    for group, part in made.model.parts.items():
        weights = made.networks[group].state_dict()
        cast = {name: tensor.to(PRECISIONS[precision]) for name, tensor in weights.items()}
        narrow |= part_engines(part, with_weights(part.network(precision), cast))
    for found, expected in zip(results(narrow), results(made.engines), strict=True):
        assert found.dtype is torch.float32
        assert 0 < relative_l2(found, expected) < limit
