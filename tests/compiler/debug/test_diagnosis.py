"""Diagnoses of a component with each kind of fault."""

import pytest
import torch
from interpreted import Interpreted, component

from vidc.compiler.config.resolve import resolve
from vidc.compiler.debug.debug import INPUTS, OPTIMIZER, REBUILT, diagnose
from vidc.compiler.debug.probe import EngineProgram
from vidc.compiler.debug.reference import program_reference

OUTPUTS = 5
"""Number of outputs of text_kv: keys and values of two layers, and the length of the padding."""


@pytest.fixture(scope="module")
def text_kv():
    return component(resolve("tiny", gpu="cpu", backend="aoti", environ={}), "text_kv")


class Elsewhere(Interpreted):
    """A bundle's engine that was built where a fault was."""

    def once(self, engine, signature, given):
        return Interpreted(self.whole, self.weights, wrong_gelu).run(self.whole, given)


def wrong_gelu(program):
    for node in program.graph.find_nodes(op="call_function", target=torch.ops.aten.gelu.default):
        node.target, node.kwargs = torch.ops.aten.relu.default, {}


def sound(program):
    pass


def wrong_alone(program):
    if len(program.graph_signature.output_specs) == OUTPUTS:
        wrong_gelu(program)


@pytest.mark.parametrize(
    ("kind", "fault", "cause"),
    [
        (Interpreted, sound, INPUTS),
        (Interpreted, wrong_alone, OPTIMIZER),
        (Elsewhere, sound, REBUILT),
        (Interpreted, wrong_gelu, None),
    ],
)
def test_the_cause_is_told(text_kv, tmp_path, kind, fault, cause):
    made, given = text_kv
    rebuilder = kind(made, given.weights, fault)
    engine = EngineProgram(made, None, rebuilder, given, native=False)
    reference = program_reference(made, given)
    found = diagnose("text_kv", 1e-4, engine, reference, tmp_path / "debug")
    assert found.cause == cause
    assert (found.finding is None) == (cause is not None)
    assert (tmp_path / "debug").exists() == (cause is None)
    assert (cause or "aten.gelu.default 'gelu'") in found.text
