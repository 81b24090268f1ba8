"""Calls of program ``causal_video`` that no rollout makes, for golden data to record."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vidc.runtime.programs.base import Resources
from vidc.runtime.programs.causal_video import TEXT_ENCODER, CausalVideo
from vidc.runtime.states import Buffers, States


def cover(resources: Resources, inputs: Any, played: Any) -> None:
    """Calls each component that ``resources`` has in the states that a rollout leaves out."""
    with CausalVideo(_single_step(resources)) as session:
        _write_everywhere(session, inputs, played.latents)
        session.reset()
        _switch_everywhere(session, inputs, played.latents)
    if TEXT_ENCODER in resources.engines:
        _encode_texts(resources, inputs.tokens)
    for decoder in resources.spec.decoders:
        if f"{decoder}_encode" in resources.engines:
            _encode(resources, decoder, played.frames)
    for decoder in resources.spec.decoders[1:]:
        _decode(resources, decoder, played.latents)


def _single_step(resources: Resources) -> Resources:
    """Returns resources with one denoising step: further steps read the ring in the same way."""
    spec = resources.spec
    return replace(
        resources, spec=replace(spec, timesteps=spec.timesteps[:1], sigmas=spec.sigmas[:1])
    )


def _write_everywhere(session: CausalVideo, inputs: Any, latents: list[Tensor]) -> None:
    """Runs clean passes until the ring has wrapped, then denoises over the whole ring."""
    session.prompt(inputs.prompts[0])
    for block in range(session.spec.switch_points.stop - 1):
        session.remember(latents[block % len(latents)])
    session.generate(inputs.noise[0, :1])


def _switch_everywhere(session: CausalVideo, inputs: Any, latents: list[Tensor]) -> None:
    """Switches between two prompts after each block but the first, until the ring has wrapped."""
    points = session.spec.switch_points
    session.prompt(inputs.prompts[0])
    for blocks in range(1, points.stop):
        session.remember(latents[(blocks - 1) % len(latents)])
        if blocks in points:
            session.switch_prompt(inputs.prompts[(blocks + 1) % 2])


def _encode_texts(resources: Resources, tokens: Mapping[str, Tensor]) -> None:
    engine, device = resources.engines[TEXT_ENCODER], resources.device
    buffers = Buffers(engine.signature, device)
    for given in zip(*tokens.values(), strict=True):
        buffers.set(dict(zip(tokens, given, strict=True)))
        engine.run(buffers, States((engine.signature,), device))


def _encode(resources: Resources, decoder: str, frames: Mapping[int, Tensor]) -> None:
    """Encodes the first two blocks; repeats the last frame for an encoder that looks ahead."""
    engines = [resources.engines[f"{decoder}_encode{end}"] for end in ("_first", "")]
    clip = torch.cat([frames[block] for block in range(len(engines))], 1).to(resources.device)
    sizes = [engine.signature["frames"].shape[1] for engine in engines]
    missing = sum(sizes) - clip.shape[1]
    clip = torch.cat([clip, *[clip[:, -1:]] * missing], 1)
    pixels = clip.permute(0, 1, 4, 2, 3).float() / 127.5 - 1
    states = States((engine.signature for engine in engines), resources.device)
    for engine, block in zip(engines, pixels.split(sizes, 1), strict=True):
        buffers = Buffers(engine.signature, resources.device)
        buffers.set({"frames": block})
        engine.run(buffers, states)


def _decode(resources: Resources, decoder: str, latents: list[Tensor]) -> None:
    """Decodes all latents of a rollout with a decoder that the rollout does not use."""
    spec = resources.spec.with_decoder(decoder)
    with CausalVideo(replace(resources, spec=spec)) as session:
        for latent in latents:
            session.decode(latent)
