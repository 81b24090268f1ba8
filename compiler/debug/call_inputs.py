"""Inputs of one component call, in the dtypes of the engine and of the program."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from vidc.compiler.validate.golden import Golden, record
from vidc.compiler.validate.metrics import compare
from vidc.compiler.validate.play import Player
from vidc.plugins.signature import Signature, TensorSpec
from vidc.runtime.engines import Engine, Wrapper
from vidc.runtime.states import Buffers, States, argument
from vidc.runtime.weights import Weights


@dataclass(frozen=True)
class CallInputs:
    """Inputs and states of one call, and its weights.

    Tensors are on the CPU. Their axes are in the component's order, which an engine may permute.

    Attributes:
        stored: inputs and states in the engine's dtypes, so a ring may be in 8 bits.
        program: the same in the program's dtypes; zeros for states whose old values are not read.
        weights: weights of the bundle.
    """

    stored: Mapping[str, Tensor]
    program: Mapping[str, Tensor]
    weights: Weights

    @classmethod
    def of(
        cls, engine: Engine, signature: Signature, stored: Mapping[str, Tensor], weights: Weights
    ) -> Self:
        """Converts the inputs and states of an engine to those of its component's program.

        Args:
            engine: the engine that was called.
            signature: signature of the component's program.
            stored: inputs and states in the engine's dtypes.
            weights: weights of the bundle.
        """
        unread = {
            spec.name: torch.zeros(spec.shape, dtype=spec.torch_dtype)
            for spec in signature.states
            if not spec.reads
        }

        def weight(name: str) -> Tensor:
            return engine.weight(name).cpu()

        program = {
            name: as_program(engine.signature[name], signature[name], tensor, weight)
            for name, tensor in stored.items()
        }
        return cls(stored, unread | program, weights)

    def find(self, name: str) -> Tensor:
        """Returns an input, state or weight in the program's dtype."""
        return self.program[name] if name in self.program else self.weights[name]


def as_program(
    stored: TensorSpec, program: TensorSpec, state: Tensor, weight: Callable[[str], Tensor]
) -> Tensor:
    """Converts an engine's state to the dtype of the component's program.

    Args:
        stored: spec of the state in the engine.
        program: spec of the state in the program.
        state: values with the component's axes.
        weight: returns a weight by name.
    """
    values = state if stored.axes is None else state.permute(stored.axes)
    if stored.dtype == program.dtype:
        return stored.ordered(values).contiguous()
    return stored.dequantize(values, weight).to(program.torch_dtype)


class _Captured(Wrapper):
    """Engine that records the inputs of one of its calls."""

    def __init__(self, engine: Engine, call: int) -> None:
        super().__init__(engine)
        self.inputs: dict[str, Tensor] = {}
        self._left = call

    def run(self, buffers: Buffers, states: States) -> None:
        if self._left == 0:
            self.inputs = {
                spec.name: spec.original(argument(spec, buffers, states)).to("cpu", copy=True)
                for spec in self.signature.arguments
                if spec.reads
            }
        self._left -= 1
        self._engine.run(buffers, states)


def inputs_of_first_error(
    golden: Golden, player: Player, component: str, limit: float
) -> dict[str, Tensor] | None:
    """Returns the inputs of a component's first golden call whose error exceeds a limit.

    Returns None if no call exceeds it. States have the component's axes and the engine's dtypes.

    Args:
        golden: golden data of the bundle.
        player: player of the bundle.
        component: name of the component.
        limit: largest relative L2 against the golden data.
    """
    inputs = golden.inputs.to(player.resources.device)
    found = record(player, golden.scenario, inputs, forced_by=golden.reference)
    calls = [
        {name: compare(value, expected[name]).relative_l2 for name, value in written.items()}
        for (called, written), (_, expected) in zip(
            found.calls, golden.reference.calls, strict=True
        )
        if called == component
    ]
    wrong = [number for number, errors in enumerate(calls) if not max(errors.values()) <= limit]
    if not wrong:
        return None
    engines = player.resources.engines
    captured = _Captured(engines[component], wrong[0])
    watched = player.with_engines({**engines, component: captured})
    record(watched, golden.scenario, inputs, forced_by=golden.reference)
    return captured.inputs


def inputs_of_first_calls(golden: Golden, player: Player) -> dict[str, dict[str, Tensor]]:
    """Returns the inputs of each component's first golden call, in the order of the calls.

    States have the component's axes and the engine's dtypes.

    Args:
        golden: golden data of the bundle.
        player: player of the bundle.
    """
    engines = player.resources.engines
    captured = {name: _Captured(engine, 0) for name, engine in engines.items()}
    watched = player.with_engines(captured)
    inputs = golden.inputs.to(player.resources.device)
    record(watched, golden.scenario, inputs, forced_by=golden.reference)
    called = dict.fromkeys(name for name, _ in golden.reference.calls)
    return {name: captured[name].inputs for name in called}
