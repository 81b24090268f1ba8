"""Search for a program's wrong value, and the part of the program that shows it."""

import onnx
import onnxruntime
import pytest
import torch
from interpreted import Interpreted, component
from safetensors.torch import load_file

from vidc.compiler.config.resolve import resolve
from vidc.compiler.debug.probe import EngineProgram
from vidc.compiler.debug.reference import program_reference
from vidc.compiler.debug.reproduce import reproduce
from vidc.compiler.debug.search import cut, first_wrong, relative_error

LIMIT = 1e-4
SETTINGS = resolve("tiny", gpu="cpu", backend="aoti", environ={})
WRITES = torch.ops.higher_order.auto_functionalized_v2


@pytest.fixture(scope="module")
def denoise():
    return component(SETTINGS, "denoise")


@pytest.fixture
def look(denoise):
    """Denoise as a backend with a fault has it, what makes it, and its reference."""

    def looked(fault=lambda program: None, native=False):
        made, given = denoise
        rebuilder = Interpreted(made, given.weights, fault)
        engine = EngineProgram(made, None, rebuilder, given, native)
        return engine, rebuilder, program_reference(made, given)

    return looked


def search(engine, reference):
    found, expected = engine.results(), reference.values(engine.results())
    wrong = [name for name in found if not relative_error(found[name], expected[name]) <= LIMIT]
    return first_wrong(engine, reference, wrong, LIMIT)


def named(program, name):
    return [node for node in program.graph.nodes if node.name == name]


def wrong_epsilon(program):
    for node in named(program, "layer_norm_3"):
        node.args = (*node.args[:4], 3.0)


def wrong_attention(program):
    for node in named(program, "ring_attention_1"):
        query, *others = node.args
        with program.graph.inserting_before(node):
            double = program.graph.call_function(torch.ops.aten.mul.Tensor, (query, 2))
        node.args = (double, *others)


def wrong_write(program):
    """A block of the second layer's ring in a slot too far."""
    for node in named(program, "auto_functionalized_v2_2"):
        with program.graph.inserting_before(node):
            later = program.graph.call_function(
                torch.ops.aten.add.Tensor, (node.kwargs["position"], 1)
            )
        node.kwargs = {**node.kwargs, "position": later}


FAULTS = {
    "layer_norm_3": (wrong_epsilon, "aten.layer_norm.default", "attention_input("),
    "ring_attention_1": (wrong_attention, "vidc.ring_attention.default", "ring.attend("),
    "ring.k.1.out": (wrong_write, "vidc.ring_write.default", "_write_ring("),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_first_wrong_value_is_found_in_few_builds(look, tmp_path, name):
    fault, operator, code = FAULTS[name]
    engine, rebuilder, reference = look(fault)
    found = search(engine, reference)
    assert rebuilder.built <= 2 + 3  # Two of the results.
    assert found.name == name
    assert found.operator.startswith(f"{operator} ")
    assert found.error > LIMIT
    assert code in found.line
    assert not found.fused

    shown = reproduce("denoise", found, engine, reference, tmp_path)
    assert shown.error > LIMIT
    assert shown.nodes <= 8
    contents = load_file(shown.tensors)
    assert relative_error(contents["found"], contents["expected"]) == pytest.approx(shown.error)
    assert set(shown.inputs) == contents.keys() - {"expected", "found"}
    # The graph says what is right, in any tool that reads it.
    assert relative_error(*run(shown, name)) < 1e-5


def run(shown, name):
    """Results of ONNX Runtime for the graph, and the expected ones."""
    contents = load_file(shown.tensors)
    session = onnxruntime.InferenceSession(shown.graph, providers=["CPUExecutionProvider"])
    assert {node.name for node in session.get_inputs()} == set(shown.inputs)
    output = name if name.endswith(".out") else f"value.{name}"
    given = {name: contents[name].numpy() for name in shown.inputs}
    (value,) = session.run([output], given)
    return torch.from_numpy(value), contents["expected"]


@pytest.mark.parametrize("name", ["ring_attention_1", "ring.k.1.out"])
def test_a_part_for_tensorrt_has_the_ring_in_its_operators(look, tmp_path, name):
    engine, _, reference = look(FAULTS[name][0], native=True)
    shown = reproduce("denoise", search(engine, reference), engine, reference, tmp_path)
    kinds = {node.op_type for node in onnx.load(shown.graph).graph.node}
    assert "TensorScatter" in kinds
    assert relative_error(*run(shown, name)) < 1e-5


def test_a_sound_program_has_no_wrong_value(look):
    engine, _, reference = look()
    results = engine.results()
    expected = reference.values(results)
    assert all(torch.equal(value, expected[name]) for name, value in results.items())
    assert first_wrong(engine, reference, list(results), LIMIT) is None


def test_reports_value_that_is_right_as_output(look):
    def where_unseen(program):
        seen = {spec.arg.name for spec in program.graph_signature.output_specs}
        if not seen & {"layer_norm_3", "view_15"}:
            wrong_epsilon(program)

    engine, _, reference = look(where_unseen)
    found = search(engine, reference)
    assert found.fused


def test_reports_value_that_is_wrong_alone(look):
    def alone(program):
        if len(program.graph_signature.output_specs) == 5:
            wrong_epsilon(program)

    engine, _, reference = look(alone)
    assert search(engine, reference) is None
    expected = reference.values(["flow"])["flow"]
    assert relative_error(engine.values(["flow"])["flow"], expected) > LIMIT


@pytest.mark.parametrize("depth", [1, 3, 20])
def test_parts_compute_the_values_of_the_whole(look, depth):
    engine, _, reference = look()
    for name in engine.names[5::20]:
        begins = cut(engine, name, engine.names, depth)
        part = engine.part(begins, name)
        given = reference.values([each for each in begins if each in engine.cuts])
        assert relative_error(part.value(given), reference.values([name])[name]) < 1e-6
