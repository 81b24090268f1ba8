"""Rollouts with quantized layers, compared with the same rollouts in high precision."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from vidc.compiler.build.calibration_rollouts import scenario
from vidc.compiler.quantize.switch import QuantizedLayers
from vidc.compiler.validate.metrics import compare, psnr
from vidc.compiler.validate.play import Inputs
from vidc.compiler.validate.reference import part_engines, player
from vidc.exporters.families.family import Family
from vidc.runtime.engines import Engine, Wrapper
from vidc.runtime.program import program
from vidc.runtime.states import Buffers, States

FRAMES, LATENTS = "frames", "latents"
_FRAME_PEAK = 255.0


@dataclass(frozen=True)
class Damage:
    """Error of quantized layers.

    Attributes:
        sqnr_db: SQNR of the worst call, over the outputs in the program's ``teacher_forced``. After
            each call the reference's values replace them.
        psnr_db: PSNR of the worst block of any rollout. Each block builds on the reference's
            earlier blocks if the program has ``forces_blocks``, else on the rollout's own.
    """

    sqnr_db: float
    psnr_db: float


@dataclass(frozen=True)
class _Reference:
    """Rollout in high precision.

    ``forced`` has the values of the outputs in ``teacher_forced`` by component, call by call.
    ``blocks`` are frames or latents. ``latents`` are None for a program without ``forces_blocks``.
    """

    inputs: Inputs
    forced: Mapping[str, list[Tensor]]
    latents: list[Tensor] | None
    blocks: list[Tensor]
    peak: float


class Trials:
    """Repeated rollouts with the same prompts and noise and different quantized layers.

    With decoders, the PSNR is of frames with peak 255, as in ``vidc validate``. Without them, it is
    of latents, and the peak is the range of the high-precision rollout; the two are not comparable.

    Args:
        model: the model.
        decoders: components that decode, or none.
        layers: the transformer's layers.
        inputs: inputs of each rollout, on the engines' device.
    """

    def __init__(
        self,
        model: Family,
        decoders: Mapping[str, Engine],
        layers: QuantizedLayers,
        inputs: Sequence[Inputs],
    ) -> None:
        self._model = model
        self._decoders = decoders
        self._layers = layers
        self._engines = self._made()
        self._forces_blocks = program(model.program).forces_blocks
        outputs = program(model.program).teacher_forced
        self._outputs = {name: output for name, output in outputs if name in self._engines}
        self._references = [self._reference(each) for each in inputs]

    @property
    def compared(self) -> str:
        """Subject of PSNR: ``frames`` or ``latents``."""
        return FRAMES if self._decoders else LATENTS

    def damage(self, layers: Collection[str]) -> Damage:
        """Returns the damage of these layers, from two rollouts for each input."""
        with self._quantized(layers):
            return Damage(
                min(self._sqnr(reference) for reference in self._references),
                min(self._psnr(reference) for reference in self._references),
            )

    def psnr(self, layers: Collection[str]) -> float:
        """Returns the PSNR of these layers, from one rollout for each input."""
        with self._quantized(layers):
            return min(self._psnr(reference) for reference in self._references)

    @contextmanager
    def _quantized(self, layers: Collection[str]) -> Iterator[None]:
        with self._layers.quantized(layers):
            self._engines = self._made()
            yield

    def _made(self) -> Mapping[str, Engine]:
        return part_engines(self._model.quantized_part, self._layers.network)

    def _reference(self, inputs: Inputs) -> _Reference:
        forced: dict[str, list[Tensor]] = {name: [] for name in self._outputs}
        latents = self._play(
            inputs,
            {
                name: _Recorded(self._engines[name], output, forced[name])
                for name, output in self._outputs.items()
            },
        )
        values = torch.stack(latents)
        peak = _FRAME_PEAK if self._decoders else float(values.max() - values.min())
        given = latents if self._forces_blocks else None
        return _Reference(inputs, forced, given, self._pictured(latents), peak)

    def _sqnr(self, reference: _Reference) -> float:
        forced = {
            name: _Forced(self._engines[name], output, iter(reference.forced[name]))
            for name, output in self._outputs.items()
        }
        self._play(reference.inputs, forced)
        return min(engine.worst for engine in forced.values())

    def _psnr(self, reference: _Reference) -> float:
        blocks = self._pictured(self._play(reference.inputs, {}, reference.latents))
        if len(blocks) != len(reference.blocks):
            return -math.inf
        pairs = zip(blocks, reference.blocks, strict=True)
        return min(psnr(block, expected, reference.peak) for block, expected in pairs)

    def _play(
        self,
        inputs: Inputs,
        instead: Mapping[str, Engine],
        forced: Sequence[Tensor] | None = None,
    ) -> list[Tensor]:
        playing = player(self._model, {**self._engines, **instead}, self._layers.device)
        played = playing.rollout(scenario(self._model), inputs, forced=forced)
        return [latent.cpu() for latent in played.latents]

    def _pictured(self, latents: Sequence[Tensor]) -> list[Tensor]:
        """Returns each block as frames or latents; fewer if a block is not finite."""
        if not self._decoders:
            return list(latents)
        decoding = player(self._model, self._decoders, self._layers.device)
        decoded = decoding.decode(latents)
        return [decoded[block] for block in sorted(decoded)]


class _Recorded(Wrapper):
    """Wrapper that records one output of an engine at each call."""

    def __init__(self, engine: Engine, output: str, values: list[Tensor]) -> None:
        super().__init__(engine)
        self._output = output
        self._values = values

    def run(self, buffers: Buffers, states: States) -> None:
        self._engine.run(buffers, states)
        self._values.append(buffers.outputs[self._output].clone())


class _Forced(Wrapper):
    """Engine under teacher forcing: expected values of one output replace its own."""

    def __init__(self, engine: Engine, output: str, values: Iterator[Tensor]) -> None:
        super().__init__(engine)
        self._output = output
        self._values = values
        self.worst = math.inf

    def run(self, buffers: Buffers, states: States) -> None:
        self._engine.run(buffers, states)
        value, expected = buffers.outputs[self._output], next(self._values)
        self.worst = min(self.worst, compare(value, expected).sqnr_db)
        value.copy_(expected)
