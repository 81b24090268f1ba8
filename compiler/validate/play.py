"""Plays a scenario: the calls that golden data record and that a bundle repeats."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from vidc.compiler.validate.scenario import Scenario, switches
from vidc.plugins.signature import Access
from vidc.runtime.engines import Engine, Wrapper
from vidc.runtime.graphs import DIRECT, Runners
from vidc.runtime.programs.base import Resources
from vidc.runtime.programs.causal_video import TEXT_ENCODER, CausalVideo, levels
from vidc.runtime.programs.stream import StreamSpec
from vidc.runtime.states import Buffers, States

ENCODERS = ("vae_encode_first", "vae_encode")
DECODERS = ("vae_decode_first", "vae_decode")


@dataclass(frozen=True)
class Inputs:
    """Inputs of a rollout.

    Attributes:
        prompts: embeddings before and after the switch, float32 ``[2, B, L, E]``.
        noise: float32 ``[blocks, steps, B, F, C, h, w]``.
        tokens: ``input_ids`` and ``attention_mask`` of the prompts, int64 ``[2, 1, L]``, where
            there is a text encoder.
    """

    prompts: Tensor
    noise: Tensor
    tokens: Mapping[str, Tensor]

    def to(self, device: torch.device) -> Self:
        """The same on a device, which is where what is played from them runs."""
        return replace(
            self,
            prompts=self.prompts.to(device),
            noise=self.noise.to(device),
            tokens={name: tokens.to(device) for name, tokens in self.tokens.items()},
        )


Observer = Callable[[int, str, Mapping[str, Tensor]], None]
"""Told of each call of an engine: its number, the component, and what it wrote, by name."""


class ObservedEngine(Wrapper):
    """Engine with an observer. Its outputs are set to NaN before it runs."""

    def __init__(self, name: str, engine: Engine, calls: "Calls") -> None:
        super().__init__(engine)
        self._name = name
        self._calls = calls

    def run(self, buffers: Buffers, states: States) -> None:
        """Runs the engine and shows what it wrote."""
        for output in buffers.outputs.values():
            output.fill_(torch.nan)
        for state in self.signature.states:
            if state.access is Access.WRITE:
                states.fill(state.name, torch.nan)
        self._engine.run(buffers, states)
        written = {
            spec.name: spec.dequantize(states[spec.name], self.weight)
            for spec in self.signature.states
            if spec.writes
        }
        self._calls.next(self._name, buffers.outputs | written)


class Calls:
    """Numbers the calls of a scenario's engines for an observer."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._count = 0

    def next(self, component: str, tensors: Mapping[str, Tensor]) -> None:
        """Shows one call."""
        self._observer(self._count, component, tensors)
        self._count += 1


@dataclass(frozen=True)
class Played:
    """Results of a rollout.

    Attributes:
        latents: clean, float32 ``[B, F, C, h, w]``, block by block.
        frames: of the pictured blocks, uint8 ``[B, frames, H, W, 3]``.
    """

    latents: list[Tensor]
    frames: dict[int, Tensor]


def play_rollout(
    scenario: Scenario,
    inputs: Inputs,
    stream: StreamSpec,
    engines: Mapping[str, Engine],
    runners: Runners = DIRECT,
    keep: Collection[int] | None = None,
) -> Played:
    """A rollout as a user runs it: each block builds on what the engines made of the last.

    Args:
        engines: without the VAE's, latents are left undecoded.
        runners: a bundle's, so that what is played is what its sessions replay.
        keep: blocks whose frames are kept; those that the scenario pictures if left out.
    """
    pictured = scenario.pictured if keep is None else keep
    played = Played([], {})
    with _open(inputs, stream, engines, runners) as session:
        for block, noise in enumerate(inputs.noise):
            if block == scenario.switch_after:
                session.switch_prompt(inputs.prompts[1])
            latent = session.generate(noise)
            played.latents.append(latent)
            if DECODERS[1] not in engines:
                continue
            frames = session.decode(latent)
            if block in pictured:
                played.frames[block] = frames.reshape(stream.batch, *frames.shape[-4:])
    return played


def decode_latents(
    latents: Sequence[Tensor], engines: Mapping[str, Engine], device: torch.device
) -> dict[int, Tensor]:
    """Frames of the latents of a rollout from its first block on, which need not be its own.

    Args:
        latents: float32 ``[B, F, C, h, w]``, block by block.
        engines: the VAE's decoders among them.
        device: of the engines.

    Returns:
        uint8 ``[B, frames, H, W, 3]`` on the CPU, by block; a block whose pixels are not all
        finite is left out, as bytes would hide it.
    """
    states = States((engines[name].signature for name in DECODERS), device)
    buffers = {name: Buffers(engines[name].signature, device) for name in DECODERS}
    decoded = {}
    for block, latent in enumerate(latents):
        name = DECODERS[min(block, 1)]
        buffers[name].set({"latent": latent.to(device)})
        engines[name].run(buffers[name], states)
        pixels = buffers[name]["frames"]
        if pixels.isfinite().all():
            decoded[block] = levels(pixels).cpu()
    return decoded


def play_components(
    scenario: Scenario,
    inputs: Inputs,
    stream: StreamSpec,
    engines: Mapping[str, Engine],
    observer: Observer,
    frames: Mapping[int, Tensor] | None = None,
) -> Played:
    """Calls every component in the states that a rollout and any switch can bring it to.

    An observer may overwrite ``flow``: the rollout goes on from what it leaves there.

    Args:
        frames: what the encoders are given, as in ``Played``; the rollout's own if left out.
    """
    calls = Calls(observer)
    watched = {name: ObservedEngine(name, engine, calls) for name, engine in engines.items()}
    played = play_rollout(scenario, inputs, stream, watched)
    _switch_everywhere(played.latents, inputs, stream, watched)
    if TEXT_ENCODER in watched:
        _encode_text(watched[TEXT_ENCODER], inputs)
    if ENCODERS[0] in watched:
        _encode(watched, played.frames if frames is None else frames, inputs.noise.device)
    return played


def _open(
    inputs: Inputs, stream: StreamSpec, engines: Mapping[str, Engine], runners: Runners = DIRECT
) -> CausalVideo:
    session = CausalVideo(Resources(stream, engines, inputs.noise.device, runners))
    session.prompt(inputs.prompts[0])
    return session


def _switch_everywhere(
    latents: list[Tensor], inputs: Inputs, stream: StreamSpec, engines: Mapping[str, Engine]
) -> None:
    """Switches to and fro until the ring has wrapped, then denoises over the whole ring."""
    # Further passes would read the ring no differently.
    single = replace(stream, timesteps=stream.timesteps[:1], sigmas=stream.sigmas[:1])
    points = switches(stream)
    with _open(inputs, single, engines) as session:
        for blocks in range(1, points.stop):
            session.remember(latents[(blocks - 1) % len(latents)])
            if blocks in points:
                session.switch_prompt(inputs.prompts[(blocks + 1) % 2])
        session.generate(inputs.noise[0, :1])


def _encode_text(engine: Engine, inputs: Inputs) -> None:
    device = inputs.noise.device
    buffers = Buffers(engine.signature, device)
    for prompt in range(len(inputs.prompts)):
        buffers.set({name: tokens[prompt] for name, tokens in inputs.tokens.items()})
        engine.run(buffers, States((engine.signature,), device))


def _encode(
    engines: Mapping[str, Engine], frames: Mapping[int, Tensor], device: torch.device
) -> None:
    states = States((engines[name].signature for name in ENCODERS), device)
    for block, name in enumerate(ENCODERS):
        buffers = Buffers(engines[name].signature, device)
        pixels = frames[block].to(device).permute(0, 1, 4, 2, 3).float() / 127.5 - 1
        buffers.set({"frames": pixels})
        engines[name].run(buffers, states)
