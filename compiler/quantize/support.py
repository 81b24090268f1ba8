"""Quantization that a backend's engines support."""

from dataclasses import dataclass


@dataclass(frozen=True)
class QuantizationSupport:
    """Quantized formats that a backend compiles.

    Attributes:
        unsupported: ends the error message about a format that the backend does not support.
        onnx: True if components are compiled from their exported ONNX graphs, False if from their
            programs.
        int8_matmul: True if matmuls run in INT8.
        emulated: True if 8-bit matmuls are computed in float32, which saves no time.
        multiple: number that divides the sizes of quantized matmuls.
        convolutions: True if convolutions run in INT8, or are emulated if ``emulated``.
        per_token: True if inputs may have per-token scales, computed at run time.
        attention_formats: formats of quantized self-attention: queries, keys and values share one,
            with static scales.
        attention_kernels: True if vidc's kernels, which support certain sizes, compute it.
        ring_formats: formats of a KV ring with static scales whose queries stay in high precision.
        ring_kernels: True if vidc's kernels write and read such a ring.
        unsupported_rings: why other ring formats are refused; follows the ring's name.
    """

    unsupported: str
    onnx: bool = False
    int8_matmul: bool = False
    emulated: bool = False
    multiple: int = 1
    convolutions: bool = False
    per_token: bool = False
    attention_formats: tuple[str, ...] = ()
    attention_kernels: bool = False
    ring_formats: tuple[str, ...] = ()
    ring_kernels: bool = False
    unsupported_rings: str = ""


ONNX = QuantizationSupport(
    "which graphs of standard ONNX operators do not support",
    onnx=True,
    int8_matmul=True,
    convolutions=True,
    ring_formats=("int8",),
    unsupported_rings="as ONNX's ScatterND, which writes it, takes no FP8",
)
"""ONNX graphs with Q/DQ."""
AOTI_GPU = QuantizationSupport(
    "which engines of aoti do not support yet",
    multiple=16,
    per_token=True,
    attention_formats=("fp8", "int8"),
    attention_kernels=True,
    ring_formats=("fp8", "int8"),
)
"""Calls of ``vidc::quantized_linear``, lowered to ``torch._scaled_mm`` for a Hopper GPU."""
AOTI_CPU = QuantizationSupport(
    "which engines of aoti for a CPU do not support",
    multiple=16,
    int8_matmul=True,
    emulated=True,
    convolutions=True,
    per_token=True,
    attention_formats=("fp8", "int8"),
    ring_formats=("fp8", "int8"),
)
"""Calls of ``vidc::quantized_linear`` as its reference computes them, in float32.

``torch._int_mm`` saturates on processors without VNNI."""
TENSORRT = QuantizationSupport(
    "which TensorRT networks do not support yet",
    multiple=16,
    int8_matmul=True,
    convolutions=True,
    attention_formats=("fp8", "int8"),
    attention_kernels=True,
    ring_formats=("fp8", "int8"),
    ring_kernels=True,
)
"""Quantized linear layers and convolutions that become Q/DQ in the graph that TensorRT parses, and
8-bit rings in plugins."""
