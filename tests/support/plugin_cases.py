"""Every operator as a plugin, with arguments of every form that it has."""

import torch
from attention_16bit import arguments as attention_16bit_arguments
from operators import gate_arguments, norm_arguments
from operators_8bit import attention_arguments
from refusals import OPERATORS

from vidc.plugins.gate_residual import gate_residual
from vidc.plugins.norm_modulate_quantize import norm_modulate_quantize
from vidc.plugins.ring_attention_8bit import ring_attention_8bit
from vidc.plugins.ring_attention_16bit import ring_attention_16bit

CASES = {
    **{name: (operator, arguments) for name, (operator, arguments) in OPERATORS.items()},
    "gate of other dtypes": (
        gate_residual, lambda: gate_arguments(dtypes=(torch.float16, torch.float32))
    ),
    "norm to float16": (norm_modulate_quantize, lambda: norm_arguments(output=torch.float16)),
    "as it is": (
        OPERATORS["static"][0], lambda: OPERATORS["static"][1]() | {"quantize_query": False}
    ),
    "without a mean": (
        OPERATORS["dynamic"][0], lambda: OPERATORS["dynamic"][1]() | {"key_mean": None}
    ),
    "attention in INT8": (
        ring_attention_8bit,
        lambda: attention_arguments(head_dim=128, of=torch.int8, output=torch.float16),
    ),
    "attention in float16": (
        ring_attention_16bit, lambda: attention_16bit_arguments(head_dim=128, dtype=torch.float16),
    ),
}  # fmt: skip
