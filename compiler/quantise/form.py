"""What engines of a backend read of a quantised Linear."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Form:
    """How a backend takes quantised components.

    Attributes:
        name: of what is quantised: ``graph`` is ONNX, ``program`` an ExportedProgram. Stage module
            ``quantise_<name>`` writes it.
        lacks: ends the sentence about what a recipe asks for and it does not hold.
        products: whether scales are those of products, the weight's times the input's, in float32,
            as kernels take them; else they are the weights' own, in the dtype that weights had.
        integers: whether products of INT8 are computed.
    """

    name: str
    lacks: str
    products: bool
    integers: bool


GRAPH = Form("graph", "which graphs of standard ONNX operators do not hold", False, True)
"""ONNX with Q and DQ."""
PROGRAM = Form("program", "which engines of aoti do not have yet", True, False)
"""Calls of ``vidc::quantized_linear``, which compilers for a Hopper GPU open up."""
NETWORK = Form("program", "which networks of TensorRT do not hold yet", True, True)
"""The same calls, which become Q and DQ in graphs that TensorRT parses."""
