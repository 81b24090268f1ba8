"""Parser of serialized plans, which needs no GPU."""

import re
from dataclasses import dataclass
from pathlib import Path

from vidc.plugins.errors import GateError

LAYERS = ".layers.json"
"""Suffix of the file that describes the network of a plan."""
MAX_PLAN_BYTES = 2**32
_MAGIC = {b"vtrt": "tensorrt_rtx", b"ftrt": "tensorrt"}
_VERSION_AT = 0x18
_ACCELERATORS = re.compile(rb"accelerators=\{([a-z0-9 ]{1,200})\}")
_PROGRAM_LINE = re.compile(rb"(?:tensor|fully_connected|corrltn)=\{[^\n]{1,65536}")
"""Line of the textual program in a TensorRT-RTX plan, where tensors precede their calls."""
_NAME = re.compile(rb'name="([^"]{1,512})"')
_TYPE = re.compile(rb" type=([a-z0-9_]{1,32}) \}")
_OPERANDS = re.compile(rb" input=\{([^}]{1,4096})\}")
_QUOTED = re.compile(rb'"([^"]{1,512})"')
_EIGHT_BITS = (b"fp8_e4m3", b"int8")
_FUSED_ATTENTION = b"using _gemm_mha_v2_Kernel_traits"
"""Part of the source in a TensorRT-RTX plan, once for each fused attention."""


@dataclass(frozen=True)
class Plan:
    """Facts about a plan.

    Attributes:
        product: ``tensorrt_rtx`` or ``tensorrt``.
        version: version that built it; None if the plan does not tell.
        architectures: GPU architectures that it was built for, such as ``sm89``; may be empty.
        bytes: size in bytes.
        fused_attentions: number of fused attention kernels; None if the plan does not tell.
        products: names of the matmuls and convolutions with 8-bit operands; None if the plan does
            not tell.
    """

    product: str
    version: str | None
    architectures: tuple[str, ...]
    bytes: int
    fused_attentions: int | None
    products: tuple[str, ...] | None


def fused_attentions(plan: bytes) -> int | None:
    """Returns the number of fused attentions of a TensorRT-RTX plan; None for TensorRT."""
    return plan.count(_FUSED_ATTENTION) if _MAGIC.get(plan[:4]) == "tensorrt_rtx" else None


def eight_bit_matmuls(plan: bytes) -> tuple[str, ...] | None:
    """Returns the layers of a TensorRT-RTX plan whose two operands are 8-bit; None for TensorRT.

    A matmul or convolution whose Q/DQ did not fuse has 16-bit operands. A matmul is then part of a
    kernel with another name.
    """
    if _MAGIC.get(plan[:4]) != "tensorrt_rtx":
        return None
    types: dict[bytes, bytes] = {}
    found = []
    for match in _PROGRAM_LINE.finditer(plan):
        line = match[0]
        name = _NAME.search(line)
        if name is None:
            continue
        if line.startswith(b"tensor"):
            kind = _TYPE.search(line)
            types[name[1]] = b"" if kind is None else kind[1]
            continue
        operands = _OPERANDS.search(line)
        read = _QUOTED.findall(operands[1])[:2] if operands is not None else []
        if len(read) == 2 and all(types.get(each) in _EIGHT_BITS for each in read):
            found.append(name[1].decode("utf-8", "replace"))
    return tuple(sorted(found))


def describe_plan(path: Path) -> Plan:
    """Parses the plan in a file.

    Raises:
        GateError: ``VIDC-BUNDLE-MALFORMED``, it is not a plan; ``VIDC-BUNDLE-UNREADABLE``.
    """
    try:
        with path.open("rb") as file:
            plan = file.read(MAX_PLAN_BYTES + 1)
    except OSError as error:
        raise GateError(
            "VIDC-BUNDLE-UNREADABLE",
            f"{path} cannot be read: {error.strerror}",
            "copy it again from where it was built",
        ) from error
    product = _MAGIC.get(plan[:4])
    if product is None or not _VERSION_AT + 4 <= len(plan) <= MAX_PLAN_BYTES:
        raise GateError(
            "VIDC-BUNDLE-MALFORMED",
            f"{path} is not a TensorRT plan",
            "copy it again from where it was built, or build it again",
        )
    named = _ACCELERATORS.search(plan)
    version = None
    if product == "tensorrt_rtx":
        version = ".".join(str(number) for number in plan[_VERSION_AT : _VERSION_AT + 4])
    return Plan(
        product=product,
        version=version,
        architectures=tuple(named[1].decode("ascii").split()) if named else (),
        bytes=len(plan),
        fused_attentions=fused_attentions(plan),
        products=eight_bit_matmuls(plan),
    )
