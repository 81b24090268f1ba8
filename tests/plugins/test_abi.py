"""A changed operator schema needs a new ``PLUGIN_ABI`` or a new schema of portable folders."""

import hashlib

import torch
from refusals import OPERATORS

from vidc.compiler.build.handover import SCHEMA
from vidc.plugins import engine_operators
from vidc.plugins.abi import PLUGIN_ABI
from vidc.plugins.ops.fake_quantize import fake_quantize
from vidc.plugins.ops.flash_attention import OPERATOR as FLASH_ATTENTION
from vidc.plugins.ops.padded_attention import padded_attention
from vidc.plugins.ops.padded_attention_sm90 import padded_attention_sm90
from vidc.plugins.ops.qk_norm_rope import qk_norm_rope
from vidc.plugins.ops.quantize_kv import dequantize_kv, quantize_kv
from vidc.plugins.ops.quantized_conv2d import quantized_conv2d
from vidc.plugins.ops.quantized_linear import quantized_linear
from vidc.plugins.ops.ring import ring_attention, ring_write

CALLED = {
    *(operator for operator, _ in OPERATORS.values()), ring_attention, ring_write,
    getattr(torch.ops.vidc, FLASH_ATTENTION).default, padded_attention_sm90,
}  # fmt: skip
"""Operators that engines of a bundle or TensorRT plugins call."""
DECOMPOSED = {
    qk_norm_rope, quantized_linear, quantized_conv2d, fake_quantize, quantize_kv, dequantize_kv,
    padded_attention,
}  # fmt: skip
"""Operators that every backend decomposes; programs of a portable build folder call them."""
ENGINES = {8: "bf51429a1726c387"}
"""Digest prefix of the schemas of ``CALLED``, by ``PLUGIN_ABI``."""
PROGRAMS = {3: "f0edc6779429ce87"}
"""Digest prefix of the schemas of ``DECOMPOSED``, by the schema of portable build folders."""


def digest(operators) -> str:
    schemas = sorted(str(operator._schema) for operator in operators)
    return hashlib.sha256("\n".join(schemas).encode()).hexdigest()[:16]


def test_plugin_abi_matches_the_schemas_that_engines_call():
    assert digest(CALLED) == ENGINES[PLUGIN_ABI], "raise PLUGIN_ABI, and write its digest here"


def test_portable_schema_matches_the_schemas_of_programs():
    assert digest(DECOMPOSED) == PROGRAMS[SCHEMA], (
        "raise SCHEMA unless folders from before still load"
    )


def test_every_operator_is_covered():
    names = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("vidc::")}
    assert names == {operator.name() for operator in CALLED | DECOMPOSED}


def test_engine_operators_are_covered():
    assert set(engine_operators.OPERATORS) <= {op.name().partition("::")[2] for op in CALLED}
