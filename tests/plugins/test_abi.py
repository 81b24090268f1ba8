"""A change of an operator's schema changes the number that bundles are compared by."""

import hashlib

from refusals import OPERATORS

from vidc.plugins.abi import PLUGIN_ABI
from vidc.plugins.qk_norm_rope import qk_norm_rope
from vidc.plugins.ring import ring_attention, ring_write

SCHEMAS = {3: "e481980d2430694c"}
"""By number, the first digits of the digest of all schemas."""


def test_schemas_are_those_of_this_number():
    called = {operator for operator, _ in OPERATORS.values()}
    called |= {qk_norm_rope, ring_attention, ring_write}
    schemas = sorted(str(operator._schema) for operator in called)
    digest = hashlib.sha256("\n".join(schemas).encode()).hexdigest()[:16]
    assert digest == SCHEMAS[PLUGIN_ABI], "raise PLUGIN_ABI, and write its digest here"
