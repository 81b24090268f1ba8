"""Programs with more outputs, and parts of them."""

import pytest
from interpreted import component

from vidc.compiler.config.resolve import resolve
from vidc.compiler.debug.rewire import part_of, value_name, with_outputs
from vidc.exporters.lowering import expand
from vidc.exporters.program import load_program, save_program
from vidc.plugins.ops.quantized_linear import quantized_linear, quantized_linear_reference


@pytest.fixture(scope="module")
def made():
    settings = resolve("tiny", gpu="cpu", backend="aoti", precision="int8",
                       recipe="int8-weight-only", environ={})  # fmt: skip
    return component(settings, "text_kv")[0]


def calls(program):
    return program.graph.find_nodes(op="call_function", target=quantized_linear)


def test_values_stay_outputs_when_their_operators_are_opened_up(made, tmp_path):
    names = [node.name for node in calls(made.program)]
    marked = with_outputs(made, names)
    assert [spec.name for spec in marked.signature.outputs] == [*map(value_name, names)]
    save_program(marked.program, tmp_path / "marked.pt2")
    program = load_program(tmp_path / "marked.pt2")
    expand(program, quantized_linear, quantized_linear_reference)
    program.validate()
    assert not calls(program)
    assert [node.name for node in calls(made.program)] == names
    assert not made.signature.outputs


def test_part_signature_has_only_used_arguments(made):
    last = calls(made.program)[-1]
    part = part_of(made, [last.args[0].name], last.name)
    assert [s.name for s in part.signature] == [
        value_name(last.args[0].name),
        value_name(last.name),
    ]
    assert len(part.program.state_dict) == 3  # A weight, its scale and a bias.
    assert len(made.program.state_dict) > 3
    part.program.validate()


def test_a_part_that_writes_a_state_has_the_state(made):
    (output,) = made.program.graph.output_node().args
    part = part_of(made, [], output[-1].name)
    assert [s.name for s in part.signature.states] == [made.signature.states[-1].name]
    assert not part.signature.outputs
    assert set(part.signature.inputs) <= set(made.signature.inputs)
