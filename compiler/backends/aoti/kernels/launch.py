"""Recording of the launch that a compiled kernel's host code makes, without a GPU."""

import ctypes
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from vidc.compiler.backends.aoti.kernels.ptx import Parameter

_LAUNCH = "_cudaLaunchKernelEx"


@dataclass(frozen=True)
class Launch:
    """Arguments of a kernel launch."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    attributes: tuple[tuple[int, int], ...]
    """cudaLaunchAttributeID and the first 32 bits of its value."""
    arguments: tuple[str, ...]
    """The bytes of each parameter, hexadecimal."""

    def to_json(self) -> str:
        """Returns the launch as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parses the result of ``to_json``."""
        values = json.loads(text)
        return cls(
            tuple(values["grid"]),
            tuple(values["block"]),
            values["shared_bytes"],
            tuple((kind, value) for kind, value in values["attributes"]),
            tuple(values["arguments"]),
        )


class _Attribute(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_uint64), ("value", ctypes.c_uint32 * 16))


class _Config(ctypes.Structure):
    """cudaLaunchConfig_t."""

    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_size_t),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint32),
    )


def record_launch(
    compiled: Any, arguments: Sequence[Any], parameters: Sequence[Parameter]
) -> Launch:
    """Runs the host code of a CuTe DSL function with stubs in place of the CUDA runtime.

    Args:
        compiled: result of ``cute.compile``.
        arguments: ctypes values of the function's arguments; pointers are not dereferenced.
        parameters: parameters of the kernel that it launches.

    Raises:
        RuntimeError: it does not launch exactly one kernel.
    """
    from cutlass._mlir.execution_engine import ExecutionEngine

    launches: list[Launch] = []

    def append(config: int, kernel: int, values: int) -> int:
        launches.append(_launch(_Config.from_address(config), values, parameters))
        return 0

    record = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 3)(append)
    succeed = ctypes.CFUNCTYPE(ctypes.c_int32)(lambda: 0)
    engine = ExecutionEngine(compiled.ir_module)
    for name in set(re.findall(r"llvm\.func @(_cu\w+)", str(compiled.ir_module))):
        address = ctypes.cast(record if name == _LAUNCH else succeed, ctypes.c_void_p)
        engine.raw_register_runtime(name, address)
    result = ctypes.c_int32()
    packed = [ctypes.addressof(value) for value in (*arguments, result)]
    engine.lookup(compiled.function_name)((ctypes.c_void_p * len(packed))(*packed))
    if len(launches) != 1:
        raise RuntimeError(f"the host code launches {len(launches)} kernels")
    return launches[0]


def _launch(config: _Config, values: int, parameters: Sequence[Parameter]) -> Launch:
    addresses = (ctypes.c_void_p * len(parameters)).from_address(values)
    return Launch(
        tuple(config.grid),
        tuple(config.block),
        config.shared_bytes,
        tuple(
            (attribute.kind & 0xFFFFFFFF, attribute.value[0])
            for attribute in config.attributes[: config.attribute_count]
        ),
        tuple(
            ctypes.string_at(address, parameter.size).hex()
            for address, parameter in zip(addresses, parameters, strict=True)
        ),
    )
