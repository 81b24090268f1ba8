"""The fused operators' kernels, their own source, compiled for a CPU and called as operators are.

``cuda_on_cpu`` stands for CUDA: threads of a block are fibers, blocks run one after another.
"""

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vidc import plugins
from vidc.plugins.arguments import dtype_name

CUDA = Path(next(iter(plugins.__path__))) / "cuda"
SUPPORT = Path(__file__).parent / "cuda_on_cpu"
SOURCES = (
    "arguments.cpp", "launch.cpp", "gelu_quantize.cu", "group_norm_silu.cu",
    "norm_silu_winograd.cu",
    "qk_norm_rope_ring_write.cu", "qk_norm_rope_ring_write_8bit.cu",
    "ring_attention_8bit.cpp", "ring_attention_16bit.cpp", "sampler_step.cu",
    "temporal_attention.cu",
)  # fmt: skip
FLAGS = (
    "-std=c++17", "-O1", "-fno-strict-aliasing", "-fPIC", "-D__shared__=static", "-I.",
)  # fmt: skip
POISON = 0xFF
"""NaN of every float, -1 of int8: what outputs hold before, and what lies around every tensor."""
FENCE = 256
"""Bytes of it before and behind a tensor."""


class Given(ctypes.Structure):
    """A tensor of the C interface, ``cuda_on_cpu/fused_operators.cpp``; none without a dtype."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("dtype", ctypes.c_char_p),
        ("sizes", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("rank", ctypes.c_int32), ("device", ctypes.c_int32),
    )  # fmt: skip

    @classmethod
    def of(cls, tensor: Tensor | None, device: int = 0) -> "Given":
        if tensor is None:
            return cls()
        numbers = ctypes.c_int64 * tensor.dim()
        sizes, strides = numbers(*tensor.shape), numbers(*tensor.stride())
        name = dtype_name(tensor.dtype).encode()
        return cls(tensor.data_ptr(), name, sizes, strides, tensor.dim(), device)


class RefusedError(RuntimeError):
    """Message of the operator's checks, or of the launch."""


class Fenced:
    """A copy of a tensor, as it is strided and aligned, with poison around it."""

    def __init__(self, tensor: Tensor, fence: int) -> None:
        spans = zip(tensor.shape, tensor.stride(), strict=True)
        count = sum((size - 1) * stride for size, stride in spans) + 1 if tensor.numel() else 0
        offset = tensor.data_ptr() % 16
        before, size = fence + offset, count * tensor.itemsize
        self.memory = torch.full((before + size + fence,), POISON, dtype=torch.uint8)
        inside = self.memory[before : before + size].view(tensor.dtype)
        inside.copy_(tensor.as_strided((count,), (1,)))
        self.tensor = inside.as_strided(tensor.shape, tensor.stride(), inside.storage_offset())
        self.outside = (self.memory[:before], self.memory[before + size :])

    def check(self, name: str) -> None:
        """Nothing was written behind or before it."""
        for fence in self.outside:
            assert (fence == POISON).all(), f"{name}: written outside of its memory"


def numbers(value: float | str) -> Any:
    """An argument of the C interface that is no tensor."""
    if isinstance(value, str):
        return ctypes.c_char_p(value.encode())
    return ctypes.c_double(value) if isinstance(value, float) else ctypes.c_int64(value)


class Kernels:
    """The compiled kernels.

    Args:
        path: of the library.
        fence: bytes of poison around tensors; 0 where a tool watches the memory around them.
    """

    def __init__(self, path: Path, fence: int = FENCE) -> None:
        self.library = ctypes.CDLL(str(path))
        self.fence = fence

    def operator(
        self, overload: torch._ops.OpOverload, backwards: bool = False
    ) -> Callable[..., Any]:
        """Returns a function that calls an operator's kernels, with the operator's arguments.

        Args:
            overload: the operator.
            backwards: whether the last thread of a block runs first.
        """
        run, schema = self.entry(overload)
        written = [a.alias_info is not None and a.alias_info.is_write for a in schema]

        def call(*values: Any) -> Any:
            shapes = overload(*(v.to("meta") if isinstance(v, Tensor) else v for v in values))
            single = isinstance(shapes, Tensor)
            outputs = [
                Fenced(torch.empty_like(shape, device="cpu"), self.fence)
                for shape in ((shapes,) if single else shapes or ())
            ]
            for output in outputs:
                output.tensor.view(torch.uint8).fill_(POISON)
            fenced = [Fenced(v, self.fence) if isinstance(v, Tensor) else v for v in values]
            tensors = [v.tensor if isinstance(v, Fenced) else v for v in fenced]
            self.library.run_backwards(int(backwards))
            self.raw(run, schema, tensors, [output.tensor for output in outputs])
            for output in outputs:
                output.check("an output")
            for argument, value, inside, in_place in zip(
                schema, values, fenced, written, strict=True
            ):
                if isinstance(inside, Fenced):
                    inside.check(argument.name)
                    if in_place:
                        value.copy_(inside.tensor)
                    else:
                        assert same(value, inside.tensor), f"{argument.name} was written"
            found = [output.tensor for output in outputs]
            return found[0] if single else (tuple(found) or None)

        return call

    def entry(self, overload: torch._ops.OpOverload) -> tuple[Any, Any]:
        """The C interface of an operator, and the arguments of its schema."""
        run = getattr(self.library, f"run_{overload._schema.name.partition('::')[2]}")
        run.restype = ctypes.c_char_p
        return run, overload._schema.arguments

    def refusal(
        self, overload: torch._ops.OpOverload, taken: dict[str, Any], **devices: int
    ) -> str:
        """Message of the kernels' checks for arguments on these devices; empty if they pass."""
        outputs = [torch.empty(1 << 20, dtype=torch.uint8) for _ in range(3)]
        try:
            self.raw(*self.entry(overload), list(taken.values()), outputs, devices)
        except RefusedError as error:
            return str(error)
        return ""

    @staticmethod
    def raw(
        run: Any,
        schema: Any,
        values: list[Any],
        outputs: list[Tensor],
        devices: Mapping[str, int] | None = None,
    ) -> None:
        """Calls the C interface; raises RefusedError by what it says.

        Args:
            run: of an operator, with its schema's arguments.
            schema: them.
            values: what they are.
            outputs: where to.
            devices: on which GPU a tensor of a name is said to be, negative for none.
        """
        pairs = list(zip(schema, values, strict=True))
        said_of = devices or {}
        tensors = [
            Given.of(v, said_of.get(argument.name, 0))
            for argument, v in pairs
            if "Tensor" in str(argument.type)
        ]
        others = [numbers(v) for argument, v in pairs if "Tensor" not in str(argument.type)]
        places = (ctypes.c_void_p * 3)(*(output.data_ptr() for output in outputs))
        said = run((Given * len(tensors))(*tensors), *others, places)
        if said is not None:
            raise RefusedError(said.decode())


def same(a: Tensor, b: Tensor) -> bool:
    """Bit by bit."""
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def compiled(folder: Path, *flags: str) -> Path:
    """Builds the library in an empty folder; flags are the compiler's."""
    # What stands for instructions has the names of what it replaces: it goes last.
    for file in (*CUDA.glob("*.*h"), *(CUDA / name for name in SOURCES), *SUPPORT.iterdir()):
        shutil.copy(file, folder)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda name: _object(folder, name, flags), _UNITS))
    return _linked(folder, flags)


def with_fault(built: Path, folder: Path, unit: str, file: str, old: str, new: str) -> Path:
    """The library with other text in one of its files, as one unit is compiled with it."""
    shutil.copytree(built.parent, folder)
    text = (folder / file).read_text()
    assert text.count(old) == 1, f"{file} has {old} {text.count(old)} times"
    (folder / file).write_text(text.replace(old, new))
    _object(folder, unit)
    return _linked(folder)


_UNITS = (*SOURCES, "fused_operators.cpp")


def _object(folder: Path, name: str, flags: Sequence[str] = ()) -> None:
    command = ["g++", *FLAGS, *flags, "-x", "c++", "-c", name, "-o", f"{name}.o"]
    subprocess.run(command, cwd=folder, check=True, timeout=300)


def _linked(folder: Path, flags: Sequence[str] = ()) -> Path:
    # Under a name of its own: a library that is loaded already is not loaded again.
    objects = [f"{name}.o" for name in _UNITS]
    command = ["g++", "-shared", "-Wl,-Bsymbolic", *flags, *objects, "-o", f"{folder.name}.so"]
    subprocess.run(command, cwd=folder, check=True, timeout=300)
    return folder / f"{folder.name}.so"
