"""What engines of a backend hold of a recipe, and how they read it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Form:
    """How a backend takes quantized components.

    Attributes:
        name: of what is quantized: ``graph`` is ONNX, ``program`` an ExportedProgram.
        lacks: ends the sentence about what a recipe asks for and it does not hold.
        products: whether scales are those of products, the weight's times the input's, in float32,
            as kernels take them; else they are the weights' own, in the dtype that weights had.
        integers: whether products of INT8 are held.
        emulated: whether what is in 8 bits is computed in float32, which saves no time.
        tokens: whether inputs of products may have a scale for each token, computed as they come.
        attention: the formats in which self-attention is, all of it in one with static scales.
        rings: the formats in which keys and values are kept, with static scales, while queries to
            them stay in high precision.
        ring_lacks: why there are no others, after the name of a ring in such a format.
    """

    name: str
    lacks: str
    products: bool
    integers: bool = False
    emulated: bool = False
    tokens: bool = False
    attention: tuple[str, ...] = ()
    rings: tuple[str, ...] = ()
    ring_lacks: str = ""

    @property
    def writer(self) -> str:
        """The module whose ``write`` makes it of a component; imported by this name alone."""
        return f"vidc.compiler.quantize.{self.name}s"


GRAPH = Form(
    "graph",
    "which graphs of standard ONNX operators do not hold",
    products=False,
    integers=True,
    rings=("int8",),
    ring_lacks="as ONNX's ScatterND, which writes it, takes no FP8",
)
"""ONNX with Q and DQ."""
PROGRAM = Form(
    "program",
    "which engines of aoti do not have yet",
    products=True,
    tokens=True,
    attention=("fp8", "int8"),
    rings=("fp8", "int8"),
)
"""Calls of ``vidc::quantized_linear``, which compilers for a Hopper GPU open up."""
CPU_PROGRAM = Form(
    "program",
    "which engines of aoti for a CPU do not have",
    products=True,
    integers=True,
    emulated=True,
    tokens=True,
    attention=("fp8", "int8"),
    rings=("fp8", "int8"),
)
"""The same calls as their references compute them: numbers of 8 bits, multiplied in float32."""
NETWORK = Form(
    "program",
    "which networks of TensorRT do not hold yet",
    products=True,
    integers=True,
    ring_lacks="which networks of TensorRT do not hold yet: its cache update takes 16 or 32 bits "
    "alone, and a ring that is copied is there twice",
)
"""The same calls, which become Q and DQ in graphs that TensorRT parses."""
