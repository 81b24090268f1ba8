"""Checks of ``benchmarks/tensorrt_matrix.py``, each with a fault planted in an engine."""

from dataclasses import replace

import pytest

pytest.importorskip("tensorrt_rtx")

from tensorrt_matrix import MODELS, Case, compiled, config, exported, wrong

from vidc.compiler.inspect.plan import inspect_plan
from vidc.plugins.signature import Signature

CASE = Case(list(MODELS)[1], "kv_update", "fp8", "rtx4090")
SIZES = config(CASE.model)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """The signature of an engine of two layers, what is found of its plan, and its bytes."""
    folder = tmp_path_factory.mktemp("engine")
    signature, file = compiled(CASE, exported(CASE, SIZES, folder), folder)
    return signature, inspect_plan(file), file.read_bytes()


def test_the_engine_is_as_it_should_be(engine):
    assert wrong(CASE, SIZES, *engine) == []


def test_a_q_behind_attention_is_a_kernel_of_its_own(engine):
    """Two in the first layer; the clean pass ends with the second's keys and values."""
    _, found, _ = engine
    quantized = {node for layer in found.apart for node in layer.nodes}
    assert len(found.apart) == 2
    assert quantized < set(found.network.rounding)


@pytest.mark.parametrize(
    ("case", "says"),
    [
        (replace(CASE, precision="int8"), "10 Linears in 8 bits, not 10"),
        (replace(CASE, precision="bf16"), "10 Linears in 8 bits, not 0"),
        (replace(CASE, precision="fp16"), "matrix_multiply in bf16"),
        (replace(CASE, component="denoise"), "2 attentions, not 4"),
        (replace(CASE, target="rtx5090"), "it is for ('sm89',)"),
    ],
)
def test_an_engine_of_something_else_is_noticed(engine, case, says):
    assert says in wrong(case, SIZES, *engine)


@pytest.mark.parametrize("kind", ["matrix_multiply", "kv_cache_update"])
@pytest.mark.parametrize("dtype", ["half", "float"])
def test_a_layer_in_another_precision_is_noticed(engine, kind, dtype):
    signature, found, plan = engine
    layers = {name: dict(types) for name, types in found.network.layers.items()}
    layers[kind]["bf16"] -= 1
    layers[kind][dtype] = 1
    planted = replace(found, network=replace(found.network, layers=layers))
    assert wrong(CASE, SIZES, signature, planted, plan) == [f"{kind} in {dtype}"]


def test_an_attention_that_is_missing_is_noticed(engine):
    signature, found, plan = engine
    without = replace(found.network, attentions=found.network.attentions[1:])
    says = wrong(CASE, SIZES, signature, replace(found, network=without), plan)
    assert "1 attentions, not 2" in says
    assert "2 of 1 fused" in says


def test_an_attention_that_is_taken_apart_is_noticed(engine):
    signature, found, plan = engine
    name = found.network.attentions[0].name
    whole = [layer for layer in found.engine.layers if layer.is_attention and name in layer.nodes]
    assert len(whole) == 1
    kept = tuple(layer for layer in found.engine.layers if layer not in whole)
    fewer = replace(found.plan, fused_attentions=1)
    planted = replace(found, plan=fewer, engine=replace(found.engine, layers=kept))
    assert wrong(CASE, SIZES, signature, planted, plan) == [
        "1 of 2 fused",
        f"{name} is not one kernel",
    ]


def test_an_attention_that_reads_every_slot_is_noticed(engine):
    signature, found, plan = engine
    attentions = tuple(replace(each, reads_length=False) for each in found.network.attentions)
    planted = replace(found, network=replace(found.network, attentions=attentions))
    says = wrong(CASE, SIZES, signature, planted, plan)
    assert says == ["not every attention over the ring reads its valid length"]


@pytest.mark.parametrize("name", ["ring.k.0", "ring.v.1.out", "valid_length", "noisy_latent"])
def test_a_name_that_the_plan_lacks_is_noticed(engine, name):
    signature, found, plan = engine
    names = {tensor.name for tensor in signature}
    if name.removesuffix(".out") not in names:
        other = replace(signature.tensors[0], name=name)
        signature = Signature((other, *signature.tensors[1:]))
    else:
        named = len(name).to_bytes(8, "little") + name.encode()
        assert named in plan
        plan = plan.replace(named, named[:-1] + b"!")
    assert wrong(CASE, SIZES, signature, found, plan) == [f"it does not name {name}"]


def test_a_ring_that_is_copied_is_noticed(engine):
    signature, found, plan = engine
    layers = found.network.layers | {"kv_cache_update": {"bf16": 2}}
    planted = replace(found, network=replace(found.network, layers=layers))
    assert wrong(CASE, SIZES, signature, planted, plan) == [
        "2 updates of a cache in place, not 4",
    ]


def test_a_product_that_did_not_fuse_is_noticed(engine):
    signature, found, plan = engine
    product = found.network.quantized[0]
    layers = tuple(
        replace(layer, inputs=layer.outputs) if product.name in layer.nodes else layer
        for layer in found.engine.layers
    )
    others = tuple(name for name in found.plan.products if name != product.name)
    planted = replace(
        found,
        plan=replace(found.plan, products=others),
        engine=replace(found.engine, layers=layers),
    )
    assert wrong(CASE, SIZES, signature, planted, plan) == [
        "9 products computed in 8 bits",
        f"Q and DQ of {product.weight} did not fuse",
    ]


@pytest.mark.parametrize(
    ("kind", "says"), [("quantize", "pairs of Q and DQ, not 7"), ("dequantize", "DQ, not 17")]
)
def test_a_q_or_dq_that_is_missing_is_noticed(engine, kind, says):
    signature, found, plan = engine
    types = {name: count - 1 for name, count in found.network.layers[kind].items()}
    layers = found.network.layers | {kind: types}
    planted = replace(found, network=replace(found.network, layers=layers))
    (said,) = wrong(CASE, SIZES, signature, planted, plan)
    assert said.endswith(says)
