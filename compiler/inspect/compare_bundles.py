"""Differences between two bundles: manifests and values of weights."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vidc.compiler.backends.aoti.convolution_choices import SUFFIX, Choice
from vidc.compiler.inspect.bundle import open_weights
from vidc.compiler.inspect.changes import Sections, sections
from vidc.compiler.inspect.package import convolutions_of
from vidc.plugins.signature import Signature, TensorSpec
from vidc.runtime.manifest import Manifest

_CHUNK = 2**22


@dataclass(frozen=True)
class WeightsDifference:
    """Difference between the values of two weights files.

    Attributes:
        tensors: number of tensors that both have in the same shape.
        unmatched: names that only one has, or whose shapes differ.
        differing: number of ``tensors`` whose values differ.
        worst: name of the tensor that differs most.
        relative_l2: ``|new - old| / |old|`` of ``worst``, in L2 norms; None if it is not finite,
            because the old tensor is zero or either holds NaN or Inf.
    """

    tensors: int
    unmatched: tuple[str, ...]
    differing: int
    worst: str
    relative_l2: float | None


def compare_manifests(old: Manifest, new: Manifest) -> Sections:
    """Returns the differences between two manifests by field.

    Scalar fields come under ``bundle``. The HTML report is left out of ``files``, because it only
    shows what the rest says, and so are times of convolutions, which no two builds share.
    """
    return sections(_subjects(old), _subjects(new))


def compare_convolutions(
    old: Path, old_manifest: Manifest, new: Path, new_manifest: Manifest
) -> Sections:
    """Returns the convolutions whose chosen forms differ, with both builds' times.

    Takes two bundles as ``compare_weights`` does.

    Raises:
        GateError: ``VIDC-BUNDLE-MALFORMED``, ``VIDC-BUNDLE-FIELD``.
    """
    before, after = _choices(old, old_manifest), _choices(new, new_manifest)
    differing = [
        name
        for name in {**before, **after}
        if name not in before or name not in after or before[name].form != after[name].form
    ]
    texts = [
        {name: str(choices[name]) for name in differing if name in choices}
        for choices in (before, after)
    ]
    return sections(*({"convolutions": each} for each in texts))


def _choices(folder: Path, manifest: Manifest) -> dict[str, Choice]:
    return {
        f"{component}, {name}": choice
        for component, engine in manifest.engines.items()
        for name, choice in convolutions_of(folder / engine.files[0]).items()
    }


def compare_weights(
    old: Path, old_manifest: Manifest, new: Path, new_manifest: Manifest
) -> dict[str, WeightsDifference]:
    """Compares the shared weights groups whose digests differ, tensor by tensor.

    Args:
        old: folder of the first bundle.
        old_manifest: manifest of the first bundle.
        new: folder of the second bundle.
        new_manifest: manifest of the second bundle.

    Raises:
        GateError: ``VIDC-BUNDLE-MALFORMED``, a weights file is not safetensors.
    """
    found = {}
    for group in old_manifest.weights.keys() & new_manifest.weights.keys():
        paths = old_manifest.weights[group].path, new_manifest.weights[group].path
        if old_manifest.files[paths[0]] != new_manifest.files[paths[1]]:
            found[group] = _compare_files(old / paths[0], new / paths[1])
    return dict(sorted(found.items()))


def relative_l2(old: Tensor, new: Tensor) -> float:
    """Returns ``|new - old| / |old|`` in float64; 0 for equal bits, infinite if not finite."""
    if old.dtype == new.dtype and torch.equal(_bits(old), _bits(new)):
        return 0.0
    error = norm = 0.0
    for before, after in zip(_chunks(old), _chunks(new), strict=True):
        error += (after - before).square().sum().item()
        norm += before.square().sum().item()
    if error == 0:
        return 0.0
    ratio = math.sqrt(error / norm) if norm else math.inf
    return math.inf if math.isnan(ratio) else ratio


def _chunks(tensor: Tensor) -> Iterator[Tensor]:
    """Yields the values in float64 chunks, since the largest embeddings do not fit in memory."""
    return (chunk.double() for chunk in tensor.reshape(-1).split(_CHUNK))


def _subjects(manifest: Manifest) -> dict[str, dict[str, Any]]:
    document = manifest.to_json()
    tables = {name: value for name, value in document.items() if isinstance(value, dict)}
    scalars = {
        name: value for name, value in document.items() if name not in tables and value is not None
    }
    engines = {
        name: fields | {"signature": _signature(manifest.engines[name].signature)}
        for name, fields in document["engines"].items()
    }
    digests = {
        path: entry.sha256
        for path, entry in manifest.files.items()
        if path != manifest.validation.report and not path.endswith(SUFFIX)
    }
    return {"bundle": scalars, **tables, "engines": engines, "files": digests}


def _signature(signature: Signature) -> dict[str, str]:
    return {tensor.name: describe_tensor(tensor) for tensor in signature}


def describe_tensor(tensor: TensorSpec) -> str:
    """Describes a tensor without its name, such as ``state float32 [1, 4] read_write``."""
    words = [tensor.role.value, tensor.dtype, str(list(tensor.shape))]
    if tensor.access is not None:
        words.append(tensor.access.value)
    if tensor.in_place:
        words.append("in place")
    if tensor.axes is not None:
        words.append(f"axes {list(tensor.axes)}")
    if tensor.rounding is not None:
        mean = "" if tensor.rounding.mean is None else f" around {tensor.rounding.mean}"
        words.append(f"times {tensor.rounding.scale}{mean}")
    return " ".join(words)


def _compare_files(old: Path, new: Path) -> WeightsDifference:
    before, after = open_weights(old), open_weights(new)
    shapes = [{name: tuple(f.get_slice(name).get_shape()) for name in f.keys()}  # noqa: SIM118
              for f in (before, after)]  # fmt: skip
    matched = sorted(dict(shapes[0].items() & shapes[1].items()))
    errors = {
        name: relative_l2(before.get_tensor(name), after.get_tensor(name)) for name in matched
    }
    worst = max(errors, key=errors.__getitem__, default="")
    largest = errors.get(worst, 0.0)
    return WeightsDifference(
        tensors=len(matched),
        unmatched=tuple(sorted((shapes[0].keys() | shapes[1].keys()) - set(matched))),
        differing=sum(error > 0 for error in errors.values()),
        worst=worst,
        relative_l2=largest if math.isfinite(largest) else None,
    )


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
