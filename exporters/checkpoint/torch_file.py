"""Reading one file of ``torch.save``, without running what it may carry."""

import pickle
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.plugins.errors import BuildError

_ZIP = b"PK\x03\x04"
_PICKLE = b"\x80"


def read_torch(path: Path, sections: Sequence[str]) -> tuple[dict[str, LazyTensor], str | None]:
    """The tensors of a ``torch.save`` file, and the section of it that holds them.

    A file in today's zip form is memory-mapped; one in the form from before torch 1.6 is read
    whole. Sections may be nested; ``a/b`` names section ``b`` in section ``a``.

    Args:
        path: the file.
        sections: keys under which a state dict may lie, the preferred one first.

    Raises:
        BuildError: ``VIDC-CHECKPOINT-CORRUPT``, ``VIDC-CHECKPOINT-FORMAT`` or
            ``VIDC-CHECKPOINT-PICKLE``.
    """
    values = _load(path)
    trail = []
    while isinstance(values, Mapping):
        section = next((s for s in sections if isinstance(values.get(s), Mapping)), None)
        if section is None:
            break
        trail.append(section)
        values = values[section]
    return _tensors(path, values), "/".join(trail) or None


def _load(path: Path) -> Any:
    with path.open("rb") as file:
        start = file.read(len(_ZIP))
    if not start.startswith((_ZIP, _PICKLE)):
        raise BuildError(
            "VIDC-CHECKPOINT-FORMAT",
            f"{path} is no checkpoint: it starts with {start!r}, not like a file of torch.save",
            "give a .pt file that torch.save wrote, or a .safetensors file",
        )
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=start == _ZIP)
    except pickle.UnpicklingError as error:
        wanted = re.search(r"GLOBAL (\S+)", str(error))
        reason = f"it calls for {wanted[1]}" if wanted else "it is not made of plain tensors"
        raise BuildError(
            "VIDC-CHECKPOINT-PICKLE",
            f"{path} was not loaded, because its pickle holds more than weights: {reason}",
            "get the weights as .safetensors, or from a source you trust save the state dict alone",
        ) from error
    except OSError:
        raise
    except Exception as error:
        # What a damaged pickle raises depends on where it is damaged.
        raise BuildError(
            "VIDC-CHECKPOINT-CORRUPT",
            f"{path} is damaged or cut short: {error or type(error).__name__}",
            "download it again and compare its size with the original's",
        ) from error


def _tensors(path: Path, values: object) -> dict[str, LazyTensor]:
    if not isinstance(values, Mapping):
        raise BuildError(
            "VIDC-CHECKPOINT-FORMAT",
            f"{path} holds a {type(values).__name__}, not a state dict",
            "save the model's state dict",
        )
    tensors = {}
    for name, value in values.items():
        plain = isinstance(value, torch.Tensor) and value.device.type == "cpu"
        if not plain or value.layout is not torch.strided:
            kind = type(value).__name__
            raise BuildError(
                "VIDC-CHECKPOINT-FORMAT",
                f"{path}: entry {name!r} is a {kind}, not a dense tensor with data",
                "save the model's state dict alone, or under 'generator' or 'model'",
            )
        tensors[str(name)] = LazyTensor.of(value.detach())
    return tensors
