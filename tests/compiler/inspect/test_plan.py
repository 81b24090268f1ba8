"""A plan, as `vidc inspect` and `vidc diff` show it."""

import json

import pytest

from vidc.compiler.tensorrt.plan import LAYERS, describe_plan
from vidc.plugins.errors import GateError

PLAN = (
    b"vtrt" + bytes(20) + bytes([1, 7, 1, 116]) + b"... accelerators={sm89 sm120 } ..."
    + 2 * b"using _gemm_mha_v2_Kernel_traits = "
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
}


@pytest.fixture
def plan(tmp_path):
    file = tmp_path / "denoise.plan"
    file.write_bytes(PLAN)
    file.with_suffix(LAYERS).write_text(json.dumps(NETWORK))
    return file


def test_what_a_plan_says_of_itself(plan):
    found = describe_plan(plan)
    assert (found.product, found.version) == ("tensorrt_rtx", "1.7.1.116")
    assert found.architectures == ("sm89", "sm120")
    assert (found.bytes, found.fused_attentions) == (len(PLAN), 2)


def test_a_plan_of_tensorrt_says_less(plan):
    plan.write_bytes(b"ftrt" + PLAN[4:])
    found = describe_plan(plan)
    assert (found.product, found.version, found.fused_attentions) == ("tensorrt", None, None)


@pytest.mark.parametrize("data", [b"", b"vtrt", b"PK\x03\x04" + bytes(99)])
def test_what_is_no_plan_is_refused(plan, data):
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
    ],
)
def test_what_describes_no_network_is_refused(vidc, plan, text):
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


def test_json_has_all_of_it(vidc, plan):
    status, out, _ = vidc("inspect", str(plan), "--json")
    document = json.loads(out)
    assert (status, document["kind"]) == (0, "plan")
    assert document["plan"]["fused_attentions"] == 2
    assert document["network"]["layers"] == NETWORK["layers"]


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
    other.with_suffix(LAYERS).write_text(json.dumps(changed))
    assert vidc("diff", str(plan), str(plan))[1] == "no differences\n"
    _, out, _ = vidc("diff", str(plan), str(other))
    assert "cast.half: 2 -> 5" in out
    assert "ring.keys: [1, 2, 16, 64] -> [1, 2, 32, 64]" in out
    assert "sm120" in out
