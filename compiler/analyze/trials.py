"""Rollouts with some layers in 8 bits, held to the same rollouts in high precision."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vidc.compiler.build.calibration_rollouts import scenario
from vidc.compiler.quantize.fake import FakeQuantizer
from vidc.compiler.validate.metrics import compare, psnr
from vidc.compiler.validate.play import Inputs, decode_latents, play_rollout
from vidc.runtime.engines import Engine, Wrapper
from vidc.runtime.programs.stream import StreamSpec
from vidc.runtime.states import Buffers, States

FRAMES, LATENTS = "frames", "latents"
_DENOISE, _FLOW = "denoise", "flow"
_FRAME_PEAK = 255.0


@dataclass(frozen=True)
class Damage:
    """What layers in 8 bits do.

    Attributes:
        sqnr_db: of the flow, on its worst call, from the high-precision rollout's own latents.
        psnr_db: of the worst block of any rollout, each block building on what became of the last.
    """

    sqnr_db: float
    psnr_db: float


@dataclass(frozen=True)
class _Reference:
    """A rollout in high precision: its flows, call by call, and its blocks as they are compared."""

    inputs: Inputs
    flows: list[Tensor]
    blocks: list[Tensor]
    peak: float


class Trials:
    """The same rollouts again and again, from the same prompts and noise.

    Where there is a VAE, blocks are compared as frames, whose PSNR is that of ``vidc validate``:
    the peak is 255. Without one, as latents, and the peak is the distance from the smallest to the
    largest value of the rollout in high precision; the two figures have nothing to do with each
    other.

    Args:
        stream: of the model.
        engines: the transformer's components.
        decoders: the VAE's, or none.
        quantizer: of the transformer.
        inputs: of each rollout, on the device where the engines run.
    """

    def __init__(
        self,
        stream: StreamSpec,
        engines: Mapping[str, Engine],
        decoders: Mapping[str, Engine],
        quantizer: FakeQuantizer,
        inputs: Sequence[Inputs],
    ) -> None:
        self._stream = stream
        self._engines = quantizer.engines(engines)
        self._decoders = decoders
        self._quantizer = quantizer
        self._references = [self._reference(each) for each in inputs]

    @property
    def compared(self) -> str:
        """``frames`` or ``latents``."""
        return FRAMES if self._decoders else LATENTS

    def damage(self, layers: Collection[str]) -> Damage:
        """Of these layers in 8 bits: two rollouts for each input."""
        with self._quantizer.quantized(layers):
            return Damage(
                min(self._sqnr(reference) for reference in self._references),
                min(self._psnr(reference) for reference in self._references),
            )

    def psnr(self, layers: Collection[str]) -> float:
        """The same figure of ``Damage``, alone: one rollout for each input."""
        with self._quantizer.quantized(layers):
            return min(self._psnr(reference) for reference in self._references)

    def _reference(self, inputs: Inputs) -> _Reference:
        flows: list[Tensor] = []
        latents = self._play(inputs, _Recorded(self._engines[_DENOISE], flows))
        values = torch.stack(latents)
        peak = _FRAME_PEAK if self._decoders else float(values.max() - values.min())
        return _Reference(inputs, flows, self._pictured(latents), peak)

    def _sqnr(self, reference: _Reference) -> float:
        forced = _Forced(self._engines[_DENOISE], iter(reference.flows))
        self._play(reference.inputs, forced)
        return forced.worst

    def _psnr(self, reference: _Reference) -> float:
        blocks = self._pictured(self._play(reference.inputs, self._engines[_DENOISE]))
        if len(blocks) != len(reference.blocks):
            return -math.inf
        pairs = zip(blocks, reference.blocks, strict=True)
        return min(psnr(block, expected, reference.peak) for block, expected in pairs)

    def _play(self, inputs: Inputs, denoise: Engine) -> list[Tensor]:
        engines = {**self._engines, _DENOISE: denoise}
        played = play_rollout(scenario(self._stream), inputs, self._stream, engines)
        return [latent.cpu() for latent in played.latents]

    def _pictured(self, latents: Sequence[Tensor]) -> list[Tensor]:
        """Each block as it is compared; fewer where one is not finite."""
        if not self._decoders:
            return list(latents)
        decoded = decode_latents(latents, self._decoders, self._quantizer.device)
        return [decoded[block] for block in sorted(decoded)]


class _Recorded(Wrapper):
    """A ``denoise`` whose flows are kept."""

    def __init__(self, engine: Engine, flows: list[Tensor]) -> None:
        super().__init__(engine)
        self._flows = flows

    def run(self, buffers: Buffers, states: States) -> None:
        self._engine.run(buffers, states)
        self._flows.append(buffers.outputs[_FLOW].clone())


class _Forced(Wrapper):
    """A ``denoise`` whose flows are compared with others, which then take their place."""

    def __init__(self, engine: Engine, flows: Iterator[Tensor]) -> None:
        super().__init__(engine)
        self._flows = flows
        self.worst = math.inf

    def run(self, buffers: Buffers, states: States) -> None:
        self._engine.run(buffers, states)
        flow, expected = buffers.outputs[_FLOW], next(self._flows)
        self.worst = min(self.worst, compare(flow, expected).sqnr_db)
        flow.copy_(expected)
