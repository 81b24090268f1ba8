"""What a component is given in one call: as its engine has it, and as its program does."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from vidc.plugins.signature import Signature, TensorSpec
from vidc.runtime.engines import Engine
from vidc.runtime.weights import Weights


@dataclass(frozen=True)
class Given:
    """Inputs and states on the CPU, with the axes of the component, and weights.

    Attributes:
        kept: in the engine's dtypes: a ring may be in 8 bits to it alone.
        own: in the program's; zeros for states whose old values are not read.
        weights: of the bundle.
    """

    kept: Mapping[str, Tensor]
    own: Mapping[str, Tensor]
    weights: Weights

    def find(self, name: str) -> Tensor:
        """An input, a state or a weight, as the program has it."""
        return self.own[name] if name in self.own else self.weights[name]


def given_to(
    engine: Engine, signature: Signature, kept: Mapping[str, Tensor], weights: Weights
) -> Given:
    """What an engine was given.

    Args:
        engine: it.
        signature: of its component's program.
        kept: inputs and states, as ``Given`` has them.
        weights: of the bundle.
    """
    unread = {
        spec.name: torch.zeros(spec.shape, dtype=spec.torch_dtype)
        for spec in signature.states
        if not spec.reads
    }

    def weight(name: str) -> Tensor:
        return engine.weight(name).cpu()

    own = {
        name: as_program(engine.signature[name], signature[name], tensor, weight)
        for name, tensor in kept.items()
    }
    return Given(kept, unread | own, weights)


def as_program(
    kept: TensorSpec, own: TensorSpec, state: Tensor, weight: Callable[[str], Tensor]
) -> Tensor:
    """A state of an engine as its component's program has it.

    Args:
        kept: how the engine keeps it.
        own: what it is in the program.
        state: with the component's own axes.
        weight: gives a weight by its name.
    """
    if kept.dtype == own.dtype:
        return state.contiguous()
    stored = state if kept.axes is None else state.permute(kept.axes)
    return kept.dequantize(stored, weight).to(own.torch_dtype)
