"""Every operator as a plugin, with arguments of every form that it has."""

import torch
from attention_16bit import arguments as attention_16bit_arguments
from operators import gelu_arguments
from operators_8bit import attention_arguments
from refusals import PLUGINS

from vidc.plugins.ops.gelu_quantize import gelu_quantize
from vidc.plugins.ops.ring_attention_8bit import ring_attention_8bit
from vidc.plugins.ops.ring_attention_16bit import ring_attention_16bit

CASES = {
    **{name: (operator, arguments) for name, (operator, arguments) in PLUGINS.items()},
    "gelu to float16": (gelu_quantize, lambda: gelu_arguments(output=torch.float16)),
    "as it is": (
        PLUGINS["static"][0], lambda: PLUGINS["static"][1]() | {"quantize_query": False}
    ),
    "without a mean": (
        PLUGINS["static"][0], lambda: PLUGINS["static"][1]() | {"key_mean": None}
    ),
    "attention in INT8": (
        ring_attention_8bit,
        lambda: attention_arguments(head_dim=128, of=torch.int8, output=torch.float16),
    ),
    "attention in float16": (
        ring_attention_16bit, lambda: attention_16bit_arguments(head_dim=128, dtype=torch.float16),
    ),
}  # fmt: skip
