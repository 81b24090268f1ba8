"""Quantization that a backend's engines support, and the layout in which they read it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class QuantizationSupport:
    """Quantized formats that a backend compiles.

    Attributes:
        name: of the representation that is quantized: ``graph`` is ONNX, ``program`` an
            ExportedProgram.
        unsupported: ends the error message about a format that the backend does not support.
        product_scales: True if the stored scale is weight scale times input scale, float32; else
            weight and input have scales of their own, in the dtype of the unquantized weight.
        int8_matmul: True if matmuls run in INT8.
        emulated: True if 8-bit matmuls are computed in float32, which saves no time.
        per_token: True if inputs may have per-token scales, computed at run time.
        attention_formats: formats of quantized self-attention: queries, keys and values share one,
            with static scales.
        ring_formats: formats of a KV ring with static scales whose queries stay in high precision.
        unsupported_rings: why other ring formats are refused; follows the ring's name.
    """

    name: str
    unsupported: str
    product_scales: bool
    int8_matmul: bool = False
    emulated: bool = False
    per_token: bool = False
    attention_formats: tuple[str, ...] = ()
    ring_formats: tuple[str, ...] = ()
    unsupported_rings: str = ""

    @property
    def writer(self) -> str:
        """The module whose ``write`` quantizes a component, to be imported by this name."""
        return f"vidc.compiler.quantize.{self.name}s"


ONNX = QuantizationSupport(
    "graph",
    "which graphs of standard ONNX operators do not support",
    product_scales=False,
    int8_matmul=True,
    ring_formats=("int8",),
    unsupported_rings="as ONNX's ScatterND, which writes it, takes no FP8",
)
"""ONNX graphs with Q/DQ."""
AOTI_GPU = QuantizationSupport(
    "program",
    "which engines of aoti do not support yet",
    product_scales=True,
    per_token=True,
    attention_formats=("fp8", "int8"),
    ring_formats=("fp8", "int8"),
)
"""Calls of ``vidc::quantized_linear``, lowered to ``torch._scaled_mm`` for a Hopper GPU."""
AOTI_CPU = QuantizationSupport(
    "program",
    "which engines of aoti for a CPU do not support",
    product_scales=True,
    int8_matmul=True,
    emulated=True,
    per_token=True,
    attention_formats=("fp8", "int8"),
    ring_formats=("fp8", "int8"),
)
"""Calls of ``vidc::quantized_linear`` as its reference computes them, in float32."""
TENSORRT = QuantizationSupport(
    "program",
    "which TensorRT networks do not support yet",
    product_scales=True,
    int8_matmul=True,
    unsupported_rings="which TensorRT networks do not support yet: the cache update takes 16 or 32 "
    "bits, and a copied ring is in memory twice",
)
"""Calls of ``vidc::quantized_linear`` that become Q/DQ in the graph that TensorRT parses."""
