"""Memory-mapped reader of ``torch.save`` files that runs no code from them."""

import mmap
import struct
from collections.abc import Mapping, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.exporters.checkpoint.pickled import (
    MalformedError,
    PickledTensor,
    RefusedError,
    Storage,
    unpickle,
)
from vidc.plugins.archive import Archive
from vidc.plugins.errors import BuildError, GateError
from vidc.plugins.untrusted_files import require_regular

_ZIP = b"PK\x03\x04"
_PICKLE = b"\x80"
_LEGACY_MAGIC, _LEGACY_VERSION = 0x1950A86A20F9469CFC6C, 1001
_MAX_PICKLE = 1 << 26
_MAX_SECTIONS = 8


def read_torch(path: Path, sections: Sequence[str]) -> tuple[dict[str, LazyTensor], str | None]:
    """The tensors of a ``torch.save`` file, and the section of it that holds them.

    Nothing is allocated that the file does not hold. Sections may be nested; ``a/b`` names section
    ``b`` in section ``a``.

    Args:
        path: the file, in today's zip form or in that from before torch 1.6.
        sections: keys under which a state dict may lie, the preferred one first.

    Raises:
        BuildError: ``VIDC-CHECKPOINT-CORRUPT``, ``VIDC-CHECKPOINT-FORMAT`` or
            ``VIDC-CHECKPOINT-PICKLE``.
    """
    data = _mapped(path)
    try:
        values, starts = _from_zip(path, data) if data[:4] == _ZIP else _from_legacy(path, data)
    except RefusedError as error:
        raise BuildError(
            "VIDC-CHECKPOINT-PICKLE",
            f"{path} was not loaded, because its pickle holds more than weights: it calls for "
            f"{str(error)[:200]}",
            "get the weights as .safetensors, or from a source you trust save the state dict alone",
        ) from error
    except (MalformedError, GateError, struct.error) as error:
        what = error.message if isinstance(error, GateError) else str(error)
        raise BuildError(
            "VIDC-CHECKPOINT-CORRUPT",
            f"{path} is damaged or cut short: {what[:400]}",
            "download it again and compare its size with the original's",
        ) from error
    trail: list[str] = []
    while isinstance(values, Mapping) and len(trail) < _MAX_SECTIONS:
        section = next((s for s in sections if isinstance(values.get(s), Mapping)), None)
        if section is None:
            break
        trail.append(section)
        values = values[section]
    return _tensors(path, data, values, starts), "/".join(trail) or None


def _mapped(path: Path) -> mmap.mmap:
    require_regular(path)
    with path.open("rb") as file:
        start = file.read(len(_ZIP))
        if not start.startswith((_ZIP, _PICKLE)):
            raise BuildError(
                "VIDC-CHECKPOINT-FORMAT",
                f"{path} is no checkpoint: it starts with {start!r}, not like a file of torch.save",
                "give a .pt file that torch.save wrote, or a .safetensors file",
            )
        # Private, so that tensors may be views of it; nothing is copied until it is written to.
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)


def _from_zip(path: Path, data: mmap.mmap) -> tuple[Any, dict[str, int]]:
    """The value of an archive's pickle, and the place of each storage in the file."""
    archive = Archive(memoryview(data), path.name)
    found = [name for name in archive.members if name.endswith("/data.pkl")]
    if len(found) != 1 or archive.members[found[0]].size > _MAX_PICKLE:
        raise MalformedError(f"it has {len(found)} members data.pkl, or one of more than 64 MiB")
    folder = found[0].removesuffix("data.pkl")
    order = f"{folder}byteorder"
    if order in archive and archive.read(order) != b"little":
        raise MalformedError("its numbers are not stored in little-endian order")
    values, storages = unpickle(BytesIO(archive.read(found[0])))
    starts = {}
    for key, storage in storages.items():
        member = archive.members.get(f"{folder}data/{key}")
        _require_whole(storage, None if member is None else member.size)
        assert member is not None
        starts[key] = member.start
    return values, starts


def _from_legacy(path: Path, data: mmap.mmap) -> tuple[Any, dict[str, int]]:
    """The value and places of the form before torch 1.6: pickles, then their storages."""
    with path.open("rb") as file:
        magic, version, _, (values, storages), (keys, _) = (unpickle(file) for _ in range(5))
        at = file.tell()
    if (magic[0], version[0]) != (_LEGACY_MAGIC, _LEGACY_VERSION):
        raise MalformedError("its first pickles are not those of torch.save")
    if not isinstance(keys, list) or sorted(map(str, keys)) != sorted(storages):
        raise MalformedError("its storages are not those that its pickle names")
    starts = {}
    for key in keys:
        (elements,) = struct.unpack_from("<q", data, at)
        starts[key] = at + 8
        at = starts[key] + storages[key].nbytes
        _require_whole(storages[key], storages[key].nbytes if at <= len(data) else None)
        if elements != storages[key].elements:
            raise MalformedError(f"storage {key[:80]!r} has another size than its pickle says")
    if at != len(data):
        raise MalformedError("bytes behind its storages belong to nothing")
    return values, starts


def _require_whole(storage: Storage, size: int | None) -> None:
    if size != storage.nbytes:
        held = "nothing" if size is None else f"{size} bytes"
        raise MalformedError(
            f"storage {storage.key[:80]!r} asks for {storage.nbytes} bytes, the file holds {held}"
        )


def _tensors(
    path: Path, data: mmap.mmap, values: object, starts: Mapping[str, int]
) -> dict[str, LazyTensor]:
    if not isinstance(values, Mapping):
        raise BuildError(
            "VIDC-CHECKPOINT-FORMAT",
            f"{path} holds a {type(values).__name__}, not a state dict",
            "save the model's state dict",
        )
    tensors = {}
    for name, value in values.items():
        if not isinstance(value, PickledTensor) or not isinstance(name, str):
            kind = "dict" if isinstance(value, dict) else type(value).__name__
            raise BuildError(
                "VIDC-CHECKPOINT-FORMAT",
                f"{path}: entry {str(name)[:80]!r} is a {kind}, not a dense tensor with data",
                "save the model's state dict alone, or under 'generator' or 'model'",
            )
        load = partial(_load, data, starts[value.storage.key], value)
        tensors[name] = LazyTensor(value.shape, value.dtype, load)
    return tensors


def _load(data: mmap.mmap, start: int, tensor: PickledTensor) -> Tensor:
    if 0 in tensor.shape:
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    elements = torch.frombuffer(
        data,
        dtype=tensor.dtype,
        count=tensor.end - tensor.offset,
        offset=start + tensor.offset * tensor.dtype.itemsize,
    )
    return elements.as_strided(tensor.shape, tensor.strides)
