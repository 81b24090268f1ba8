"""The tensors that a component was given when it first left its tolerance."""

from collections.abc import Mapping

import torch
from torch import Tensor

from vidc.compiler.validate.golden import Golden, record
from vidc.compiler.validate.metrics import compare
from vidc.runtime.engines import Engine, Wrapper
from vidc.runtime.programs.stream import StreamSpec
from vidc.runtime.states import Buffers, States, argument


class _Captured(Wrapper):
    """An engine that remembers what it is given in one of its calls."""

    def __init__(self, engine: Engine, call: int) -> None:
        super().__init__(engine)
        self.given: dict[str, Tensor] = {}
        self._left = call

    def run(self, buffers: Buffers, states: States) -> None:
        if self._left == 0:
            self.given = {
                spec.name: spec.original(argument(spec, buffers, states)).to("cpu", copy=True)
                for spec in self.signature.arguments
                if spec.reads
            }
        self._left -= 1
        self._engine.run(buffers, states)


def given_at_first_error(
    golden: Golden,
    stream: StreamSpec,
    engines: Mapping[str, Engine],
    device: torch.device,
    component: str,
    limit: float,
) -> dict[str, Tensor] | None:
    """What a component reads in its first call of the golden scenario that errs above a limit.

    None where no call does. States have the axes of the component, and the engine's dtypes.

    Args:
        golden: of the bundle.
        stream: of the bundle.
        engines: by component.
        device: of the engines.
        component: which one.
        limit: of relative L2 against the golden data.
    """
    inputs = golden.inputs.to(device)
    found = record(golden.scenario, inputs, stream, engines, forced_by=golden.reference)
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
    captured = _Captured(engines[component], wrong[0])
    record(
        golden.scenario, inputs, stream, {**engines, component: captured},
        forced_by=golden.reference,
    )  # fmt: skip
    return captured.given
