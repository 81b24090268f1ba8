"""Videos of a bundle, many prompts at a time."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vidc.runtime.bundle import Bundle
from vidc.runtime.programs.causal_video import CausalVideo
from vidc.runtime.states import Buffers, States


@dataclass(frozen=True)
class Script:
    """What one video is asked for.

    Attributes:
        prompt: from the start.
        later: from the block of a switch on; none where there is no switch.
    """

    prompt: str
    later: str | None = None


def with_levels(bundle: Bundle, levels: Sequence[float]) -> Bundle:
    """The same engines under a sampler with these shares of noise, a subset of the bundle's.

    Raises:
        ValueError: the bundle has no such level.
    """
    known = dict(zip(bundle.spec.sigmas, bundle.spec.timesteps, strict=True))
    if missing := [level for level in levels if level not in known]:
        raise ValueError(f"the bundle has no level {missing}, only {list(known)}")
    stream = replace(
        bundle.spec, sigmas=tuple(levels), timesteps=tuple(known[level] for level in levels)
    )
    return Bundle(bundle.program, replace(bundle.resources, spec=stream), bundle.notes)


def videos(
    bundle: Bundle,
    scripts: Sequence[Script],
    blocks: int,
    seed: int,
    switch: int | None = None,
    kept: Callable[[int], bool] = lambda block: True,
) -> Iterator[Tensor]:
    """A video for each script, as many at a time as the bundle's batch.

    Args:
        bundle: with a text encoder.
        scripts: what is asked for.
        blocks: of each video.
        seed: of the first batch; each later one has the next.
        switch: the first block under the later prompt.
        kept: which blocks are wanted.

    Yields:
        Frames of the wanted blocks, float32 ``[3, T, H, W]`` in -1..1 on the CPU, where they are
        scored.
    """
    batch = bundle.spec.batch
    for index, at in enumerate(range(0, len(scripts), batch)):
        part = scripts[at : at + batch]
        # A batch is whole: what is missing repeats its last one, and is not handed out.
        padded = [*part, *[part[-1]] * (batch - len(part))]
        session = bundle.session(seed=seed + index)
        session.prompt(_embeds(session, [script.prompt for script in padded]))
        frames = []
        for block in range(blocks):
            if block == switch:
                later = [script.later or script.prompt for script in padded]
                session.switch_prompt(_embeds(session, later))
            made = session.step()
            if kept(block):
                frames.append(made[None] if batch == 1 else made)
        whole = torch.cat(frames, 1).permute(0, 4, 1, 2, 3)
        for video in whole[: len(part)]:
            yield video.cpu().float() / 127.5 - 1


def reconstructed(bundle: Bundle, clips: Tensor) -> Tensor:
    """Clips that were encoded and decoded, block by block as a stream is.

    Args:
        bundle: with both directions of the VAE.
        clips: float32 ``[B, 3, T, H, W]`` in -1..1; B and the blocks of T are the bundle's.

    Returns:
        float32 of the same shape, after rounding to 8 bits.
    """
    block = bundle.spec.block
    sizes = [4 * block - 3, *[4 * block] * ((clips.shape[2] + 3) // (4 * block) - 1)]
    names = ["vae_encode_first", *["vae_encode"] * (len(sizes) - 1)]
    engines = {name: bundle.engines[name] for name in set(names)}
    states = States((engine.signature for engine in engines.values()), bundle.device)
    session = _decoding(bundle)
    frames = []
    for name, part in zip(names, clips.split(sizes, 2), strict=True):
        buffers = Buffers(engines[name].signature, bundle.device)
        buffers.set({"frames": part.transpose(1, 2)})
        engines[name].run(buffers, states)
        made = session.decode(buffers["latent"])
        frames.append(made[None] if bundle.spec.batch == 1 else made)
    return torch.cat(frames, 1).permute(0, 4, 1, 2, 3).float() / 127.5 - 1


def _decoding(bundle: Bundle) -> CausalVideo:
    if missing := {"vae_encode_first", "vae_encode"} - bundle.engines.keys():
        raise ValueError(f"the bundle has no {sorted(missing)}")
    session: CausalVideo = bundle.session()
    return session


def _embeds(session: CausalVideo, prompts: Sequence[str]) -> Tensor:
    """Embeddings of a batch whose rows have prompts of their own, ``[B, L, E]``."""
    return torch.cat([session.embeds(prompt)[:1] for prompt in prompts])
