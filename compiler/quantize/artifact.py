"""Calibration files: writing, and reading with validation."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from vidc.compiler.quantize.calibrated_tensors import tensor_shapes
from vidc.compiler.quantize.document import DOCUMENT, SCHEMA, TENSORS, Document, FileNote
from vidc.exporters.families.family import Family, Pass
from vidc.plugins.errors import GateError, UsageError
from vidc.plugins.untrusted_files import require_regular
from vidc.runtime.integrity import file_entry
from vidc.runtime.strict import plain, read

MAX_DOCUMENT = 2**20
"""Size limit in bytes, far above real documents."""
_LEAST = 1e-30
"""Smallest valid range: the reciprocal of a smaller scale may be infinite."""
_AGAIN = "run vidc calibrate again, or copy both of its files again"


@dataclass(frozen=True)
class Calibration:
    """Calibration of a transformer, with the tensors of ``tensor_shapes``."""

    document: Document
    tensors: Mapping[str, Tensor]

    def amax(self, name: str) -> Tensor:
        """Returns the per-channel amax over all groups of passes, float32.

        ``[in]`` for ``<linear>.input``, ``[out]`` for ``<linear>.weight``, ``[H, D]`` for
        ``<attention>.q``, ``.k`` and ``.v``.
        """
        tensor = self.tensors[name]
        return tensor if name.endswith(".weight") else tensor.amax(0)

    def mean(self, name: str) -> Tensor:
        """Returns the mean, ``[in]`` of ``<linear>.input``, ``[H, D]`` of ``<attention>.k``."""
        return self.tensors[f"{name}.mean"]

    def centered_amax(self, name: str, mean: Tensor | None = None) -> Tensor:
        """Returns the per-channel amax after a mean is subtracted, in the shape of ``mean``.

        Args:
            name: name as for ``mean``.
            mean: the subtracted mean; by default the tensor's own.
        """
        mean = self.mean(name) if mean is None else mean
        low, high = (self.tensors[f"{name}.{of}"] for of in ("low", "high"))
        return torch.maximum(high - mean, mean - low)

    def require_fits(self, model: Family, weights: str) -> None:
        """Rejects a calibration of another model.

        Args:
            model: the model to quantize.
            weights: digest of its transformer's weights, as in ``Document``.

        Raises:
            UsageError: ``VIDC-CALIBRATION-FOREIGN``, other weights, sizes or steps.
        """
        if self.document.weights != weights:
            _foreign(
                f"it was made with weights {self.document.weights[:12]}, these are {weights[:12]}"
            )
        for table, values in model_tables(model).items():
            for key, value in values.items():
                found = self.document.model.get(table, {}).get(key)
                # Ranges do not depend on the batch size.
                if found != value and (table, key) != ("stream", "batch"):
                    _foreign(f"it was made with {table}.{key} = {found}, this is {value}")


def model_tables(model: Family) -> dict[str, dict[str, Any]]:
    """Returns the tables of a model's configuration that its calibrated ranges depend on."""
    tables = model.to_json()
    return {name: tables[name] for name in model.calibrated_tables}


def write_calibration(folder: Path, document: Document, tensors: Mapping[str, Tensor]) -> None:
    """Writes both files to an empty folder, with ``document.tensors`` filled in.

    Raises:
        GateError: ``VIDC-CALIBRATION-NONFINITE``, ``VIDC-CALIBRATION-ZERO``.
    """
    _check_values(tensors)
    path = folder / TENSORS
    path.write_bytes(save(dict(tensors)))
    entry = file_entry(path)
    written = plain(document) | {"tensors": plain(FileNote(entry.size, entry.sha256))}
    (folder / DOCUMENT).write_text(json.dumps(written, indent=1, sort_keys=True) + "\n")


def read_calibration(folder: Path, model: Family) -> Calibration:
    """Reads and validates a calibration.

    Its groups and tensors must be the model's. ``require_fits`` compares weights and sizes.

    Args:
        folder: folder that ``vidc calibrate`` wrote.
        model: the model to quantize.

    Raises:
        UsageError: ``VIDC-CALIBRATION-MISSING``; ``VIDC-CALIBRATION-FOREIGN``, other sizes.
        GateError: ``VIDC-CALIBRATION-SCHEMA``; ``VIDC-CALIBRATION-FIELD``, an invalid document;
            ``VIDC-CALIBRATION-DAMAGED``, the tensors do not match the document's digest;
            ``VIDC-CALIBRATION-NONFINITE``, ``VIDC-CALIBRATION-ZERO``.
    """
    document = _read_document(folder / DOCUMENT)
    content = _read_tensors(folder / TENSORS, document.tensors)
    try:
        tensors: dict[str, Tensor] = load(content)
    except SafetensorError as error:
        raise GateError(
            "VIDC-CALIBRATION-DAMAGED", f"{folder / TENSORS} cannot be read: {error}", _AGAIN
        ) from error
    expected = model.passes()
    if document.groups != expected:
        _foreign(f"its groups are {_shown(document.groups)}, this model's {_shown(expected)}")
    _check_shapes(tensors, tensor_shapes(model, len(document.groups)))
    _check_values(tensors)
    return Calibration(document, tensors)


def _read_document(path: Path) -> Document:
    try:
        value = json.loads(_read(path, MAX_DOCUMENT), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise GateError("VIDC-CALIBRATION-FIELD", f"{path} is not JSON: {error}", _AGAIN) from error
    schema = value.get("schema") if isinstance(value, dict) else None
    if type(schema) is int and schema != SCHEMA:
        raise GateError(
            "VIDC-CALIBRATION-SCHEMA",
            f"{path} has schema {schema}, this vidc reads {SCHEMA}",
            "run vidc calibrate again, or use the vidc that wrote it",
        )
    try:
        document: Document = read(value, Document, "calibration")
    except GateError as error:
        message = f"{path}: {error.message}"
        raise GateError("VIDC-CALIBRATION-FIELD", message, _AGAIN) from error
    return document


def _read_tensors(path: Path, listed: FileNote) -> bytes:
    with _reading(path):
        size = path.stat().st_size
        content = path.read_bytes() if size == listed.size else b""
    if size != listed.size or hashlib.sha256(content).hexdigest() != listed.sha256:
        raise GateError(
            "VIDC-CALIBRATION-DAMAGED",
            f"{path}: {size} bytes that are not the {listed.size} which {DOCUMENT} lists",
            _AGAIN,
        )
    return content


def _read(path: Path, limit: int) -> bytes:
    """Reads up to one byte more than ``limit``."""
    with _reading(path), path.open("rb") as file:
        return file.read(limit + 1)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        require_regular(path)
        yield
    except OSError as error:
        raise UsageError(
            "VIDC-CALIBRATION-MISSING",
            f"{path} cannot be read: {error.strerror}",
            "give the folder that vidc calibrate wrote, with both of its files",
        ) from error


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _shown(found: Sequence[Pass]) -> str:
    return ", ".join(f"{group.name} at {group.timestep}" for group in found)


def _check_shapes(tensors: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]]) -> None:
    for name in [*expected, *tensors]:
        found = tuple(tensors[name].shape) if name in tensors else None
        if found != expected.get(name) or tensors[name].dtype != torch.float32:
            what = "none" if found is None else f"{tensors[name].dtype}{list(found)}"
            wanted = list(expected[name]) if name in expected else "none"
            _foreign(f"of {name} it holds {what}, this model has {wanted}")


def _check_values(tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise GateError(
                "VIDC-CALIBRATION-NONFINITE",
                f"{name} holds NaN or Inf",
                "calibrate again with --precision fp32 or bf16",
            )
        signed = name.endswith((".mean", ".low", ".high"))
        if not signed and (tensor.max() < _LEAST or (tensor < 0).any()):
            raise GateError(
                "VIDC-CALIBRATION-ZERO",
                f"{name} is zero or next to it throughout, or negative: no scale follows from it",
                "calibrate again with prompts and weights that are not zero",
            )


def _foreign(why: str) -> NoReturn:
    raise UsageError(
        "VIDC-CALIBRATION-FOREIGN",
        f"the calibration belongs to another model: {why}",
        "run vidc calibrate with the same preset, --set, --checkpoint and --lora",
    )
