"""A plan, as `vidc inspect` and `vidc diff` show it."""

import json
import os

import pytest

from vidc.compiler.backends.tensorrt.engine_layers import (
    ENGINE,
    EngineLayer,
    EngineLayers,
    EngineTensor,
)
from vidc.compiler.backends.tensorrt.plan import LAYERS, describe_plan
from vidc.compiler.inspect.plan import inspect_plan
from vidc.plugins.errors import GateError
from vidc.runtime.strict import plain

PLAN = (
    b"vtrt" + bytes(20) + bytes([1, 7, 1, 116]) + b"... accelerators={sm89 sm120 } ..."
    + 2 * b"using _gemm_mha_v2_Kernel_traits = "
    + b"""
  tensor={ alignment=16 dims={ 64 128 } name="x.1" offset=0 type=fp8_e4m3 }
  tensor={ dims={ 256 128 } name="w.1" offset=0 type=fp8_e4m3 }
  sub_tensor={ base="w.1" const_offset=0 dims={ 128 256 } name="w^deref" offset=0 type=fp8_e4m3 }
  tensor={ dims={ 64 128 } name="high" offset=0 type=half }
  fully_connected={ name="fused" output={"y" } input={"x.1" "w^deref" "alpha" "beta" } stream=0 }
  fully_connected={ name="apart" output={"y" } input={"high" "w^deref" "alpha" "beta" } stream=0 }
  fully_connected={ name="lost" output={"y" } input={"x.1" "unknown" } stream=0 }
"""
)  # fmt: skip
NETWORK = {
    "layers": {"matrix_multiply": {"half": 21}, "cast": {"float": 3, "half": 2}},
    "attentions": [
        {
            "name": name,
            "dtype": "half",
            "query": [1, 2, 8, 64],
            "keys": [1, 2, 16, 64],
            "reads_length": True,
            "must_fuse": name == "ring",
        }
        for name in ("ring", "text", "third")
    ],
    "quantized": [
        {
            "name": name,
            "weight": f"transformer.{name}.weight",
            "weights": "fp8",
            "inputs": "half" if name == "alone" else "fp8",
            "computes": name != "alone",
        }
        for name in ("fused", "apart", "alone")
    ],
}


@pytest.fixture
def plan(tmp_path):
    file = tmp_path / "denoise.plan"
    file.write_bytes(PLAN)
    file.with_suffix(LAYERS).write_text(json.dumps(NETWORK))
    return file


def test_describes_plan_header(plan):
    found = describe_plan(plan)
    assert (found.product, found.version) == ("tensorrt_rtx", "1.7.1.116")
    assert found.architectures == ("sm89", "sm120")
    assert (found.bytes, found.fused_attentions) == (len(PLAN), 2)
    assert found.products == ("fused",)


def test_a_plan_of_tensorrt_says_less(plan):
    plan.write_bytes(b"ftrt" + PLAN[4:])
    found = describe_plan(plan)
    assert (found.product, found.version) == ("tensorrt", None)
    assert (found.fused_attentions, found.products) == (None, None)


@pytest.mark.parametrize("data", [b"", b"vtrt", b"PK\x03\x04" + bytes(99)])
def test_rejects_file_that_is_not_a_plan(plan, data):
    plan.write_bytes(data)
    with pytest.raises(GateError) as caught:
        describe_plan(plan)
    assert caught.value.code == "VIDC-BUNDLE-MALFORMED"


def damaged(**changes):
    return json.dumps({**NETWORK, "attentions": [{**NETWORK["attentions"][0], **changes}]})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "[" * 10**5,
        '{"layers": {"a": 1}, "attentions": []}',
        '{"layers": {"a": {"half": 1e999}}, "attentions": []}',
        '{"layers": {"\\u001b[2J": {"half": 1}}, "attentions": []}',
        '{"layers": {}, "attentions": [{"name": 1}]}',
        damaged(name=5),
        damaged(name="\ud800"),
        damaged(dtype=None),
        damaged(query=[1.5]),
        damaged(query={}),
        json.dumps({**NETWORK, "attentions": 2 * NETWORK["attentions"][:1]}),
        json.dumps({**NETWORK, "quantized": 2 * NETWORK["quantized"][:1]}),
        json.dumps({**NETWORK, "quantized": [{"name": "fused"}]}),
        json.dumps({**NETWORK, "quantized": [{**NETWORK["quantized"][0], "weight": "\x1b"}]}),
    ],
)
def test_rejects_invalid_network_description(vidc, plan, text):
    plan.with_suffix(LAYERS).write_text(text)
    for command in (["inspect", str(plan)], ["diff", str(plan), str(plan)]):
        status, out, err = vidc(*command)
        assert (status, out) == (1, "")
        assert "VIDC-BUNDLE-MALFORMED" in err or "VIDC-BUNDLE-FIELD" in err


def test_an_attention_that_is_not_fused_stands_out(vidc, plan):
    status, out, _ = vidc("inspect", str(plan))
    assert status == 0
    assert "2 of 3: 1 TAKEN APART" in out
    assert "matrix_multiply" in out
    assert "valid length" in out


def test_every_pair_that_did_not_fuse_is_warned_of(vidc, plan):
    status, out, _ = vidc("inspect", str(plan))
    assert status == 0
    assert "1 of 2: 1 NOT FUSED" in out
    (warning,) = [line for line in out.splitlines() if line.startswith("warning: ")]
    assert warning.startswith(
        "warning: apart multiplies transformer.apart.weight in high precision"
    )


def test_unloadable_plan_gives_no_warning(vidc, plan):
    plan.write_bytes(b"ftrt" + PLAN[4:])
    status, out, _ = vidc("inspect", str(plan))
    assert status == 0
    assert "warning" not in out
    assert out.count("cannot be counted without a GPU") == 2


def test_a_network_described_before_there_were_8_bits_is_shown(vidc, plan):
    older = {name: NETWORK[name] for name in ("layers", "attentions")}
    plan.with_suffix(LAYERS).write_text(json.dumps(older))
    status, out, _ = vidc("inspect", str(plan))
    assert (status, "0 of 0" in out) == (0, True)


def test_json_has_every_field(vidc, plan):
    status, out, _ = vidc("inspect", str(plan), "--json")
    document = json.loads(out)
    assert (status, document["kind"]) == (0, "plan")
    assert document["plan"]["fused_attentions"] == 2
    assert document["network"]["layers"] == NETWORK["layers"]
    assert document["network"]["quantized"] == NETWORK["quantized"]
    assert document["plan"]["products"] == ["fused"]


def test_a_plan_alone_is_shown_too(vidc, plan):
    plan.with_suffix(LAYERS).unlink()
    status, out, _ = vidc("inspect", str(plan))
    assert (status, "2 kernels" in out) == (0, True)


def test_the_description_of_another_plan_is_noticed(vidc, plan):
    plan.write_bytes(PLAN + 9 * b"using _gemm_mha_v2_Kernel_traits = ")
    assert "11 kernels, and the network described beside it has 3" in vidc("inspect", str(plan))[1]


def test_two_plans_are_compared(vidc, plan, tmp_path):
    other = tmp_path / "other.plan"
    other.write_bytes(PLAN.replace(b"sm120", b"sm86 "))
    changed = json.loads(json.dumps(NETWORK))
    changed["layers"]["cast"]["half"] = 5
    changed["attentions"][0]["keys"][2] = 32
    changed["quantized"][0]["inputs"] = "half"
    other.with_suffix(LAYERS).write_text(json.dumps(changed))
    assert vidc("diff", str(plan), str(plan))[1] == "no differences\n"
    _, out, _ = vidc("diff", str(plan), str(other))
    assert "cast.half: 2 -> 5" in out
    assert "ring.keys: [1, 2, 16, 64] -> [1, 2, 32, 64]" in out
    assert "fused.inputs: fp8 -> half" in out
    assert "sm120" in out


def kernel(name, *nodes, kind="kgen", dtype="half"):
    tensor = EngineTensor(dtype, (64, 128), "(Linear) Row major linear format")
    return EngineLayer(name, kind, f"{name}_0x1", (tensor, tensor), (tensor,), nodes)


LAYERS_SAID = EngineLayers(
    "builder",
    (
        kernel("_gemm_mha_v2_myl0_1", "ring"),
        kernel("__myl_Softmax", "text"),
        kernel("fmha_v2", "third", "view"),
        kernel("gemm_1", "fused", kind="gemm", dtype="fp8"),
        kernel("gemm_2", "apart", kind="gemm"),
        kernel("__myl_MulCast", "q_1"),
        kernel("__myl_GeluMulCast", "gelu", "q_2"),
    ),
    {"activation": 2**20, "scratch": 4096},
)


@pytest.fixture
def described(plan):
    network = {**NETWORK, "rounding": ["q_1", "q_2", "dq_1"]}
    plan.with_suffix(LAYERS).write_text(json.dumps(network))
    plan.with_suffix(ENGINE).write_text(json.dumps(plain(LAYERS_SAID)))
    return plan


def test_which_attention_became_one_kernel_is_said_of_each(vidc, described, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    status, out, _ = vidc("inspect", str(described))
    assert status == 0
    lines = [line.split() for line in out.splitlines()]
    fused = {line[0]: line[-1] for line in lines if line and line[0] in ("ring", "text", "third")}
    assert fused == {"ring": "yes", "text": "NO", "third": "yes"}
    assert "7, as its builder says" in out
    assert "memory" in out
    assert "torch finds no CUDA device here" in out


LOADERS = """
import os, signal
from vidc.compiler.backends.tensorrt.engine_layers import EngineLayers

def crash(path, product):
    os.kill(os.getpid(), signal.SIGSEGV)

def load(path, product):
    return EngineLayers("inspector", (), {product: os.getppid()})
"""


@pytest.fixture
def loaders(tmp_path, monkeypatch):
    """Functions in place of TensorRT on a machine with a GPU."""
    (tmp_path / "loaders.py").write_text(LOADERS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    import loaders

    return loaders


def test_a_plan_is_loaded_in_another_process(plan, loaders, monkeypatch):
    monkeypatch.setattr("vidc.compiler.inspect.plan._loaded_layers", loaders.load)
    found = inspect_plan(plan)
    assert found.engine.memory == {"tensorrt_rtx": os.getpid()}
    assert found.not_loaded is None


def test_a_plan_that_ends_the_process_that_loads_it_is_described(
    vidc, described, loaders, monkeypatch
):
    monkeypatch.setattr("vidc.compiler.inspect.plan._loaded_layers", loaders.crash)
    status, out, _ = vidc("inspect", str(described))
    assert status == 0
    assert "loading it ended its process" in out
    assert "7, as its builder says" in out


def test_a_kernel_that_only_rounds_is_warned_of(vidc, described):
    _, out, _ = vidc("inspect", str(described))
    warnings = [line for line in out.splitlines() if line.startswith("warning: ")]
    assert any(line.startswith("warning: q_1 did not fuse: __myl_MulCast") for line in warnings)
    assert not any("q_2" in line for line in warnings)


@pytest.mark.parametrize("magic", [b"vtrt", b"ftrt"])
def test_engine_layers_show_unfused_kernels(vidc, described, magic):
    described.write_bytes(magic + PLAN[4:])
    document = json.loads(vidc("inspect", str(described), "--json")[1])
    assert document["engine"]["layers"][0]["name"] == "_gemm_mha_v2_myl0_1"
    assert document["engine"]["layers"][3]["inputs"][0]["dtype"] == "fp8"
    _, out, _ = vidc("inspect", str(described))
    assert "2 of 3: 1 TAKEN APART" in out
    assert "apart multiplies transformer.apart.weight in high precision" in out
    assert "fused multiplies" not in out


def test_kernels_of_two_plans_are_compared(vidc, described, tmp_path):
    other = tmp_path / "other.plan"
    other.write_bytes(PLAN)
    other.with_suffix(LAYERS).write_text(described.with_suffix(LAYERS).read_text())
    changed = plain(LAYERS_SAID)
    changed["layers"] = changed["layers"][1:]
    changed["memory"]["activation"] = 5
    other.with_suffix(ENGINE).write_text(json.dumps(changed))
    _, out, _ = vidc("diff", str(described), str(other))
    assert "kgen.half: 5 -> 4" in out
    assert "ring: True -> False" in out
    assert "activation: 1048576 -> 5" in out


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"said_by": "builder", "layers": [{"name": 1}], "memory": {}}',
        '{"said_by": "\\u001b[2J", "layers": [], "memory": {}}',
        '{"said_by": "builder", "layers": [{"name": "\\u001b"}], "memory": {}}',
        '{"said_by": "builder", "layers": [], "memory": {"a": 1.5}}',
    ],
)
def test_rejects_invalid_layer_description(vidc, described, text):
    described.with_suffix(ENGINE).write_text(text)
    status, out, err = vidc("inspect", str(described))
    assert (status, out) == (1, "")
    assert "VIDC-BUNDLE-MALFORMED" in err or "VIDC-BUNDLE-FIELD" in err
