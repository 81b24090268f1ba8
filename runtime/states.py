"""Static buffers of one stream: states, and each component's inputs and outputs."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from vidc.plugins.signature import Role, Signature, TensorSpec
from vidc.runtime.strict import field_error


def shared_states(signatures: Iterable[Signature]) -> dict[str, TensorSpec]:
    """Returns the states of these engines by name; engines may share a state.

    Raises:
        GateError: ``VIDC-BUNDLE-FIELD``, engines disagree on a state's shape, dtype, axis order or
            quantization.
    """
    specs: dict[str, TensorSpec] = {}
    for spec in (state for signature in signatures for state in signature.states):
        known = specs.setdefault(spec.name, spec)
        if _storage(known) != _storage(spec):
            raise field_error(
                "manifest.engines",
                f"state {spec.name} is {known.dtype}{list(known.shape)} to one engine and "
                f"{spec.dtype}{list(spec.shape)} to another, or its axes are in another order, or "
                "its quantization differs",
            )
    return specs


def _storage(spec: TensorSpec) -> tuple[object, ...]:
    """Returns what all engines that share a state must agree on."""
    return (spec.shape, spec.dtype, spec.axes, spec.rounding)


class States:
    """All states of a stream, allocated once.

    A state that an engine cannot write in place has a spare buffer: the engine writes the spare,
    then ``flip`` swaps the two.
    """

    def __init__(self, signatures: Iterable[Signature], device: torch.device) -> None:
        signatures = tuple(signatures)
        specs = shared_states(signatures)
        spares = {
            spec.name
            for signature in signatures
            for spec in signature.states
            if spec.writes and not spec.in_place
        }
        self._current = {name: _zeros(spec, device) for name, spec in specs.items()}
        self._spare = {name: _zeros(specs[name], device) for name in sorted(spares)}

    def __getitem__(self, name: str) -> Tensor:
        return self._current[name]

    def spare(self, name: str) -> Tensor:
        """Returns the buffer for the state's new value from a functional engine."""
        return self._spare[name]

    def flip(self, names: Iterable[str]) -> None:
        """Swaps the current and spare buffers of these states."""
        for name in names:
            self._current[name], self._spare[name] = self._spare[name], self._current[name]

    def fill(self, name: str, value: float) -> None:
        """Fills a state and its spare with one value."""
        self._current[name].fill_(value)
        if name in self._spare:
            self._spare[name].fill_(value)

    def clear(self) -> None:
        """Sets every state to zero: attention may read unwritten slots."""
        for name in self._current:
            self.fill(name, 0.0)


class Buffers:
    """Static input and output buffers of one component."""

    def __init__(self, signature: Signature, device: torch.device) -> None:
        self.inputs = {spec.name: _zeros(spec, device) for spec in signature.inputs}
        self.outputs = {spec.name: _zeros(spec, device) for spec in signature.outputs}

    def __getitem__(self, name: str) -> Tensor:
        return self.inputs[name] if name in self.inputs else self.outputs[name]

    def set(self, values: Mapping[str, Tensor | float]) -> None:
        """Copies values into inputs; a number fills the whole tensor."""
        for name, value in values.items():
            if isinstance(value, Tensor):
                self.inputs[name].copy_(value)
            else:
                self.inputs[name].fill_(value)


def argument(spec: TensorSpec, buffers: Buffers, states: States) -> Tensor:
    """Returns the tensor that a component reads as an input or state of its signature."""
    return states[spec.name] if spec.role is Role.STATE else buffers.inputs[spec.name]


def _zeros(spec: TensorSpec, device: torch.device) -> Tensor:
    return torch.zeros(spec.shape, dtype=spec.torch_dtype, device=device)
