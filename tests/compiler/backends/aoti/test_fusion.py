"""Programs that call fused operators compute what they did, from the weights that there are."""

import copy
import re
import shutil
import zipfile

import pytest
import torch
import transformer
from safetensors.torch import save_file

from vidc.compiler.backends.aoti.cuda import lower
from vidc.compiler.backends.aoti.fusion import NOTHING, fusable, fuse
from vidc.compiler.backends.aoti.inductor import compile_package, named_constants
from vidc.compiler.backends.aoti.packages import finish_package
from vidc.compiler.validate.reference import EagerEngine
from vidc.exporters.program import export_program, load_program, save_program, weight_names
from vidc.plugins.ops.qk_norm_rope import qk_norm_rope
from vidc.plugins.ops.qk_norm_rope_ring_write import qk_norm_rope_ring_write
from vidc.plugins.ops.ring import ring_write
from vidc.runtime import manifest
from vidc.runtime.engines.aoti import load
from vidc.runtime.files import Files
from vidc.runtime.states import Buffers, States
from vidc.runtime.weights import Weights

CPU = torch.device("cpu")
SMALL = ("model.dim=64", "model.heads=2", "model.ffn_dim=128", "stream.height=32")
LAYERS = 2
FUNCTIONALISED = torch.ops.higher_order.auto_functionalized_v2


@pytest.fixture(scope="module")
def model():
    return transformer.model(*SMALL)


@pytest.fixture(scope="module")
def programs(model):
    made = {}

    def program(name):
        """Returns a copy of a component's program in float32."""
        if name not in made:
            made[name] = export_program(model.component(name, "fp32"))
        return copy.deepcopy(made[name])

    return program


def written(program) -> list[object]:
    """The operators of the calls that write in place, in order."""
    calls = program.graph.find_nodes(op="call_function", target=FUNCTIONALISED)
    return [call.args[0] for call in calls]


def run(program, signature, position):
    """The outputs and states of some blocks, run by PyTorch."""
    module, states, found = program.module(), transformer.filled(signature), []
    for block in transformer.blocks(signature, position):
        given = block | states
        found += module(*(given[spec.name] for spec in signature.arguments))
    return [*found, *states.values()]


def fill_packed(program, fusion, weights):
    for name, parts in fusion.packed.items():
        whole = torch.cat([weights[part] for part in parts])
        program.state_dict[name] = torch.nn.Parameter(whole, requires_grad=False)


@pytest.mark.parametrize("name", transformer.COMPONENTS)
@pytest.mark.parametrize("position", [0, 72, 1_000_000])
def test_fused_program_matches_original(model, programs, name, position):
    signature = model.component(name, "fp32").signature
    program = programs(name)
    weights = dict(program.state_dict)
    expected = run(program, signature, position)
    fusion = lower(program, fused=True)
    assert fusion.operators == ("gelu_quantize", "qk_norm_rope_ring_write")
    assert fusion.left == ()
    fill_packed(program, fusion, weights)
    for found, value in zip(run(program, signature, position), expected, strict=True):
        torch.testing.assert_close(found, value, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", transformer.COMPONENTS)
def test_inlined_program_matches_original(model, programs, name):
    signature = model.component(name, "fp32").signature
    program = programs(name)
    expected = run(program, signature, 72)
    assert lower(program, fused=False) == NOTHING
    assert written(program) == []
    assert not program.graph.find_nodes(op="call_function", target=qk_norm_rope)
    for found, value in zip(run(program, signature, 72), expected, strict=True):
        torch.testing.assert_close(found, value, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("name", "last"), [("denoise", 0), ("kv_update", 1), ("recache_9", 1)])
def test_self_attention_becomes_one_matmul_and_one_operator(programs, name, last):
    """But for the last of a clean pass, which needs no queries."""
    program = programs(name)
    before = set(program.state_dict)
    fusion = fuse(program)
    assert written(program) == [qk_norm_rope_ring_write] * (LAYERS - last) + [ring_write] * 2 * last
    layers = [f"transformer.blocks.{layer}.attn1" for layer in range(LAYERS - last)]
    assert fusion.packed == {
        f"{layer}.to_qkv.{kind}": tuple(f"{layer}.to_{part}.{kind}" for part in "qkv")
        for layer in layers
        for kind in ("weight", "bias")
    }
    parts = {part for packed in fusion.packed.values() for part in packed}
    assert set(program.state_dict) == before - parts | set(fusion.packed)
    assert set(weight_names(program).values()) == set(program.state_dict)
    program.graph.lint()
    names = {node.name for node in program.graph.find_nodes(op="placeholder")}
    assert names == {spec.arg.name for spec in program.graph_signature.input_specs}


def test_unsupported_head_size_is_reported_and_not_fused():
    model = transformer.model("model.dim=48", "model.heads=2", "stream.height=32")
    component = model.component("denoise", "fp32")
    program = export_program(component)
    expected = run(program, component.signature, 72)
    assert fusable(program) == ("gelu_quantize", "qk_norm_rope_ring_write")
    fusion = lower(program, fused=True)
    assert fusion.operators == ("gelu_quantize",)
    assert fusion.packed == {}
    (left,) = fusion.left
    assert "vidc::qk_norm_rope_ring_write: key_cache: expected a head size of 32, 64" in left
    for found, value in zip(run(program, component.signature, 72), expected, strict=True):
        torch.testing.assert_close(found, value, rtol=1e-6, atol=1e-6)


def test_rejects_operator_outside_self_attention(programs):
    program = programs("denoise")
    node = program.graph.find_nodes(op="call_function", target=qk_norm_rope)[0]
    node.args = (node.args[1], node.args[0].args[0], *node.args[2:])
    with pytest.raises(ValueError, match="queries and keys are projections"):
        fuse(program)


@pytest.fixture(scope="module")
def engine(model, tmp_path_factory):
    """``denoise`` with fused operators, as AOTInductor makes and loads it, and its package."""
    if shutil.which("g++") is None:
        pytest.skip("there is no g++")
    folder = tmp_path_factory.mktemp("fused")
    component = model.component("denoise", "fp32")
    save_program(export_program(component), folder / "program.pt2")
    program = load_program(folder / "program.pt2")
    fusion = lower(program, fused=True)
    assert named_constants(program) == {}
    compile_package(program, folder / "denoise.pt2")
    save_file(model.weights, folder / "transformer.safetensors")
    states = frozenset(state.name for state in component.signature.states if state.writes)
    signature = component.signature.with_in_place(states)
    options = {"packed": {name: list(parts) for name, parts in fusion.packed.items()}}
    finish_package(folder / "denoise.pt2", program, signature, options)
    entry = manifest.Engine(
        "aoti", "aoti", torch.__version__, "fp32", ("denoise.pt2",), signature, options,
        manifest.Requirements(torch.__version__, (), fusion.operators),
    )  # fmt: skip
    weights = Weights({"transformer": folder / "transformer.safetensors"}, CPU)
    return load(Files(folder), entry, weights, CPU), weights, folder / "denoise.pt2"


def test_engine_calls_operators_and_matches_eager(model, engine):
    loaded, _, _ = engine
    eager = EagerEngine(model.component("denoise", "fp32"))
    played = {}
    for name, each in {"eager": eager, "engine": loaded}.items():
        states, buffers = States([each.signature], CPU), Buffers(each.signature, CPU)
        for state, value in transformer.filled(each.signature).items():
            states[state].copy_(value)
        flows = []
        for block in transformer.blocks(each.signature, position=216):
            buffers.set(block)
            each.run(buffers, states)
            flows.append(buffers["flow"].clone())
        played[name] = [*flows, *(states[spec.name] for spec in each.signature.states)]
    for found, expected in zip(played["engine"], played["eager"], strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_packed_weights_are_in_memory_once(engine):
    _, weights, _ = engine
    layer = "transformer.blocks.1.attn1"
    whole = weights.packed(
        f"{layer}.to_qkv.weight", [f"{layer}.to_{part}.weight" for part in "qkv"]
    )
    parts = [weights[f"{layer}.to_{part}.weight"] for part in "qkv"]
    assert all(part._base is whole for part in parts)
    assert torch.equal(torch.cat(parts), whole)


def test_an_engine_copies_no_ring(engine):
    """Rings are the only tensors of so many slots: none may be made on the way."""
    loaded, _, package = engine
    (slots,) = {s.shape[1] for s in loaded.signature.states if s.name.startswith("ring.")}
    with zipfile.ZipFile(package) as archive:
        (wrapper,) = (n for n in archive.namelist() if n.endswith(".wrapper.cpp"))
        code = archive.read(wrapper).decode()
    assert "qk_norm_rope_ring_write" in code
    made = re.findall(r"int_array_\d+\[\] = \{([^}]*)\}", code)
    assert made
    assert not [sizes for sizes in made if f"{slots}L" in sizes.split(", ")]
