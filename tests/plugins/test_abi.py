"""A change of an operator's schema changes the number that what calls it is compared by."""

import hashlib

import torch
from refusals import OPERATORS

from vidc.compiler.build.handover import SCHEMA
from vidc.plugins import engine_operators
from vidc.plugins.abi import PLUGIN_ABI
from vidc.plugins.flash_attention import OPERATOR as FLASH_ATTENTION
from vidc.plugins.qk_norm_rope import qk_norm_rope
from vidc.plugins.quantized_linear import quantized_linear
from vidc.plugins.ring import ring_attention, ring_write
from vidc.plugins.rounded import rounded
from vidc.plugins.stored import restored, stored

CALLED = {
    *(operator for operator, _ in OPERATORS.values()), ring_attention, ring_write,
    getattr(torch.ops.vidc, FLASH_ATTENTION).default,
}  # fmt: skip
"""By engines of a bundle, or by plugins of TensorRT: what the installed vidc has to have."""
OPENED = {qk_norm_rope, quantized_linear, rounded, stored, restored}
"""By every backend, so no engine calls them; the programs of a portable build folder do."""
ENGINES = {4: "f61d36714729be54"}
"""By ``PLUGIN_ABI``, the first digits of the digest of the schemas that are called."""
PROGRAMS = {1: "cde8751b2c0db8e2"}
"""By the schema of portable build folders, the same of those that are opened."""


def digest(operators) -> str:
    schemas = sorted(str(operator._schema) for operator in operators)
    return hashlib.sha256("\n".join(schemas).encode()).hexdigest()[:16]


def test_engines_call_what_this_number_has():
    assert digest(CALLED) == ENGINES[PLUGIN_ABI], "raise PLUGIN_ABI, and write its digest here"


def test_programs_hold_what_the_schema_of_their_folder_has():
    """They hold those that are called, too."""
    assert digest(OPENED) == PROGRAMS[SCHEMA], "raise SCHEMA unless folders from before still load"


def test_no_operator_is_left_out():
    names = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("vidc::")}
    assert names == {operator.name() for operator in CALLED | OPENED}


def test_those_that_engines_call_by_name_are_among_them():
    assert set(engine_operators.OPERATORS) <= {op.name().partition("::")[2] for op in CALLED}
