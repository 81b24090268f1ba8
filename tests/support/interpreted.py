"""A stand-in for a backend: programs run by PyTorch, perhaps with one operator that is wrong."""

import torch
from random_transformer import random_weights

from vidc.compiler.build.program import component_program
from vidc.compiler.debug.call_inputs import CallInputs
from vidc.compiler.debug.reference import program_reference
from vidc.compiler.debug.rewire import result_nodes, with_outputs
from vidc.plugins.signature import DTYPES


class Interpreted:
    """Makes engines as ``Rebuilder`` does, and counts them.

    Args:
        whole: the component's program, which the bundle's engine runs.
        weights: by name.
        fault: changes a program before it runs.
    """

    def __init__(self, whole, weights, fault=lambda program: None):
        self.whole = whole
        self.weights = weights
        self.fault = fault
        self.built = 0

    def run(self, made, given):
        self.built += 1
        made = with_outputs(made, [])  # A copy.
        self.fault(made.program)
        own = {**zeros(made.signature), **given}
        reference = program_reference(made, CallInputs(given, own, self.weights))
        return reference.values(result_nodes(made))

    def once(self, engine, signature, given):
        return self.run(self.whole, given)


def zeros(signature):
    return {s.name: torch.zeros(s.shape, dtype=DTYPES[s.dtype]) for s in signature.arguments}


def drawn(signature):
    """Arguments that a component could be given: a ring that is half full."""
    generator = torch.Generator().manual_seed(0)
    values = {}
    for spec in signature.arguments:
        if spec.reads and spec.torch_dtype.is_floating_point:
            values[spec.name] = torch.randn(spec.shape, generator=generator).to(spec.torch_dtype)
        elif spec.reads:
            values[spec.name] = torch.full(spec.shape, 4, dtype=spec.torch_dtype)
    return values


def component(settings, name):
    """A component's program, what it is given, and drawn weights."""
    made = component_program(settings, name)
    drawn_weights = random_weights(settings.model.transformer, seed=1)
    weights = {f"transformer.{key}": value for key, value in drawn_weights.items()}
    for key, value in made.program.state_dict.items():
        if key not in weights or weights[key].dtype != value.dtype:
            weights[key] = in_8_bits(value)
    kept = drawn(made.signature)
    return made, CallInputs(kept, zeros(made.signature) | kept, weights)


def in_8_bits(like):
    """A weight in 8 bits, or one of the scales that come with these."""
    generator = torch.Generator().manual_seed(like.numel())
    if like.dtype == torch.int8:
        return torch.randint(-127, 128, like.shape, dtype=torch.int8, generator=generator)
    return (torch.rand(like.shape, generator=generator) * 1e-3 + 1e-3).to(like.dtype)
