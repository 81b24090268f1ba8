"""FlashAttention-4's forward kernel for sm_90: cubins and the facts to launch them."""

import json
import math
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from vidc.compiler.backends.aoti.kernels import flash_attention_dsl as dsl
from vidc.compiler.backends.aoti.kernels.launch import Launch
from vidc.compiler.backends.aoti.kernels.ptx import Entry, parse_entry
from vidc.compiler.store.sources import installed
from vidc.plugins.errors import BuildError, UnavailableError
from vidc.plugins.installation import install_extra
from vidc.plugins.ops.flash_attention import LaunchFacts

DTYPES = ("bfloat16", "float16")
HEAD_DIMS = (64, 128)
OPERATORS = {"flash_attention_sm90": False, "padded_attention_sm90": True}
"""Operators with a kernel; True if it merges padding: one key stands for all padded ones."""

_PACKAGES = ("flash-attn-4", "nvidia-cutlass-dsl", "quack-kernels")
_SETTINGS = ("CUTE_DSL_", "FLASH_ATTENTION_", "QUACK_")
"""Prefixes of environment variables that change the compiled code."""
_TIMEOUT_SECONDS = 900.0  # Compilation takes 5 s on an idle machine.
_LAST_LINES = 3
_HARMLESS_ATTRIBUTES = {(2, 0), (6, 0)}
"""Attributes of a plain launch: not cooperative, no overlap with the kernel before."""


def compile_kernel(dtype: str, head_dim: int, output: Path) -> None:
    """Writes ``<operator>_<dtype>_<head_dim>.cubin``, and its launch facts as ``.json``.

    There are two operators: ``flash_attention_sm90`` and ``padded_attention_sm90``. The same
    versions of the packages write the same bytes.

    Args:
        dtype: bfloat16 or float16, for queries, keys, values and output.
        head_dim: 64 or 128.
        output: an existing folder.

    Raises:
        UnavailableError: ``VIDC-ENV-KERNELS``, a package is not installed; ``VIDC-KERNEL-SIZE``,
            there is no kernel for this dtype or head size.
        BuildError: ``VIDC-KERNEL-COMPILE``; ``VIDC-KERNEL-PARAMETERS``, the operator cannot call
            the kernel.
    """
    if dtype not in DTYPES or head_dim not in HEAD_DIMS:
        raise UnavailableError(
            "VIDC-KERNEL-SIZE",
            f"attention on sm_90 in {dtype} with head size {head_dim}; there is "
            f"{' and '.join(DTYPES)} with {' and '.join(map(str, HEAD_DIMS))}",
            "choose another precision, or another target or backend",
        )
    _require_packages()
    for operator, merges_padding in OPERATORS.items():
        with tempfile.TemporaryDirectory() as folder:
            draft = Path(folder)
            _run_compiler(dtype, head_dim, draft, merges_padding)
            facts = launch_facts(
                dtype,
                head_dim,
                json.loads((draft / dsl.TILES).read_text()),
                parse_entry((draft / dsl.PTX).read_text()),
                Launch.from_json((draft / dsl.LAUNCH).read_text()),
                merges_padding,
            )
            name = f"{operator}_{dtype}_{head_dim}"
            (output / f"{name}.cubin").write_bytes((draft / dsl.CUBIN).read_bytes())
        (output / f"{name}.json").write_text(json.dumps(facts.to_json(), indent=1) + "\n")


def _require_packages() -> None:
    for package in _PACKAGES:
        if installed(package) is None:
            raise UnavailableError(
                "VIDC-ENV-KERNELS",
                f"compiling kernels for a GPU needs the package {package}, which is not installed",
                install_extra("cuda"),
            )


def _run_compiler(dtype: str, head_dim: int, folder: Path, merges_padding: bool) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(_SETTINGS)}
    environment |= {"CUTE_DSL_ARCH": "sm_90a", "CUTE_DSL_DUMP_DIR": str(folder)}
    command = [sys.executable, "-P", "-m", dsl.__name__, dtype, str(head_dim), str(folder)]
    command += [dsl.MERGES_PADDING] if merges_padding else []
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise _not_compiled(f"it takes longer than {_TIMEOUT_SECONDS:.0f} s") from error
    if done.returncode:
        said = "\n".join(done.stderr.strip().splitlines()[-_LAST_LINES:])
        raise _not_compiled(f"exit status {done.returncode}: {said}")


def _not_compiled(reason: str) -> BuildError:
    return BuildError(
        "VIDC-KERNEL-COMPILE",
        f"the CuTe DSL does not compile FlashAttention-4: {reason}",
        f"install the versions that vidc names: {install_extra('cuda')}",
    )


def launch_facts(
    dtype: str,
    head_dim: int,
    tiles: tuple[int, int],
    entry: Entry,
    launch: Launch,
    merges_padding: bool = False,
) -> LaunchFacts:
    """Derives from a recorded launch the facts that the operator needs to launch the kernel.

    Args:
        dtype: dtype of the tensors.
        head_dim: channels of a head.
        tiles: tile sizes: queries of a block, and keys that are copied at a time.
        entry: the kernel's declaration in PTX.
        launch: launch with the sizes and addresses in ``flash_attention_dsl``.
        merges_padding: True for a kernel of ``padded_attention_sm90``.

    Raises:
        BuildError: ``VIDC-KERNEL-PARAMETERS``, the operator cannot make such a launch.
    """
    tile_m, tile_n = tiles
    _check(
        launch.grid == (-(-dsl.QUERIES // tile_m), dsl.HEADS, dsl.BATCH),
        f"its grid is {launch.grid} for {dsl.QUERIES} queries, {dsl.HEADS} heads, {dsl.BATCH} rows",
    )
    _check(launch.block == (entry.threads, 1, 1), f"its block is {launch.block}")
    _check(
        _HARMLESS_ATTRIBUTES.issuperset(launch.attributes),
        f"it is launched with attributes {launch.attributes}",
    )
    numbers = _numbers(merges_padding)
    roles = {_role(index, entry, launch, numbers): index for index in sorted(entry.read)}
    expected = {*dsl.ADDRESSES, "sizes", *numbers}
    _check(
        roles.keys() == expected and len(entry.read) == len(expected),
        f"it reads its parameters {sorted(entry.read)}, which hold {', '.join(roles)}",
    )
    return LaunchFacts(
        symbol=entry.symbol,
        dtype=dtype,
        head_dim=head_dim,
        capability=(9, 0),
        tile_m=tile_m,
        tile_n=tile_n,
        threads=entry.threads,
        shared_bytes=launch.shared_bytes,
        parameter_bytes=tuple(parameter.size for parameter in entry.parameters),
        **roles,
    )


def _numbers(merges_padding: bool) -> dict[str, float]:
    """Returns the kernel's parameters that are numbers, with their values in the recorded launch.

    The only integer among them is the number of keys.
    """
    log2e = math.log2(math.e)
    if not merges_padding:
        return {"scale": dsl.SCALE * log2e}
    return {"scale": dsl.SCALE, "log2e": log2e, "capacity": dsl.CAPACITY}


def _role(index: int, entry: Entry, launch: Launch, numbers: Mapping[str, float]) -> str:
    """Returns the role of a parameter, from its size and its value in the recorded launch."""
    parameter, value = entry.parameters[index], bytes.fromhex(launch.arguments[index])
    names = {address: name for name, address in dsl.ADDRESSES.items()}
    sizes = struct.pack("<3i", dsl.QUERIES, dsl.HEADS, dsl.BATCH)
    logsumexp = struct.pack("<Q", dsl.ADDRESSES["logsumexp"])
    strides = struct.pack("<qq", dsl.QUERIES, dsl.HEADS * dsl.QUERIES)
    if parameter.size == 4:
        (number,) = struct.unpack("<f" if parameter.is_float else "<i", value)
        for role, expected in numbers.items():
            if math.isclose(number, expected, rel_tol=1e-6):
                return role
    elif parameter.size == 128:
        name = names.get(int.from_bytes(value[:8], "little"))
        if name is not None and name not in ("lengths", "logsumexp"):
            return name
    elif value[:12] == struct.pack("<Qi", dsl.ADDRESSES["lengths"], dsl.BATCH):
        return "lengths"
    elif value == sizes:
        return "sizes"
    elif (value[:20], value[24:]) == (logsumexp + sizes, strides):  # Padded in between.
        return "logsumexp"
    return f"{parameter.size} unknown bytes"


def _check(as_expected: bool, found: str) -> None:
    if not as_expected:
        raise BuildError(
            "VIDC-KERNEL-PARAMETERS",
            f"FlashAttention-4's kernel is not called as vidc calls it: {found}",
            f"install the versions that vidc names: {install_extra('cuda')}",
        )
