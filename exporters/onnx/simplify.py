"""Simplification of a freshly translated ONNX graph."""

import onnx_ir as ir
from onnx_ir.passes import common
from onnxscript.optimizer import fold_constants
from onnxscript.rewriter import rewrite
from onnxscript.rewriter.rules.common import (
    no_op_cast_rule,
    no_op_expand_rule,
    no_op_transpose_rule,
    reshape_reshape_rule,
    transpose_transpose_rule,
    unsqueeze_unsqueeze_rule,
)

_RULES = (
    no_op_cast_rule,
    no_op_expand_rule,
    no_op_transpose_rule,
    reshape_reshape_rule,
    transpose_transpose_rule,
    unsqueeze_unsqueeze_rule,
)
"""Rewrite rules; onnxscript's defaults fuse nothing more and take minutes on thirty layers."""

_SHARED_BYTES = 2**20
"""Size limit for merging equal constants: every layer has the block's token indices."""


def simplify(model: ir.Model) -> None:
    """Folds constants and merges equal subgraphs, in place; keeps names of inputs and outputs.

    Weights must still be inputs: a weight with a value could be folded into a constant.
    """
    for _ in range(2):  # The first round makes more shapes known to the second.
        common.RemoveUnusedNodesPass()(model)
        fold_constants(model)
        rewrite(model, _RULES)
    common.RemoveUnusedNodesPass()(model)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    common.DeduplicateInitializersPass(_SHARED_BYTES)(model)
    common.CommonSubexpressionEliminationPass()(model)
    common.IdentityEliminationPass()(model)
    common.OutputFixPass()(model)
    common.NameFixPass()(model)
    # Stack traces contain paths of this machine.
    common.ClearMetadataAndDocStringPass()(model)
