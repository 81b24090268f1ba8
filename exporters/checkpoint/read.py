"""Opening a checkpoint without loading it: one file, a folder of shards, or a ``.pt`` file."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.exporters.checkpoint.safetensors_file import read_safetensors
from vidc.plugins.errors import BuildError, UsageError
from vidc.plugins.untrusted_files import require_regular, unique_keys

_TRAINED, _AVERAGE = "generator", "generator_ema"
MODEL_SECTIONS = (_TRAINED, "model", "state_dict", "generator_lora", _AVERAGE)
"""Keys under which a ``.pt`` file may hold a model; the moving average comes last."""

_INDEX = ".safetensors.index.json"
_HALF = ".fp16"
"""Mark of diffusers' files in half precision."""
_TORCH = (".pt", ".pth", ".bin")
_LFS_POINTER = b"version https://git-lfs"


@dataclass(frozen=True)
class Checkpoint:
    """Tensors of a checkpoint and their files.

    Attributes:
        tensors: by the names that the file gives them.
        files: the files that ``checkpoint_files`` returns.
        section: the entry of a ``.pt`` file that was chosen, or None if it holds the tensors
            at its top.
    """

    tensors: dict[str, LazyTensor]
    files: tuple[Path, ...]
    section: str | None = None


def read_checkpoint(path: Path, sections: Sequence[str] = MODEL_SECTIONS) -> Checkpoint:
    """Opens a checkpoint.

    Args:
        path: a ``.safetensors`` file, an index of shards, a folder that holds one or the other,
            or a ``.pt``, ``.pth`` or ``.bin`` file.
        sections: entries of a ``.pt`` file that may hold the weights, the preferred one first.

    Raises:
        UsageError: ``VIDC-CHECKPOINT-MISSING``.
        BuildError: a code that starts with ``VIDC-CHECKPOINT-``.
    """
    with _read_errors(path):
        file = _file(path)
        _refuse_pointer(file)
        checkpoint = _open(file, sections)
    if not checkpoint.tensors:
        raise BuildError(
            "VIDC-CHECKPOINT-FORMAT", f"{path} holds no tensors", "give a model's weights"
        )
    return checkpoint


def read_model(path: Path, *, ema: bool) -> Checkpoint:
    """Opens a model's checkpoint: its trained weights, or their moving average.

    A file without a section for either is read as it is.

    Raises:
        BuildError: ``VIDC-CHECKPOINT-EMA``, the file holds only the weights that were not asked
            for.
        VidcError: what ``read_checkpoint`` raises.
    """
    wanted, other = (_AVERAGE, _TRAINED) if ema else (_TRAINED, _AVERAGE)
    rest = [section for section in MODEL_SECTIONS if section not in (wanted, other)]
    order = (wanted, other, *rest) if ema else (wanted, *rest, other)
    found = read_checkpoint(path, order)
    if found.section is not None and found.section.rpartition("/")[2] == other:
        raise BuildError(
            "VIDC-CHECKPOINT-EMA",
            f"{path} holds {found.section}, and no {wanted}",
            f"pass {'--no-ema' if ema else '--ema'} to take what it holds",
        )
    return found


def checkpoint_files(path: Path) -> tuple[Path, ...]:
    """Every file that ``read_checkpoint`` reads, without reading weights: an index comes first.

    Args:
        path: as for ``read_checkpoint``.

    Raises:
        UsageError: ``VIDC-CHECKPOINT-MISSING``.
        BuildError: ``VIDC-CHECKPOINT-FORMAT``, ``-INDEX`` or ``-SHARD``.
    """
    with _read_errors(path):
        file = _file(path)
        if not file.name.endswith(_INDEX):
            return (file,)
        _refuse_pointer(file)
        return (file, *_shards(file, _weight_map(file)).values())


@contextmanager
def _read_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(
            "VIDC-CHECKPOINT-MISSING",
            f"cannot read the checkpoint {error.filename or path}: {error.strerror}",
            "check the path and its permissions",
        ) from error


def _refuse_pointer(file: Path) -> None:
    require_regular(file)
    with file.open("rb") as opened:
        if opened.read(len(_LFS_POINTER)) == _LFS_POINTER:
            raise BuildError(
                "VIDC-CHECKPOINT-FORMAT",
                f"{file} is a git-lfs pointer, not the weights",
                "fetch the weights with `git lfs pull`",
            )


def _open(file: Path, sections: Sequence[str]) -> Checkpoint:
    if file.name.endswith(_INDEX):
        return _read_shards(file)
    if file.suffix == ".safetensors":
        return Checkpoint(read_safetensors(file), (file,))
    if file.suffix in _TORCH:
        from vidc.exporters.checkpoint.torch_file import read_torch

        tensors, section = read_torch(file, sections)
        return Checkpoint(tensors, (file,), section)
    raise BuildError(
        "VIDC-CHECKPOINT-FORMAT",
        f"{file} is not a kind of checkpoint that vidc reads",
        f"give a .safetensors, *{_INDEX}, {', '.join(_TORCH)} file or a folder of safetensors",
    )


def _file(path: Path) -> Path:
    """Returns the file to open: in a folder, the index of shards or the only safetensors file."""
    return _file_in(path) if path.is_dir() else path


def _file_in(folder: Path) -> Path:
    for pattern in (f"*{_INDEX}", "*.safetensors"):
        found = sorted(folder.glob(pattern))
        # Of two variants of the same weights, the one in full precision.
        found = [f for f in found if f"{_HALF}." not in f.name] or found
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(file.name for file in found[:4])
            raise BuildError(
                "VIDC-CHECKPOINT-FORMAT",
                f"{folder} holds {len(found)} files that match {pattern} ({names}) and no index "
                "that joins them",
                "name the file to use, or restore the index of the shards",
            )
    inside = sorted(entry.name for entry in folder.iterdir())
    raise BuildError(
        "VIDC-CHECKPOINT-FORMAT",
        f"{folder} holds no .safetensors file, only: {', '.join(inside[:8]) or 'nothing'}",
        "name the file to use; of a diffusers pipeline name the folder transformer or vae",
    )


def _read_shards(index: Path) -> Checkpoint:
    weight_map = _weight_map(index)
    files = _shards(index, weight_map)
    shards = {name: read_safetensors(file) for name, file in files.items()}
    found = {(key, name) for name, tensors in shards.items() for key in tensors}
    different = sorted(found ^ set(weight_map.items()))
    if different:
        key, name = different[0]
        where = "only in the shard" if (key, name) in found else "only in the index"
        raise BuildError(
            "VIDC-CHECKPOINT-SHARD",
            f"{index} and its shards disagree on {len(different)} tensors: {key} of {name} is "
            f"{where}",
            "fetch the index and the shards of one revision",
        )
    tensors = {key: shards[name][key] for key, name in weight_map.items()}
    return Checkpoint(tensors, (index, *files.values()))


def _shards(index: Path, weight_map: Mapping[str, str]) -> dict[str, Path]:
    """The shards of an index by name, sorted; all are there."""
    files = {name: index.parent / name for name in sorted(set(weight_map.values()))}
    for name, file in files.items():
        if not file.is_file():
            raise BuildError(
                "VIDC-CHECKPOINT-SHARD",
                f"{index} names the shard {name}, which is missing",
                f"put all {len(files)} shards beside the index",
            )
    return files


def _weight_map(index: Path) -> dict[str, str]:
    """Tensor names to shards, which lie beside the index."""
    require_regular(index)
    try:
        weight_map = json.loads(index.read_bytes(), object_pairs_hook=unique_keys)["weight_map"]
        if not all(name == Path(name).name for name in weight_map.values()):
            raise ValueError("a shard lies outside the folder of the index")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BuildError(
            "VIDC-CHECKPOINT-INDEX",
            f"{index} is not an index of shards: {type(error).__name__}: {error}",
            'expected {"weight_map": {"<tensor>": "<file>", …}}; fetch it again',
        ) from error
    return dict(weight_map)
