"""Plays a scenario: the calls that golden data record and that a bundle repeats."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor

from vidc.compiler.validate.scenario import Scenario
from vidc.plugins.signature import Access
from vidc.runtime.engines import Engine, Wrapper
from vidc.runtime.graphs import DIRECT
from vidc.runtime.programs.base import Resources, Session
from vidc.runtime.states import Buffers, States


@dataclass(frozen=True)
class Inputs:
    """Inputs of a rollout.

    Attributes:
        prompts: embeddings before and after the switch, float32 ``[2, *prompt_shape]``; ``[2, 0]``
            if the program takes no prompts.
        noise: noise of each block, float32 ``[blocks, *noise_shape]``.
        tokens: tokens of the prompts, int64 ``[2, 1, L]`` for each input of the text encoder; empty
            without one.
        conditions: conditions of each block, float32 ``[blocks, *shape]`` by the names of the
            spec's ``condition_shapes``.
    """

    prompts: Tensor
    noise: Tensor
    tokens: Mapping[str, Tensor]
    conditions: Mapping[str, Tensor] = field(default_factory=dict)

    def to(self, device: torch.device) -> Self:
        """Returns the inputs on the device where they are played."""
        return replace(
            self,
            prompts=self.prompts.to(device),
            noise=self.noise.to(device),
            tokens={name: tokens.to(device) for name, tokens in self.tokens.items()},
            conditions={name: given.to(device) for name, given in self.conditions.items()},
        )


Observer = Callable[[int, str, Mapping[str, Tensor]], None]
"""Called for each engine call with its number, the component and the written tensors."""


class ObservedEngine(Wrapper):
    """Engine with an observer. Its outputs are set to NaN before it runs."""

    def __init__(self, name: str, engine: Engine, calls: "Calls") -> None:
        super().__init__(engine)
        self._name = name
        self._calls = calls

    def run(self, buffers: Buffers, states: States) -> None:
        """Runs the engine and passes the tensors that it wrote to the observer."""
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
        """Passes one call to the observer."""
        self._observer(self._count, component, tensors)
        self._count += 1


@dataclass(frozen=True)
class Played:
    """Results of a rollout.

    Attributes:
        latents: clean latent of each block, float32.
        frames: frames of some blocks by block, uint8 ``[videos, frames, H, W, 3]``.
    """

    latents: list[Tensor]
    frames: dict[int, Tensor]


class Player:
    """Plays scenarios with a program over engines: a bundle's, or PyTorch's.

    Args:
        program: session class.
        resources: spec, engines and device. Without engines that decode, latents stay undecoded.
            Sessions continue after values that are not finite, so that gates and reports show them.
    """

    def __init__(self, program: type[Session[Any]], resources: Resources) -> None:
        self.program = program
        self.resources = replace(resources, strict=False)

    def with_engines(self, engines: Mapping[str, Engine]) -> Self:
        """Returns a player over other engines, which it calls directly, without graphs."""
        return type(self)(self.program, replace(self.resources, engines=engines, runners=DIRECT))

    def rollout(
        self,
        scenario: Scenario,
        inputs: Inputs,
        keep: Collection[int] | None = None,
        forced: Sequence[Tensor] | None = None,
    ) -> Played:
        """Plays a rollout as a user runs it: each block builds on the engines' earlier blocks.

        With ``forced``, the given latents replace these: the engines fill the KV cache from them.

        Args:
            scenario: the scenario.
            inputs: its inputs, on the engines' device.
            keep: blocks whose frames are returned; by default ``scenario.pictured``.
            forced: latents of every block, for a program with ``forces_blocks``.
        """
        with self.program(self.resources) as session:
            return self.play(session, scenario, inputs, keep, forced)

    def play(
        self,
        session: Session[Any],
        scenario: Scenario,
        inputs: Inputs,
        keep: Collection[int] | None = None,
        forced: Sequence[Tensor] | None = None,
    ) -> Played:
        """Plays a rollout as ``rollout`` does, in a session that has just been opened or reset."""
        pictured = scenario.pictured if keep is None else keep
        played, prompted = Played([], {}), bool(self.resources.spec.prompt_shape)
        if prompted:
            session.prompt(inputs.prompts[0])
        for block, noise in enumerate(inputs.noise):
            if prompted and block == scenario.switch_after:
                # Calibration must see the pending clean pass, which the switch would drop.
                session.flush()
                session.switch_prompt(inputs.prompts[1])
            if inputs.conditions:
                session.condition(**{n: each[block] for n, each in inputs.conditions.items()})
            latent = session.generate(noise=noise)
            played.latents.append(latent)
            if forced is not None:
                session.force(forced[block].to(latent.device))
            if self.resources.spec.decode_components[-1] not in self.resources.engines:
                continue
            frames = session.decode(latent)
            if block in pictured:
                played.frames[block] = self._by_video(frames)
        session.flush()  # The last block's clean pass: there is no next block to run it.
        return played

    def components(
        self,
        scenario: Scenario,
        inputs: Inputs,
        observer: Observer,
        frames: Mapping[int, Tensor] | None = None,
    ) -> Played:
        """Plays a rollout, then makes the calls that a rollout leaves out (``program.cover``).

        An observer may overwrite outputs in ``program.teacher_forced``; the rollout continues from
        the new values.

        Args:
            scenario: the scenario.
            inputs: its inputs, on the engines' device.
            observer: called after every engine call.
            frames: frames that encoders read, as in ``Played``; by default the rollout's own.
        """
        calls = Calls(observer)
        watched = self.with_engines(
            {
                name: ObservedEngine(name, engine, calls)
                for name, engine in self.resources.engines.items()
            }
        )
        played = watched.rollout(scenario, inputs)
        seen = played if frames is None else replace(played, frames=dict(frames))
        self.program.cover(watched.resources, inputs, seen)
        return played

    def decode(self, latents: Iterable[Tensor]) -> dict[int, Tensor]:
        """Decodes the latents of a rollout, block by block; other engines may have made them.

        Returns:
            Frames by block, uint8 ``[videos, frames, H, W, 3]`` on the CPU. A block is left out if
            the decoder's values are not finite, because bytes would hide that.
        """
        names = self.resources.spec.decode_components
        checked = {name: _Checked(self.resources.engines[name]) for name in names}
        decoded = {}
        with self.program(self.with_engines(checked).resources) as session:
            for block, latent in enumerate(latents):
                for decoder in checked.values():
                    decoder.finite = True
                frames = session.decode(latent.to(self.resources.device))
                if all(decoder.finite for decoder in checked.values()):
                    decoded[block] = self._by_video(frames).cpu()
        return decoded

    def _by_video(self, frames: Tensor) -> Tensor:
        return frames.reshape(self.resources.spec.videos, *frames.shape[-4:])


class _Checked(Wrapper):
    """Engine that notes whether its outputs were finite."""

    finite = True

    def run(self, buffers: Buffers, states: States) -> None:
        self._engine.run(buffers, states)
        self.finite &= all(bool(output.isfinite().all()) for output in buffers.outputs.values())
