"""Stage ``load``: writes the weights of one group from checkpoint files or a seed."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from vidc.compiler.report.weights import origin_text
from vidc.compiler.store.digest import Json
from vidc.compiler.store.sources import class_modules, versions
from vidc.compiler.store.stage import Input, Key, Stage, Workspace
from vidc.exporters.families.family import Family
from vidc.exporters.part import Part
from vidc.plugins.names import weights_path

SOURCE_NAME = "source.json"


@dataclass(frozen=True)
class Load(Stage):
    """Writes ``weights/<group>.safetensors``, its source, and other files of the part.

    Attributes:
        part: part that the weights belong to.
        family: family of the model, with the layouts that a checkpoint may have.
        precision: precision of the written weights.
        weights: a checkpoint, or the seed of random weights. None if another machine loaded
            them: this stage then does not run, and its key omits the checkpoint.
        loras: LoRAs to merge into the checkpoint.
        tokenizer: tokenizer to write beside the weights, for a part that needs one.
        ema: True to take the moving average (EMA) of the weights from the checkpoint.
    """

    part: Part
    family: type[Family]
    precision: str
    weights: Path | int | None
    loras: tuple[Path, ...] = ()
    tokenizer: Path | None = None
    ema: bool = False

    @property
    def name(self) -> str:
        """``load:<group>``."""
        return f"load:{self.part.group}"

    def key(self) -> Key:
        """Returns the key.

        Raises:
            VidcError: what ``checkpoint_files`` raises.
        """
        files, libraries = self._files(), self.part.libraries
        if self.tokenizer is not None:
            libraries += self.part.tokenizer_libraries(self.tokenizer)
        config: dict[str, Json] = {**self.part.load_settings(), "precision": self.precision}
        if self.weights is not None:
            config["seed"] = self.weights if isinstance(self.weights, int) else None
            config["ema"] = self.ema
        entries = (__name__, *class_modules(type(self.part)), *class_modules(self.family))
        return Key(entries, config, files, partial(versions, "torch", *libraries))

    def _files(self) -> dict[str, Path]:
        files: dict[str, Path] = {}
        if isinstance(self.weights, Path):
            from vidc.exporters.checkpoint.read import checkpoint_files

            beside = (each for each in self.part.files_beside(self.weights) if each.exists())
            files |= labeled("checkpoint", (*checkpoint_files(self.weights), *beside))
        for i, lora in enumerate(self.loras):
            from vidc.exporters.checkpoint.load import lora_files

            files |= labeled(f"lora{i}", lora_files(lora))
        if self.tokenizer is not None:
            files |= labeled("tokenizer", self.part.tokenizer_files(self.tokenizer))
        return files

    def run(self, workspace: Workspace) -> None:
        """Writes the weights, their source and, for a part that needs one, its tokenizer."""
        from vidc.exporters.checkpoint.digest import Digests
        from vidc.exporters.checkpoint.lazy import cast
        from vidc.exporters.checkpoint.write import write_weights
        from vidc.exporters.models import PRECISIONS

        assert self.weights is not None
        if isinstance(self.weights, int):
            tensors = self.part.random_weights(self.weights)
            source: dict[str, Any] = {"random_weights": self.weights}
        else:
            loaded = self.part.load(self.weights, self.loras, self.family.layouts(), self.ema)
            tensors, source = loaded.tensors, dict(loaded.provenance)
        if self.tokenizer is not None:
            self.part.write_tokenizer(workspace.output, self.tokenizer)
        (workspace.output / "weights").mkdir()
        digests = Digests(tensors)
        path = workspace.output / weights_path(self.part.group)
        write_weights(path, cast(digests.tensors, PRECISIONS[self.precision]))
        source["digest"] = digests.digest()
        (workspace.output / SOURCE_NAME).write_text(json.dumps(source, sort_keys=True) + "\n")

    def notes(self, output: Path) -> list[str]:
        """Returns where the weights came from."""
        return [f"{self.part.group.replace('_', ' ')}: {origin_text(read_source(output))}"]


def loaded_input(part: Part, *more: str) -> Input:
    """Returns a stage's input: a part's weights and other files, but not ``source.json``.

    Args:
        part: the loaded part.
        more: further files of the load stage that are read.
    """
    return Input(f"load:{part.group}", (weights_path(part.group), *part.files, *more))


def labeled(label: str, files: Iterable[Path]) -> dict[str, Path]:
    """Returns the files that a stage reads by ``<label>.<file name>``, for its key."""
    # File names are part of the key because the recorded source of the weights has them.
    return {f"{label}.{file.name}": file for file in files}


def read_source(folder: Path) -> dict[str, Any]:
    """Returns ``source.json`` of a load stage: origin of the weights, and their ``digest``."""
    source: dict[str, Any] = json.loads((folder / SOURCE_NAME).read_text())
    return source
