"""Records ranges, rollout after rollout; an interrupted recording goes on where it stopped."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from vidc.compiler.build.calibration_prompts import Prompts, pairs
from vidc.compiler.build.calibration_rollouts import Rollouts, scenario
from vidc.compiler.build.calibration_state import State
from vidc.compiler.build.load import read_source
from vidc.compiler.config.stream import stream_spec
from vidc.compiler.quantize import document
from vidc.compiler.quantize.artifact import model_tables, write_calibration
from vidc.compiler.quantize.groups import groups
from vidc.compiler.quantize.ranges import finished, merged
from vidc.compiler.store.digest import sha256_json
from vidc.compiler.store.sources import source_digest
from vidc.compiler.validate.reference import eager_engines
from vidc.exporters.config import ModelConfig
from vidc.plugins.names import TOKENIZER, weights_path
from vidc.runtime.strict import plain
from vidc.runtime.text import TextEncoder

TRANSFORMER = "transformer"
TEXT_ENCODER = "text_encoder"


@dataclass(frozen=True)
class Recording:
    """A calibration that is to be recorded.

    Attributes:
        config: of the model.
        precisions: of the transformer and, for texts, of the text encoder.
        prompts: at least one; each is followed by a rollout that switches to the next.
        seed: of the noise.
        device_type: where the rollouts run, ``cpu`` or ``cuda``.
        versions: of the packages that record it.
    """

    config: ModelConfig
    precisions: Mapping[str, str]
    prompts: Prompts
    seed: int
    device_type: str
    versions: Mapping[str, str]

    def write(
        self,
        folders: Mapping[str, Path],
        output: Path,
        unfinished: Path,
        note: Callable[[str], None],
    ) -> None:
        """Writes the calibration, the same bytes whether or not it was interrupted.

        Args:
            folders: outputs of stage ``load`` by weights group, as ``loaded_groups`` says.
            output: an empty folder.
            unfinished: a folder for what an interrupted recording leaves, removed at the end.
            note: is told of each prompt.

        Raises:
            GateError: ``VIDC-CALIBRATION-NONFINITE``, ``VIDC-CALIBRATION-ZERO``.
        """
        described = self._document(folders[TRANSFORMER])
        device = torch.device(self.device_type)
        recorder = source_digest((__name__,))
        key = sha256_json({**plain(described), "machine": machine(device), "sources": recorder})
        unfinished.mkdir(parents=True, exist_ok=True)
        path = unfinished / f"{key}.safetensors"
        ranges = self._ranges(folders, device, path, key, note)
        write_calibration(output, described, finished(ranges))
        path.unlink(missing_ok=True)

    def _document(self, loaded: Path) -> document.Document:
        source, prompts = read_source(loaded), self.prompts
        stream = stream_spec(self.config)
        played = scenario(stream)
        return document.Document(
            schema=document.SCHEMA,
            weights=source["digest"],
            source=source,
            model=model_tables(self.config),
            precision=self.precisions[TRANSFORMER],
            device=self.device_type,
            prompts=document.PromptsNote(prompts.kind, len(prompts), prompts.sha256, prompts.texts),
            seed=self.seed,
            recipe=document.Rollouts("max", played.blocks, played.switch_after),
            groups=groups(stream),
            versions=dict(self.versions),
            tensors=document.FileNote(0, ""),
        )

    def _ranges(
        self,
        folders: Mapping[str, Path],
        device: torch.device,
        path: Path,
        key: str,
        note: Callable[[str], None],
    ) -> Mapping[str, Tensor]:
        """The ranges of all prompts, from where the recording of this key stopped."""
        count, state = len(self.prompts), State.load(path, key)
        if state.done:
            note(f"prompts 1 to {state.done} of {count}: recorded before an interruption")
        if state.done == count:
            return state.ranges
        found = prompt_embeddings(self.config, self.precisions, self.prompts, folders, device)
        embeddings = pairs(found)
        weights = {TRANSFORMER: folders[TRANSFORMER] / weights_path(TRANSFORMER)}
        engines = eager_engines(self.config, weights, self.precisions, device)
        rollouts = Rollouts(stream_spec(self.config), engines, device, self.seed)
        if state.done == 0:
            state = State(0, rollouts.weights())
        for index in range(state.done, count):
            started = time.perf_counter()
            state = State(
                index + 1, merged(state.ranges, rollouts.ranges(index, embeddings[index]))
            )
            state.save(path, key)
            note(f"prompt {index + 1}/{count}: {time.perf_counter() - started:.1f} s")
        return state.ranges


def loaded_groups(prompts: Prompts) -> tuple[str, ...]:
    """The weights groups that a recording needs."""
    return (TRANSFORMER, *([TEXT_ENCODER] if prompts.texts else []))


def prompt_embeddings(
    config: ModelConfig,
    precisions: Mapping[str, str],
    prompts: Prompts,
    folders: Mapping[str, Path],
    device: torch.device,
) -> Tensor:
    """Of all prompts, ``[N, L, E]`` on the CPU; the text encoder is gone when this returns."""
    if not prompts.texts:
        return prompts.embedded(None)
    weights = {TEXT_ENCODER: folders[TEXT_ENCODER] / weights_path(TEXT_ENCODER)}
    engines = eager_engines(config, weights, precisions, device)
    tokenizer = folders[TEXT_ENCODER] / TOKENIZER
    return prompts.embedded(TextEncoder(engines[TEXT_ENCODER], tokenizer, device))


def machine(device: torch.device) -> str:
    """What may round differently: its ranges are not mixed with another's."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{torch.backends.cpu.get_cpu_capability()} {torch.get_num_threads()}"
