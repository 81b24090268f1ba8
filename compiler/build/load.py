"""Stage ``load``: checkpoint files, or a seed, to the bundle's weights of one group."""

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vidc.compiler.build.groups import LIBRARIES, group_sizes, labeled, text_len
from vidc.compiler.store.digest import Json
from vidc.compiler.store.stage import Key, Stage, Workspace
from vidc.compiler.store.versions import versions
from vidc.exporters.config import ModelConfig
from vidc.plugins.names import TOKENIZER, weights_path

if TYPE_CHECKING:
    from vidc.exporters.checkpoint import LazyTensor

SOURCE_NAME = "source.json"


@dataclass(frozen=True)
class Load(Stage):
    """Writes ``weights/<group>.safetensors`` and where it came from.

    Attributes:
        model: sizes of all its networks.
        group: of the weights.
        precision: to write them in.
        weights: a checkpoint, or the seed of random weights; None where another machine loaded
            them: such a stage has the rest of its key and does not run.
        lora: merged into the transformer's checkpoint.
        tokenizer: the text encoder's, which is written too.
    """

    model: ModelConfig
    group: str
    precision: str
    weights: Path | int | None
    lora: Path | None = None
    tokenizer: Path | None = None

    @property
    def name(self) -> str:
        """``load:<group>``."""
        return f"load:{self.group}"

    def key(self) -> Key:
        """Returns the key.

        Raises:
            VidcError: what ``checkpoint_files`` raises.
        """
        from vidc.exporters.text_encoder.tokenizer import is_sentencepiece

        files, libraries = self._files(), LIBRARIES[self.group]
        if self.tokenizer is not None and is_sentencepiece(self.tokenizer):
            libraries += ("sentencepiece", "protobuf")
        config: dict[str, Json] = {
            "sizes": group_sizes(self.model, self.group),
            "text_len": text_len(self.model, self.group),
            "precision": self.precision,
        }
        if self.weights is not None:
            config["seed"] = self.weights if isinstance(self.weights, int) else None
        return Key((__name__,), config, files, partial(versions, "torch", *libraries))

    def _files(self) -> dict[str, Path]:
        from vidc.exporters.checkpoint import checkpoint_files, lora_files
        from vidc.exporters.text_encoder.tokenizer import tokenizer_files

        files: dict[str, Path] = {}
        if isinstance(self.weights, Path):
            files |= labeled("checkpoint", checkpoint_files(self.weights))
        if self.lora is not None:
            files |= labeled("lora", lora_files(self.lora))
        if self.tokenizer is not None:
            files |= labeled("tokenizer", tokenizer_files(self.tokenizer))
        return files

    def run(self, workspace: Workspace) -> None:
        """Writes the weights, their source and, for a text encoder, its tokenizer."""
        from vidc.exporters.checkpoint import Digests, cast, write_weights
        from vidc.exporters.models import PRECISIONS
        from vidc.exporters.text_encoder.tokenizer import tokenizer_json

        tensors, source = self._tensors()
        encoder = self.model.text_encoder if self.group == "text_encoder" else None
        if encoder is not None and self.tokenizer is not None:
            text = tokenizer_json(self.tokenizer, encoder, self.model.transformer.text_len)
            (workspace.output / TOKENIZER).write_text(text)
        (workspace.output / "weights").mkdir()
        digests = Digests(tensors)
        path = workspace.output / weights_path(self.group)
        write_weights(path, cast(digests.tensors, PRECISIONS[self.precision]))
        source["digest"] = digests.digest()
        (workspace.output / SOURCE_NAME).write_text(json.dumps(source, sort_keys=True) + "\n")

    def _tensors(self) -> tuple["dict[str, LazyTensor]", dict[str, Any]]:
        """Returns the weights by canonical name, not read yet, and where they come from."""
        from vidc.exporters.checkpoint import load_weights
        from vidc.exporters.models import meta_network
        from vidc.exporters.text_encoder.weights import load_encoder_weights

        network = meta_network(self.model, self.group, "fp32")
        shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
        assert self.weights is not None
        if isinstance(self.weights, int):
            return self._random(shapes, self.weights), {"random_weights": self.weights}
        if self.group == "text_encoder":
            assert self.model.text_encoder is not None
            loaded = load_encoder_weights(self.weights, self.model.text_encoder)
        else:
            loaded = load_weights(self.weights, self.lora, shapes)
        return loaded.tensors, dict(loaded.provenance)

    def _random(self, shapes: dict[str, tuple[int, ...]], seed: int) -> "dict[str, LazyTensor]":
        import torch

        from vidc.exporters.causal_wan.random_weights import random_weight
        from vidc.exporters.checkpoint import LazyTensor
        from vidc.exporters.wan_vae.random_weights import random_state_dict

        if self.group == "vae":
            drawn = random_state_dict(self.model.vae, seed, torch.float32)
            return {name: LazyTensor.of(tensor) for name, tensor in drawn.items()}
        return {
            name: LazyTensor(shape, torch.float32, partial(random_weight, name, shape, seed))
            for name, shape in shapes.items()
        }


def read_source(folder: Path) -> dict[str, Any]:
    """Returns where the weights in a result of this stage came from, and the ``digest`` of them."""
    source: dict[str, Any] = json.loads((folder / SOURCE_NAME).read_text())
    return source
