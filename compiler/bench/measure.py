"""Measures streams side by side in one process, in turn, so that each meets the same machine.

A block is the denoising passes and the clean pass that writes its keys and values; decoding it is
measured apart, and both together as a stream runs them.
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

WARMUP = 20
SAMPLES = 100
RUN = 11
"""Blocks that one stream makes at a stretch where the time from block to block is measured."""
PIPELINE = 2
"""The first of them, until which what may overlap does not yet."""
DRAIN = 1
"""The last of them, whose decoding has nothing more beside it."""
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


class Turns:
    """One contestant of those that take turns: its stream, and what it goes on with.

    A stream gets its window filled before it is handed out.
    """

    def __init__(
        self, name: str, contestant: Contestant, device: torch.device, prompts: Tensor, seed: int
    ) -> None:
        self.name = name
        self.samples: Samples = {}
        self.clock = Clock(device)
        self.prompts = cycle(prompts.to(device))
        spec = self.spec = contestant.spec
        shape = (spec.batch, spec.block, *spec.latent)
        steps = len(spec.sigmas)
        noises = [block_noise(seed, block, steps, shape).to(device) for block in range(_NOISES)]
        self.noises = cycle(noises)
        self._open = contestant.open
        self._stream: Stream | None = None

    def stream(self) -> Stream:
        """The stream; opened, prompted and with a full window."""
        if self._stream is None:
            self._stream = self._open()
            self._stream.prompt(next(self.prompts))
            # One more than fills the window, so that what is measured comes after a full one.
            filling = -(-self.spec.window // self.spec.block) + 1
            for _ in range(filling):
                self._stream.step(next(self.noises))
        return self._stream

    def close(self) -> None:
        """Lets go of the stream."""
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
    """Raw samples of each contestant by its name, with the figures that follow from them.

    Args:
        contestants: by name.
        device: where they run.
        prompts: embeddings before and after a switch, ``[2, B, L, E]``.
        protocol: how often.
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
        (_switch, protocol.warmup, protocol.samples),
    ]
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
    found = derive(turns.samples, turns.spec)
    return {name: values[:samples] for name, values in found.items()}


def _parts(turns: Turns) -> Samples:
    """A block, and its decoding, each until it is done."""
    stream, noise = turns.stream(), next(turns.noises)
    latent, block = turns.clock.time(lambda: stream.generate(noise))
    if not latent.isfinite().all():
        raise GateError(
            "VIDC-BENCH-FINITE",
            f"{turns.name}: latents of a block are not finite, so its time means nothing",
            "run `vidc validate` on the bundle",
        )
    _, vae = turns.clock.time(lambda: stream.decode(latent))
    return {"block_ms": [block], "vae_ms": [vae]}


def _stretch(turns: Turns) -> Samples:
    """Blocks with their decoding, one after the other, as a viewer gets them.

    The stream draws its noise itself. It may work on a block while its decoder works on the one
    before; the device is not waited for in between, but for the last block but one, as by a viewer.
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
    """A block, a prompt switch and the block after it, each until it is done."""
    stream, clock = turns.stream(), turns.clock
    noises, prompt = (next(turns.noises), next(turns.noises)), next(turns.prompts)
    _, before = clock.time(lambda: stream.generate(noises[0]))
    _, switch = clock.time(lambda: stream.switch_prompt(prompt))
    _, after = clock.time(lambda: stream.generate(noises[1]))
    return {
        "switch_ms": [switch],
        "switch_block_ms": [switch + after],
        "switch_extra_ms": [switch + after - before],
    }


def _runs(samples: int) -> int:
    return -(-samples // (RUN - PIPELINE - DRAIN))
