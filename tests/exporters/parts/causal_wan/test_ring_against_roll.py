"""The ring cache against a roll-and-concatenate cache that shares no code with vidc."""

import pytest
import torch
from random_transformer import random_weights
from roll_cache_wan import RollCacheWan

from vidc.compiler.config.program import program_spec
from vidc.compiler.validate.reference import EagerEngine
from vidc.exporters.parts.causal_wan.network import CausalWan
from vidc.plugins.signature import Role, Signature, TensorSpec
from vidc.runtime.programs.base import Resources
from vidc.runtime.programs.causal_video import CausalVideo
from vidc.runtime.states import Buffers, States

WINDOWS = [12, 8, 6]


class BlackDecoder:
    """Stands in for the VAE, which these tests are not about."""

    def __init__(self, spec, frames: int) -> None:
        self.signature = Signature(
            (
                TensorSpec("latent", (spec.batch, spec.block, *spec.latent), "float32", Role.INPUT),
                TensorSpec("frames", (spec.batch, frames, 3, *spec.video), "float32", Role.OUTPUT),
            )
        )

    def run(self, buffers: Buffers, states: States) -> None:
        pass


def pair(config, dtype=torch.float32):
    """A session over the eager components, and the oracle with the same weights."""
    weights = {name: w.to(dtype) for name, w in random_weights(config.transformer, seed=3).items()}
    model = CausalWan(config.transformer)
    model.load_state_dict(weights, strict=True)
    model.requires_grad_(False)
    spec = program_spec(config)
    engines = {
        name: EagerEngine(c) for name, c in config.transformer_part.components(model).items()
    }
    engines["vae_decode_first"] = BlackDecoder(spec, 4 * spec.block - 3)
    engines["vae_decode"] = BlackDecoder(spec, 4 * spec.block)
    session = CausalVideo(Resources(spec, engines, torch.device("cpu")))
    oracle = RollCacheWan(
        weights={name: w.double() for name, w in weights.items()},
        heads=config.transformer.heads,
        layers=config.transformer.layers,
        freq_dim=config.transformer.freq_dim,
        window=config.stream.window,
        sink=config.stream.sink,
        steps=list(config.sampler.steps),
        shift=config.sampler.shift,
    )
    return session, oracle


def embeds(config, seed: int) -> torch.Tensor:
    sizes = config.transformer
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(config.stream.batch, sizes.text_len, sizes.text_dim, generator=generator)


def noises(config, blocks: int):
    generator = torch.Generator().manual_seed(9)
    shape = (len(config.sampler.steps), config.stream.batch, config.stream.block, 16)
    for _ in range(blocks):
        yield torch.randn(*shape, *config.latent_size, generator=generator)


def relative(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


def rollout(config, blocks: int, switch_after: int | None = None, jump: int = 0) -> list[float]:
    """Relative L2 of each block's latents; ``jump`` frames are skipped once the window is full."""
    session, oracle = pair(config)
    session.prompt(embeds(config, 1))
    oracle.text = embeds(config, 1).double()
    errors = []
    for block, noise in enumerate(noises(config, blocks)):
        if block == switch_after:
            session.switch_prompt(embeds(config, 2))
            oracle.switch(embeds(config, 2).double())
        if jump and block * config.stream.block == config.stream.window:
            session.flush()  # The pending pass belongs where its block was.
            session._frame += jump
            oracle.position += jump
        session.step(noise)
        errors.append(relative(session.latents, oracle.block(noise.double())))
    return errors


@pytest.mark.parametrize("window", WINDOWS)
def test_ten_blocks(configure, window):
    errors = rollout(configure(window=window), blocks=10)
    assert len(errors) == 10
    assert max(errors) < 1e-5


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("switch_after", range(1, 7))
def test_prompt_switch(configure, window, switch_after):
    errors = rollout(configure(window=window), blocks=switch_after + 2, switch_after=switch_after)
    assert max(errors) < 1e-5


class PlantedError(RuntimeError):
    pass


class Failing:
    """An engine that fails once, after its second call has written."""

    def __init__(self, engine) -> None:
        self.signature, self.calls, self._engine = engine.signature, 0, engine

    def run(self, buffers: Buffers, states: States) -> None:
        self._engine.run(buffers, states)
        self.calls += 1
        if self.calls == 2:
            raise PlantedError


def test_a_block_is_tried_again_after_its_noise_has_replaced_old_frames(configure):
    """The clean pass before it read those frames, so it is not repeated."""
    config = configure(window=6)
    session, oracle = pair(config)
    session.prompt(embeds(config, 1))
    oracle.text = embeds(config, 1).double()
    engines = session._resources.engines
    for block, noise in enumerate(noises(config, 4)):
        if block == 3:
            healthy = engines["denoise"]
            engines["denoise"] = Failing(healthy)
            with pytest.raises(PlantedError):
                session.step(noise)
            engines["denoise"] = healthy
        session.step(noise)
        assert relative(session.latents, oracle.block(noise.double())) < 1e-5


@pytest.mark.parametrize("switch_after", range(1, 7))
def test_a_pending_pass_gives_the_bits_of_one_that_has_run(configure, switch_after):
    config = configure(window=8)
    pending, flushed = pair(config)[0], pair(config)[0]
    for session in (pending, flushed):
        session.prompt(embeds(config, 1))
    for block, noise in enumerate(noises(config, switch_after + 2)):
        if block == switch_after:
            pending.switch_prompt(embeds(config, 2))
            flushed.switch_prompt(embeds(config, 2))
        assert torch.equal(pending.generate(noise), flushed.generate(noise))
        flushed.flush()


def test_prompt_switch_changes_the_stream(configure):
    config = configure()
    plain, switched = pair(config)[0], pair(config)[0]
    for session in (plain, switched):
        session.prompt(embeds(config, 1))
    for block, noise in enumerate(noises(config, 3)):
        if block == 2:
            switched.switch_prompt(embeds(config, 2))
        plain.step(noise)
        switched.step(noise)
    assert relative(switched.latents, plain.latents) > 0.05


def test_at_frame_one_million(configure):
    config = configure()
    ring = config.stream.window - config.stream.sink
    # A multiple of the ring's turn, so that the newest frames stay where the oracle keeps them.
    errors = rollout(config, blocks=8, switch_after=6, jump=1_000_000 // ring * ring + ring)
    assert max(errors) < 1e-5


def test_batch_of_two(configure):
    errors = rollout(configure(batch=2, window=8), blocks=6, switch_after=4)
    assert max(errors) < 1e-5
