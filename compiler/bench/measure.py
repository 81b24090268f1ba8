"""Measures streams side by side in one process, in turn, so that each meets the same machine.

A block is the denoising passes and the clean pass that writes its keys and values; decoding it is
measured apart, and both together as a stream runs them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle

import torch
from torch import Tensor

from vidc.compiler.bench.clock import Clock
from vidc.compiler.bench.metrics import Samples, derive
from vidc.compiler.bench.streams import Opener, Stream
from vidc.plugins.errors import GateError
from vidc.runtime.noise import block_noise
from vidc.runtime.stream import StreamSpec

WARMUP = 20
SAMPLES = 100
RUN = 10
"""Blocks that one stream makes at a stretch where the time from block to block is measured."""
PIPELINE = 2
"""The first of them, until which what may overlap does not yet."""
LIFE_FRAMES = 900
"""Latent frames after which a stream is opened anew: the public code ends at 1024."""
_NOISES = 4


@dataclass(frozen=True)
class Protocol:
    """How often what is measured.

    Attributes:
        warmup: rounds of each kind that come before and are not counted.
        samples: of each figure.
        seed: of the streams and of the noise that they are given.
    """

    warmup: int = WARMUP
    samples: int = SAMPLES
    seed: int = 0

    @property
    def rounds(self) -> int:
        """Blocks, runs and switches of each stream, for a progress bar."""
        return 2 * (self.warmup + self.samples) + _runs(self.warmup) + _runs(self.samples)


class Lane:
    """One stream of those that run in turn: full windows, prompts and noise to go on with.

    A stream that is opened anew gets its window filled before it is handed out.
    """

    def __init__(self, name: str, opener: Opener, track: "Track") -> None:
        self.name = name
        self.samples: Samples = {}
        self.prompts = cycle(track.prompts)
        self._opener = opener
        self._track = track
        self._stream: Stream | None = None
        self._frames = 0

    def stream(self, blocks: int) -> Stream:
        """The stream, with room for this many more blocks."""
        spec = self._track.spec
        frames = blocks * spec.block
        if self._stream is None or self._frames + frames > LIFE_FRAMES:
            # Before the next one is opened: two may not fit.
            self.close()
            self._stream = self._opener()
            self._stream.prompt(next(self.prompts))
            for _ in range(_filling(spec)):
                self._stream.step(next(self._track.noises))
            self._frames = _filling(spec) * spec.block
        self._frames += frames
        return self._stream

    def close(self) -> None:
        """Lets go of the stream."""
        self._stream = None

    def keep(self, found: Mapping[str, list[float]]) -> None:
        """Adds samples."""
        for name, values in found.items():
            self.samples.setdefault(name, []).extend(values)


class Track:
    """What every lane is measured with."""

    def __init__(self, spec: StreamSpec, device: torch.device, prompts: Tensor, seed: int) -> None:
        self.spec = spec
        self.clock = Clock(device)
        self.prompts = prompts.to(device)
        shape = (spec.batch, spec.block, *spec.latent)
        drawn = [
            block_noise(seed, block, len(spec.sigmas), shape).to(device) for block in range(_NOISES)
        ]
        self.noises: Iterator[Tensor] = cycle(drawn)


def measure(
    openers: Mapping[str, Opener],
    spec: StreamSpec,
    device: torch.device,
    prompts: Tensor,
    protocol: Protocol,
    tick: Callable[[], None],
) -> dict[str, Samples]:
    """Raw samples of each stream by its name, with the figures that follow from them.

    Args:
        openers: of the streams by name.
        spec: of all of them.
        device: where they run.
        prompts: embeddings before and after a switch, ``[2, B, L, E]``.
        protocol: how often.
        tick: called after each of ``protocol.rounds``.

    Raises:
        GateError: ``VIDC-BENCH-FINITE``, a stream's latents are not finite.
    """
    track = Track(spec, device, prompts, protocol.seed)
    lanes = [Lane(name, opener, track) for name, opener in openers.items()]
    for work, rounds, warmup in (
        (_parts, protocol.samples, protocol.warmup),
        (_stretch, _runs(protocol.samples), _runs(protocol.warmup)),
        (_switch, protocol.samples, protocol.warmup),
    ):
        for number in range(warmup + rounds):
            for lane in lanes:
                found = work(lane, track)
                if number >= warmup:
                    lane.keep(found)
            tick()
        for lane in lanes:
            lane.close()
    return {
        lane.name: {
            name: values[: protocol.samples] for name, values in derive(lane.samples, spec).items()
        }
        for lane in lanes
    }


def _parts(lane: Lane, track: Track) -> Samples:
    """A block, and its decoding, each until it is done."""
    stream, noise = lane.stream(1), next(track.noises)
    latent, block = track.clock.time(lambda: _block(stream, noise))
    _require_finite(lane, latent)
    _, vae = track.clock.time(lambda: stream.decode(latent))
    return {"block_ms": [block], "vae_ms": [vae]}


def _stretch(lane: Lane, track: Track) -> Samples:
    """Blocks with their decoding, one after the other, as a viewer gets them.

    The stream draws its noise itself. It may work on a block while its decoder works on the one
    before; the device is not waited for in between, but for the last block but one, as by a viewer.
    """
    stream, clock = lane.stream(RUN), track.clock
    clock.wait()
    marks = []
    for block in range(RUN):
        stream.step()
        marks.append(clock.mark())
        if block > 0:
            clock.reach(marks[block - 1])
    counted = range(PIPELINE, RUN)
    times = [clock.between(marks[block - 1], marks[block]) for block in counted]
    clock.wait()
    return {"stream_ms": times}


def _switch(lane: Lane, track: Track) -> Samples:
    """A block, a prompt switch and the block after it, each until it is done."""
    stream, clock = lane.stream(2), track.clock
    noises = next(track.noises), next(track.noises)
    _, before = clock.time(lambda: _block(stream, noises[0]))
    prompt = next(lane.prompts)
    _, switch = clock.time(lambda: stream.switch_prompt(prompt))
    _, after = clock.time(lambda: _block(stream, noises[1]))
    return {
        "switch_ms": [switch],
        "switch_block_ms": [switch + after],
        "switch_extra_ms": [switch + after - before],
    }


def _block(stream: Stream, noise: Tensor) -> Tensor:
    latent = stream.denoise(noise)
    stream.remember(latent)
    return latent


def _filling(spec: StreamSpec) -> int:
    """Blocks after which the window is full, and one more."""
    return -(-spec.window // spec.block) + 1


def _runs(samples: int) -> int:
    return -(-samples // (RUN - PIPELINE))


def _require_finite(lane: Lane, latent: Tensor) -> None:
    if not latent.isfinite().all():
        raise GateError(
            "VIDC-BENCH-FINITE",
            f"{lane.name}: latents of a block are not finite, so its time means nothing",
            "run `vidc validate` on the bundle",
        )
