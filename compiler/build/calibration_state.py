"""State of an unfinished calibration: one file, replaced whole after each prompt."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from vidc.compiler.store.atomic import sync


@dataclass(frozen=True)
class State:
    """The merged ranges of the first ``done`` prompts, in full precision."""

    done: int = 0
    ranges: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path, key: str) -> Self:
        """Returns the state that an interrupted run with this key left, or an empty one."""
        try:
            with safe_open(path, "pt") as file:
                note = file.metadata() or {}
                if note.get("key") != key:
                    return cls()
                ranges = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                return cls(int(note["done"]), ranges)
        except (OSError, SafetensorError, KeyError, ValueError):
            # Whatever became of the file, the beginning is right.
            return cls()

    def save(self, path: Path, key: str) -> None:
        """Replaces the file; OSError where the disk refuses."""
        tensors = {name: value.contiguous() for name, value in self.ranges.items()}
        draft = path.with_name(f"{path.name}.new")
        draft.write_bytes(save(tensors, {"key": key, "done": str(self.done)}))
        sync(draft)
        draft.replace(path)
        sync(path.parent)
