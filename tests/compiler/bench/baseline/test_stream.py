"""The baseline's streams compute what vidc's networks and an oracle of the roll compute."""

import pytest
import torch
from roll_cache_wan import RollCacheWan

from vidc.compiler.bench.baseline import stream
from vidc.compiler.bench.baseline.layers import ROTARY_FRAMES, rotary_table
from vidc.compiler.config.stream import stream_spec
from vidc.compiler.validate.eager import EagerEngine
from vidc.compiler.validate.play import Inputs, play_rollout
from vidc.compiler.validate.scenario import Scenario
from vidc.exporters.models import components, meta_network, with_weights
from vidc.plugins.errors import UsageError

BLOCKS, SWITCH = 8, 5


def relative(actual, expected):
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


def eager_engines(model):
    engines = {}
    for group, weights in (("transformer", model.transformer), ("vae", model.vae)):
        network = with_weights(meta_network(model.config, group, "fp32"), weights)
        for name, component in components(model.config, group, network, "fp32").items():
            engines[name] = EagerEngine(component)
    return engines


def oracle(model):
    sizes, stream = model.config.transformer, model.config.stream
    return RollCacheWan(
        weights={name: weight.double() for name, weight in model.transformer.items()},
        heads=sizes.heads, layers=sizes.layers, freq_dim=sizes.freq_dim,
        window=stream.window, sink=stream.sink,
        steps=list(model.config.sampler.steps), shift=model.config.sampler.shift,
    )  # fmt: skip


@pytest.mark.parametrize("window", [12, 8, 6])
def test_like_vidcs_networks_with_a_prompt_switch(make_model, window):
    model = make_model(window=window)
    prompts, noises = torch.stack([model.embeds(1), model.embeds(2)]), model.noises(BLOCKS)
    scenario = Scenario(BLOCKS, SWITCH, rollout=True)
    expected = play_rollout(
        scenario, Inputs(prompts, noises, {}), stream_spec(model.config), eager_engines(model)
    )
    session = model.baseline.session()
    session.prompt(prompts[0])
    for block, noise in enumerate(noises):
        if block == SWITCH:
            session.switch_prompt(prompts[1])
        frames = session.step(noise)
        assert relative(session.latents, expected.latents[block]) < 1e-5
        assert frames.dtype == torch.uint8
        if block in scenario.pictured:
            pictures = expected.frames[block][0]
            assert frames.shape == pictures.shape
            # Levels that lie half-way between two may be rounded either way.
            assert (frames.int() - pictures.int()).abs().max() <= 1
    assert session.blocks == BLOCKS


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
def test_like_the_oracle(make_model, sizes, switch_after):
    model = make_model(**sizes)
    session, expected = model.baseline.session(), oracle(model)
    session.prompt(model.embeds(1))
    expected.text = model.embeds(1).double()
    for block, noise in enumerate(model.noises(BLOCKS)):
        if block == switch_after:
            session.switch_prompt(model.embeds(2))
            expected.switch(model.embeds(2).double())
        clean = session.denoise(noise)
        session.remember(clean)
        assert relative(session.latents, expected.block(noise.double())) < 1e-5


def test_the_next_prompt_counts(make_model):
    model = make_model()
    latents = []
    for prompt in (1, 2):
        session = model.baseline.session()
        session.prompt(model.embeds(1))
        session.prompt(model.embeds(prompt))
        latents.append(session.denoise(model.noises(1)[0]))
    assert relative(*latents) > 0.05


def test_latents_in_the_dtype_of_the_weights(make_model):
    model = make_model(torch.bfloat16)
    exact = make_model()
    session, reference = model.baseline.session(), exact.baseline.session()
    for one in (session, reference):
        one.prompt(model.embeds(1))
    noise = model.noises(1)[0]
    latent = session.denoise(noise)
    assert latent.dtype == torch.bfloat16
    assert 1e-4 < relative(latent, reference.denoise(noise)) < 0.1


def test_noise_comes_from_the_seed(make_model):
    model = make_model()
    latents = []
    for seed in (1, 1, 2):
        session = model.baseline.session(seed=seed)
        session.prompt(model.embeds(1))
        latents.append(session.denoise())
    assert torch.equal(latents[0], latents[1])
    assert relative(latents[2], latents[0]) > 0.1


def test_sessions_do_not_disturb_each_other(make_model):
    model = make_model(window=6)
    baseline, noises = model.baseline, model.noises(4)

    def play(*sessions):
        frames = [[] for _ in sessions]
        for session in sessions:
            session.prompt(model.embeds(1))
        for noise in noises:
            for kept, session in zip(frames, sessions, strict=True):
                kept.append(session.step(noise))
        return [torch.cat(kept) for kept in frames]

    alone = play(baseline.session())[0]
    assert all(torch.equal(alone, clip) for clip in play(baseline.session(), baseline.session()))


def test_a_prompt_is_needed(make_model):
    with pytest.raises(UsageError, match="VIDC-SESSION-NO-PROMPT"):
        make_model().baseline.session().denoise()


def test_the_table_of_rotations_ends(make_model, monkeypatch):
    """The last block that fits is generated, the next is refused."""
    model = make_model()
    monkeypatch.setattr(stream, "ROTARY_FRAMES", 2 * model.config.stream.block)
    session = model.baseline.session()
    session.prompt(model.embeds(1))
    for _ in range(2):
        session.remember(session.denoise())
    with pytest.raises(UsageError, match=r"VIDC-BENCH-LENGTH.*2 blocks were generated"):
        session.denoise()


def test_the_table_of_rotations(make_model):
    table = rotary_table(24)
    assert table.shape == (ROTARY_FRAMES, 12)
    turns = torch.tensor([1023 * 10000.0 ** (-i / 4) for i in range(4)], dtype=torch.float64)
    assert torch.allclose(table[-1, :4], torch.polar(torch.ones_like(turns), turns))
