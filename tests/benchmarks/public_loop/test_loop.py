"""The public code's loop computes what vidc's networks, diffusers and an oracle of the roll do."""

import pytest
import torch
from public_loop import loop
from public_loop.layers import ROTARY_FRAMES, rotary_table
from roll_cache_wan import RollCacheWan

from vidc.exporters.parts.wan_vae.network import create

BLOCKS = 8


def relative(actual, expected):
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize(
    ("sizes", "switch_after"),
    [
        ({}, 5),
        ({}, 1),
        ({}, 3),
        ({}, 4),
        ({"window": 8}, 5),
        ({"window": 8}, 2),
        ({"window": 6}, 4),
        ({"window": 9, "sink": 5}, 4),
        ({"window": 9, "sink": 2}, 4),
        ({"window": 7, "sink": 0}, 4),
        ({"batch": 2}, 5),
    ],
)
def test_matches_the_oracle(make_model, sizes, switch_after):
    model = make_model(**sizes)
    config = model.config
    oracle = RollCacheWan(
        weights={name: weight.double() for name, weight in model.transformer.items()},
        heads=config.transformer.heads, layers=config.transformer.layers,
        freq_dim=config.transformer.freq_dim,
        window=config.stream.window, sink=config.stream.sink,
        steps=list(config.sampler.steps), shift=config.sampler.shift,
    )  # fmt: skip
    session = model.session()
    oracle.text = model.embeds(1).double()
    for block, noise in enumerate(model.noises(BLOCKS)):
        if block == switch_after:
            session.switch_prompt(model.embeds(2))
            oracle.switch(model.embeds(2).double())
        assert relative(session.generate(noise), oracle.block(noise.double())) < 1e-5


def test_decodes_like_diffusers_on_a_whole_clip(make_model):
    model = make_model(batch=2)
    vae = create(model.config.vae, torch.float32, "cpu")
    vae.load_state_dict(model.vae)
    latents = torch.randn(2, 9, 16, 4, 6, generator=torch.Generator().manual_seed(2))
    mean, std = (
        torch.tensor(values).view(-1, 1, 1)
        for values in (model.config.vae.latents_mean, model.config.vae.latents_std)
    )
    with torch.no_grad():
        clip = vae.decode((latents * std + mean).transpose(1, 2)).sample
    expected = ((clip + 1) * 127.5).permute(0, 2, 3, 4, 1)
    session = model.session()
    actual = torch.cat([session.decode(part) for part in latents.split(3, 1)], 1)
    assert (actual.dtype, actual.shape) == (torch.uint8, (2, 33, 32, 48, 3))
    assert (actual.float() - expected).abs().max() < 0.51
    assert expected.std() > 5


@pytest.mark.parametrize(
    "dtype", [pytest.param(torch.float32, marks=pytest.mark.deep), torch.bfloat16]
)
def test_compiles_each_layer_and_the_decoder(make_model, dtype):
    model = make_model(dtype, window=6)
    operators = []

    def backend(graph, inputs):
        operators.append({node.target for node in graph.graph.nodes})
        return graph.forward

    torch.compiler.reset()
    eager, compiled = model.session(), model.loop(backend).session()
    compiled.prompt(model.embeds(1))
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        for block, noise in enumerate(model.noises(4)):
            if block == 3:
                eager.switch_prompt(model.embeds(2))
                compiled.switch_prompt(model.embeds(2))
            expected, actual = eager.generate(noise), compiled.generate(noise)
            assert relative(actual, expected) < 1e-5
            assert actual.dtype == dtype
        attention = torch.nn.functional.scaled_dot_product_attention
        # Reading the cache's indices divides a layer: the self-attention is in the part that copies
        # the cache, the cross-attention in that of the feed-forward, the rotation is in neither.
        for part in ({attention, torch.cat}, {attention, torch._C._nn.gelu}):
            assert any(part <= graph for graph in operators), part
        assert any(torch.view_as_complex in graph for graph in operators)
        assert not any({attention, torch.view_as_complex} <= graph for graph in operators)
        operators.clear()
        frames = [session.decode(actual) for session in (eager, compiled)]
    torch.compiler.reset()
    assert torch.equal(*frames)
    assert sum(attention in graph for graph in operators) == 3


def test_eager_compiles_nothing(make_model, monkeypatch):
    monkeypatch.setattr(torch.nn.Module, "compile", None)
    model = make_model()
    assert model.session().step(model.noises(1)[0]).shape == (9, 32, 48, 3)


def test_half_precision_is_near_float32(make_model):
    latents = [
        make_model(dtype).session().generate(make_model().noises(1)[0])
        for dtype in (torch.bfloat16, torch.float32)
    ]
    assert [latent.dtype for latent in latents] == [torch.bfloat16, torch.float32]
    assert 1e-4 < relative(*latents) < 0.1


def test_noise_comes_from_the_seed(make_model):
    model = make_model()
    latents = []
    for seed in (1, 1, 2):
        session = model.loop().session(seed)
        session.prompt(model.embeds(1))
        latents.append(session.generate())
    assert torch.equal(latents[0], latents[1])
    assert relative(latents[2], latents[0]) > 0.1


def test_sessions_do_not_disturb_each_other(make_model):
    model = make_model(window=6)
    public, noises = model.loop(), model.noises(4)

    def play(*sessions):
        frames = [[] for _ in sessions]
        for session in sessions:
            session.prompt(model.embeds(1))
        for noise in noises:
            for kept, session in zip(frames, sessions, strict=True):
                kept.append(session.step(noise))
        return [torch.cat(kept) for kept in frames]

    alone = play(public.session())[0]
    assert all(torch.equal(alone, clip) for clip in play(public.session(), public.session()))


def test_stream_ends_with_the_table_of_rotations(make_model, monkeypatch):
    model = make_model()
    monkeypatch.setattr(loop, "ROTARY_FRAMES", 2 * model.config.stream.block)
    session = model.session()
    session.generate()
    session.generate()
    with pytest.raises(ValueError, match="ends at 6 latent frames"):
        session.generate()


def test_table_of_rotations():
    table = rotary_table(24, torch.device("cpu"))
    assert table.shape == (ROTARY_FRAMES, 12)
    turns = torch.tensor([1023 * 10000.0 ** (-i / 4) for i in range(4)], dtype=torch.float64)
    assert torch.allclose(table[-1, :4], torch.polar(torch.ones_like(turns), turns))
