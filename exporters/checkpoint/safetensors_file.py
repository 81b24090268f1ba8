"""Reading one ``.safetensors`` file, memory-mapped."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.plugins.errors import BuildError
from vidc.plugins.untrusted_files import require_regular, unique_keys

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


def read_safetensors(path: Path) -> dict[str, LazyTensor]:
    """The tensors of a safetensors file by name.

    Raises:
        BuildError: ``VIDC-CHECKPOINT-CORRUPT`` if the header does not fit the file,
            ``VIDC-CHECKPOINT-DTYPE`` for a dtype that vidc does not know.
    """
    file = _open(path)
    _refuse_duplicates(path)
    tensors = {}
    for name in file.keys():  # noqa: SIM118 (not a mapping)
        entry = file.get_slice(name)
        dtype = DTYPES.get(entry.get_dtype())
        if dtype is None:
            raise BuildError(
                "VIDC-CHECKPOINT-DTYPE",
                f"{path}: {name} has dtype {entry.get_dtype()}",
                "use a checkpoint in float32, bfloat16 or float16",
            )
        tensors[name] = LazyTensor(tuple(entry.get_shape()), dtype, partial(file.get_tensor, name))
    return tensors


def _refuse_duplicates(path: Path) -> None:
    """Refuses a header in which readers could take either of two tensors."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = file.read(length)
    try:
        json.loads(header, object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:
        raise BuildError(
            "VIDC-CHECKPOINT-CORRUPT",
            f"{path} has a header that is no plain JSON: {error}",
            "save it again, each tensor under a name of its own",
        ) from error


def read_metadata(path: Path) -> dict[str, str]:
    """The texts in the header of a safetensors file; raises as ``read_safetensors``."""
    return dict(_open(path).metadata() or {})


def _open(path: Path) -> Any:
    require_regular(path)
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise BuildError(
            "VIDC-CHECKPOINT-CORRUPT",
            f"{path} is damaged or not a safetensors file: {error}",
            "download it again and compare its size with the original's",
        ) from error
