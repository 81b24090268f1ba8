"""Measures streams in turn in one process, so that all see the same machine state.

The time of a block is that of its denoising passes and of the clean pass that writes the keys and
values of the finished latent. Decoding is measured separately, and together with the block as a
stream runs both.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import cycle, pairwise
from typing import Any

import torch
from torch import Tensor

from vidc.compiler.bench.clock import Clock
from vidc.compiler.bench.metrics import Samples, derive
from vidc.compiler.bench.streams import Contestant, Stream
from vidc.plugins.errors import GateError
from vidc.runtime.noise import block_noise
from vidc.runtime.programs.spec import ProgramSpec

WARMUP = 20
SAMPLES = 100
RUN = 11
"""Number of blocks that a stream generates without pause to measure the time between blocks."""
PIPELINE = 2
"""Number of first blocks that are not measured, until decoding and generation overlap."""
DRAIN = 1
"""Number of last blocks that are not measured: their decoding overlaps with nothing."""
_NOISES = 4


@dataclass(frozen=True)
class Protocol:
    """Numbers of rounds and samples of a benchmark.

    Attributes:
        warmup: number of uncounted samples of each metric before those that count.
        samples: number of samples of each metric.
        seed: seed of the streams and of explicit noise.
    """

    warmup: int = WARMUP
    samples: int = SAMPLES
    seed: int = 0

    def rounds(self, spec: ProgramSpec) -> int:
        """Returns the number of rounds, for a progress bar. In a round, every stream has a turn."""
        kinds = 2 if spec.prompt_shape else 1
        return kinds * (self.warmup + self.samples) + _runs(self.warmup) + _runs(self.samples)


class Turns:
    """Turns of one contestant: its stream, and the samples taken of it."""

    def __init__(
        self, name: str, contestant: Contestant, device: torch.device, prompts: Tensor, seed: int
    ) -> None:
        self.name = name
        self.samples: Samples = {}
        self.clock = Clock(device)
        self.prompts = cycle(prompts.to(device))
        self.spec, self.decoding = contestant.spec, contestant.decoding
        steps, shape = self.spec.noise_shape[0], self.spec.noise_shape[1:]
        noises = [block_noise(seed, block, steps, shape).to(device) for block in range(_NOISES)]
        self.noises = cycle(noises)
        self._open = contestant.open
        self._stream: Stream | None = None

    def stream(self) -> Stream:
        """Returns the stream, opened and prompted, with a full window."""
        if self._stream is None:
            self._stream = self._open()
            if self.spec.prompt_shape:
                self._stream.prompt(next(self.prompts))
            if self.spec.condition_shapes:
                self._stream.condition(**self.spec.draw_conditions(seed=0))
            # One block more than fills the window, so that measured blocks see a full window.
            for _ in range(self.spec.filling + 1):
                self._stream.step(next(self.noises))
        return self._stream

    def close(self) -> None:
        """Drops the stream."""
        self._stream = None

    def keep(self, found: Mapping[str, list[float]]) -> None:
        """Adds samples."""
        for name, values in found.items():
            self.samples.setdefault(name, []).extend(values)


Work = Callable[[Turns], Samples]


def measure(
    contestants: Mapping[str, Contestant],
    device: torch.device,
    prompts: Tensor,
    protocol: Protocol,
    tick: Callable[[], None],
) -> dict[str, Samples]:
    """Returns raw and derived samples of each contestant by name.

    Args:
        contestants: contestants by name.
        device: device of all streams.
        prompts: embeddings before and after a switch, ``[2, B, L, E]``; not read for programs
            without prompts, which have no switches.
        protocol: numbers of rounds and samples.
        tick: called after each of ``protocol.rounds``.

    Raises:
        GateError: ``VIDC-BENCH-FINITE``, a stream's latents are not finite.
    """
    all_turns = [
        Turns(name, contestant, device, prompts, protocol.seed)
        for name, contestant in contestants.items()
    ]
    works: list[tuple[Work, int, int]] = [
        (_parts, protocol.warmup, protocol.samples),
        (_stretch, _runs(protocol.warmup), _runs(protocol.samples)),
    ]
    if all(turns.spec.prompt_shape for turns in all_turns):
        works.append((_switch, protocol.warmup, protocol.samples))
    for work, warmup, rounds in works:
        for number in range(warmup + rounds):
            for turns in all_turns:
                found = work(turns)
                if number >= warmup:
                    turns.keep(found)
            tick()
        for turns in all_turns:
            turns.close()
    return {turns.name: _figures(turns, protocol.samples) for turns in all_turns}


def _figures(turns: Turns, samples: int) -> Samples:
    found = derive(turns.samples, turns.spec, turns.decoding)
    return {name: values[:samples] for name, values in found.items()}


def _parts(turns: Turns) -> Samples:
    """Measures one block and its decoding, each to completion, then a second block as a whole.

    ``flush`` runs the first block's clean pass before the second block starts. Its first frames
    then come as soon as after a pause.
    """
    stream, noise = turns.stream(), next(turns.noises)
    latent, block = turns.clock.time(lambda: stream.generate(noise=noise))
    if not latent.isfinite().all():
        raise GateError(
            "VIDC-BENCH-FINITE",
            f"{turns.name}: latents of a block are not finite, so its time has no meaning",
            "run `vidc validate` on the bundle",
        )
    _, decoding = turns.clock.time(lambda: stream.decode(latent))
    stream.flush()
    following = next(turns.noises)
    _, first = turns.clock.time(lambda: stream.step(following))
    return {"block_ms": [block], turns.decoding.metric: [decoding], "first_frames_ms": [first]}


def _stretch(turns: Turns) -> Samples:
    """Measures consecutive blocks with their decoding, as a viewer receives them.

    The stream draws its own noise. It may generate a block while the decoder works on the previous
    one. As for a viewer, the host waits for the previous block only, not for the device.
    """
    stream, clock = turns.stream(), turns.clock
    clock.wait()
    marks: list[Any] = []
    for _ in range(RUN):
        stream.step()
        if marks:
            clock.reach(marks[-1])
        marks.append(clock.mark())
    between = [clock.between(first, second) for first, second in pairwise(marks)]
    clock.wait()
    return {"stream_ms": between[PIPELINE - 1 : -DRAIN]}


def _switch(turns: Turns) -> Samples:
    """Measures a block, a prompt switch and the next block, each to completion."""
    stream, clock = turns.stream(), turns.clock
    noises, prompt = (next(turns.noises), next(turns.noises)), next(turns.prompts)
    _, before = clock.time(lambda: stream.generate(noise=noises[0]))
    _, switch = clock.time(lambda: stream.switch_prompt(prompt))
    _, after = clock.time(lambda: stream.generate(noise=noises[1]))
    return {
        "switch_ms": [switch],
        "switch_block_ms": [switch + after],
        "switch_extra_ms": [switch + after - before],
    }


def _runs(samples: int) -> int:
    return -(-samples // (RUN - PIPELINE - DRAIN))
