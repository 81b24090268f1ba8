"""Checkpoints of a training: what the next step needs, as safetensors and JSON.

Every step draws what is random from a generator seeded by the run's seed and the step's number, so
these two are the whole state of chance, and a resumed run takes the very steps that an unbroken one
would have taken.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from demo_model.training.ema import Ema

WEIGHTS, EMA, OPTIMIZER, STATE = "weights", "ema", "optimizer", "state.json"


@dataclass(frozen=True)
class Training:
    """What is trained, all of it changed in place by ``restore``.

    Attributes:
        network: with the trained parameters.
        ema: their mean.
        optimizer: of the same parameters.
    """

    network: nn.Module
    ema: Ema
    optimizer: torch.optim.Optimizer


def save(folder: Path, training: Training, state: Mapping[str, Any]) -> None:
    """Writes a checkpoint; one that was there stays whole until the new one is.

    Args:
        folder: of the checkpoint, replaced.
        training: what is trained.
        state: plain JSON values that ``restore`` returns.
    """
    staging, old = folder.with_name(folder.name + ".new"), _old(folder)
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    _write(staging / WEIGHTS, dict(training.network.named_parameters()))
    _write(staging / EMA, training.ema.mean)
    _write(staging / OPTIMIZER, _flat(training.optimizer))
    (staging / STATE).write_text(json.dumps(state, indent=1) + "\n")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        os.rename(folder, old)
    os.rename(staging, folder)
    shutil.rmtree(old, ignore_errors=True)


def exists(folder: Path) -> bool:
    """Whether there is a checkpoint, or what an interrupted ``save`` left of one."""
    return folder.exists() or _old(folder).exists()


def restore(folder: Path, training: Training) -> dict[str, Any]:
    """Reads a checkpoint into what is trained, and returns its state.

    Raises:
        FileNotFoundError: there is none.
        RuntimeError: it is of another network.
    """
    folder = folder if folder.exists() else _old(folder)
    state: dict[str, Any] = json.loads((folder / STATE).read_text())
    training.network.load_state_dict(_read(folder / WEIGHTS), strict=False)
    missing = dict(training.network.named_parameters()).keys() ^ _read(folder / WEIGHTS).keys()
    if missing:
        raise RuntimeError(f"{folder} is of another network: {sorted(missing)[:4]} differ")
    training.ema.load(_read(folder / EMA))
    nested = training.optimizer.state_dict()
    nested["state"] = {}
    for name, tensor in _read(folder / OPTIMIZER).items():
        index, key = name.split(".")
        nested["state"].setdefault(int(index), {})[key] = tensor
    training.optimizer.load_state_dict(nested)
    return state


def trained(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The mean weights of a checkpoint, float32 on the CPU, and its state.

    Raises:
        FileNotFoundError: there is no checkpoint.
    """
    folder = folder if folder.exists() else _old(folder)
    return _read(folder / EMA), json.loads((folder / STATE).read_text())


def _old(folder: Path) -> Path:
    return folder.with_name(folder.name + ".old")


def _flat(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """An optimizer's state under ``<parameter's index>.<name>``."""
    return {
        f"{index}.{key}": value
        for index, values in optimizer.state_dict()["state"].items()
        for key, value in values.items()
    }


def _write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(whole, path.with_suffix(".safetensors"))


def _read(path: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = load_file(path.with_suffix(".safetensors"))
    return tensors
