"""Records activation ranges, one rollout for each prompt; an interrupted recording resumes."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from vidc.compiler.build.calibration_prompts import Prompts, pairs
from vidc.compiler.build.calibration_rollouts import Rollouts, scenario
from vidc.compiler.build.load import read_source
from vidc.compiler.config.program import model_modules, program_spec
from vidc.compiler.quantize import document
from vidc.compiler.quantize.artifact import model_tables, write_calibration
from vidc.compiler.quantize.ranges import finished, merged
from vidc.compiler.store.atomic import sync, write_bytes
from vidc.compiler.store.digest import sha256_json
from vidc.compiler.store.sources import source_digest
from vidc.compiler.validate.reference import EagerEngine, eager_engines
from vidc.exporters.families.family import Family
from vidc.plugins.names import TOKENIZER, weights_path
from vidc.runtime.strict import plain
from vidc.runtime.text import TextEncoder


@dataclass(frozen=True)
class Recording:
    """A calibration that is to be recorded.

    Attributes:
        model: model that is calibrated.
        precisions: precision of each group that ``loaded_groups`` names.
        prompts: at least one. The rollout of each begins with it and switches to the next one.
        seed: seed of the noise.
        device_type: where the rollouts run, ``cpu`` or ``cuda``.
        versions: versions of the packages that record, by name.
    """

    model: Family
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
        """Writes the calibration; an interruption does not change its bytes.

        Args:
            folders: outputs of stage ``load`` by weights group, as ``loaded_groups`` says.
            output: an empty folder.
            unfinished: folder of the file that an interrupted recording resumes from, which is
                removed at the end.
            note: shows a line for each prompt.

        Raises:
            GateError: ``VIDC-CALIBRATION-NONFINITE``, ``VIDC-CALIBRATION-ZERO``.
        """
        described = self._document(folders[self.model.quantized_group])
        device = torch.device(self.device_type)
        recorder = source_digest((__name__, *model_modules(self.model)))
        key = sha256_json({**plain(described), "machine": machine(device), "sources": recorder})
        unfinished.mkdir(parents=True, exist_ok=True)
        path = unfinished / f"{key}.safetensors"
        ranges = self._ranges(folders, device, path, key, note)
        write_calibration(output, described, finished(ranges))
        path.unlink(missing_ok=True)

    def _document(self, loaded: Path) -> document.Document:
        source, prompts, model = read_source(loaded), self.prompts, self.model
        played = scenario(model)
        return document.Document(
            schema=document.SCHEMA,
            weights=source["digest"],
            source=source,
            model=model_tables(model),
            precision=self.precisions[model.quantized_group],
            device=self.device_type,
            prompts=document.PromptsNote(prompts.kind, len(prompts), prompts.sha256, prompts.texts),
            seed=self.seed,
            recipe=document.Rollouts("max", played.blocks, played.switch_after),
            groups=model.passes(),
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
        """Returns the ranges of all prompts; resumes an interrupted recording of this key."""
        count, state = len(self.prompts), State.load(path, key)
        if state.done:
            note(f"prompts 1 to {state.done} of {count}: recorded before an interruption")
        if state.done == count:
            return state.ranges
        model, group = self.model, self.model.quantized_group
        found = prompt_embeddings(model, self.precisions, self.prompts, folders, device)
        embeddings = pairs(found)
        weights = {
            each: folders[each] / weights_path(each) for each in (group, *model.conditioning_groups)
        }
        engines = undecoded(model, eager_engines(model, weights, self.precisions, device))
        rollouts = Rollouts(model, engines, device, self.seed)
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


def loaded_groups(model: Family, prompts: Prompts) -> tuple[str, ...]:
    """Returns the weights groups that a recording needs."""
    texts = [str(model.text_group)] if prompts.texts else []
    return (model.quantized_group, *texts, *model.conditioning_groups)


def undecoded(model: Family, engines: Mapping[str, EagerEngine]) -> dict[str, EagerEngine]:
    """Returns the engines without decoders: calibration needs no frames.

    A decoder in the quantized group stays, as in a world whose quantized network makes the frames.
    """
    decoders, groups = program_spec(model).decode_components, model.components
    return {
        name: engine
        for name, engine in engines.items()
        if name not in decoders or groups[name] == model.quantized_group
    }


def prompt_embeddings(
    model: Family,
    precisions: Mapping[str, str],
    prompts: Prompts,
    folders: Mapping[str, Path],
    device: torch.device,
) -> Tensor:
    """Returns embeddings of all prompts, float32 ``[N, L, E]`` on the CPU.

    The text encoder is loaded only for this call.
    """
    if not prompts.texts:
        return prompts.embedded(None)
    group = str(model.text_group)
    engines = eager_engines(
        model, {group: folders[group] / weights_path(group)}, precisions, device
    )
    engine = engines[model.text_component]
    tokenizer = (folders[group] / TOKENIZER).read_bytes()
    return prompts.embedded(TextEncoder(engine, tokenizer, device))


def machine(device: torch.device) -> str:
    """Returns the name of the device, for the key: ranges of two devices are never mixed.

    A CPU's is its instruction set and number of threads, which change rounding.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{torch.backends.cpu.get_cpu_capability()} {torch.get_num_threads()}"


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
            # Missing or damaged: starting over is always correct.
            return cls()

    def save(self, path: Path, key: str) -> None:
        """Replaces the file atomically; raises OSError if it cannot be written."""
        tensors = {name: value.contiguous() for name, value in self.ranges.items()}
        write_bytes(path, save(tensors, {"key": key, "done": str(self.done)}))
        sync(path)
        sync(path.parent)
