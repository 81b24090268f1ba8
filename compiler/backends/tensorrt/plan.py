"""What can be read from a serialized plan where there is no GPU to load it on."""

import re
from dataclasses import dataclass
from pathlib import Path

from vidc.plugins.errors import GateError

LAYERS = ".layers.json"
"""Ends the name of the file that describes the network that a plan was built from."""
MAX_PLAN_BYTES = 2**32
_MAGIC = {b"vtrt": "tensorrt_rtx", b"ftrt": "tensorrt"}
_VERSION_AT = 0x18
_ACCELERATORS = re.compile(rb"accelerators=\{([a-z0-9 ]{1,200})\}")
_PROGRAM_LINE = re.compile(rb"(?:tensor|fully_connected)=\{[^\n]{1,65536}")
"""Of the program in a plan of TensorRT-RTX, which is text: calls come after their tensors."""
_NAME = re.compile(rb'name="([^"]{1,512})"')
_TYPE = re.compile(rb" type=([a-z0-9_]{1,32}) \}")
_OPERANDS = re.compile(rb" input=\{([^}]{1,4096})\}")
_QUOTED = re.compile(rb'"([^"]{1,512})"')
_EIGHT_BITS = (b"fp8_e4m3", b"int8")
_FUSED_ATTENTION = b"using _gemm_mha_v2_Kernel_traits"
"""In the source that TensorRT-RTX compiles when it loads a plan: once for each fused attention."""


@dataclass(frozen=True)
class Plan:
    """A plan.

    Attributes:
        product: ``tensorrt_rtx`` or ``tensorrt``.
        version: that built it, None where the product does not say so in the open.
        architectures: such as ``sm89``, that it was built for; as far as it says.
        bytes: its size.
        fused_attentions: kernels of fused attention; None where they cannot be counted.
        products: layers that multiply matrices of 8 bits each, by name; None where that cannot be
            seen.
    """

    product: str
    version: str | None
    architectures: tuple[str, ...]
    bytes: int
    fused_attentions: int | None
    products: tuple[str, ...] | None


def fused_attentions(plan: bytes) -> int | None:
    """How many attentions a plan of TensorRT-RTX has fused; None for one of TensorRT."""
    return plan.count(_FUSED_ATTENTION) if _MAGIC.get(plan[:4]) == "tensorrt_rtx" else None


def eight_bit_products(plan: bytes) -> tuple[str, ...] | None:
    """The layers of a plan of TensorRT-RTX whose two operands are in 8 bits; None for TensorRT.

    A product whose Q and DQ did not fuse is of 16 bits, and part of a kernel with another name.
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
    """Describes the plan in a file.

    Raises:
        GateError: ``VIDC-BUNDLE-MALFORMED``, it is none; ``VIDC-BUNDLE-UNREADABLE``.
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
            f"{path} is no plan of TensorRT's",
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
        products=eight_bit_products(plan),
    )
