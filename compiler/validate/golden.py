"""Golden data: results of PyTorch eager for a scenario, stored in the bundle."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from vidc.compiler.store.atomic import read_json
from vidc.compiler.validate.headroom import Activation
from vidc.compiler.validate.play import Inputs, Played, Player
from vidc.compiler.validate.scenario import Scenario
from vidc.plugins.errors import GateError
from vidc.runtime.engines import Engine
from vidc.runtime.programs.spec import ProgramSpec
from vidc.runtime.strict import plain, read
from vidc.runtime.text import PromptTokenizer, TextEncoder

FOLDER = "golden"
ACTIVATIONS = "activations.json"
SAMPLES = 2**12
"""Number of values that are stored of a tensor, unless it is in ``teacher_forced``."""
GOLDEN_RATIO = 2654435769
"""Fraction of the golden ratio times 2^32.

Its multiples, modulo 2^32, are spread evenly and do not repeat (Fibonacci hashing).
"""


def prompt_files(bundle: Path) -> tuple[Path, Path]:
    """Returns the files of the prompts' embeddings before and after the switch.

    ``vidc run --prompt-embeds`` takes them.
    """
    root = bundle / FOLDER
    return root / "prompt_before.safetensors", root / "prompt_after.safetensors"


def sample(tensor: Tensor) -> Tensor:
    """Returns up to ``SAMPLES`` values of a tensor, spread over all of it, on the CPU."""
    flat = tensor.reshape(-1)
    if flat.numel() > SAMPLES:
        flat = flat[sample_indices(flat.numel()).to(flat.device)]
    return flat.float().cpu().clone()


def sample_indices(count: int) -> Tensor:
    """Returns rising int64 indices, ``[SAMPLES]``, one from each equal stretch of ``count`` values.

    The place within a stretch follows the golden ratio, so that samples do not fall into step with
    a tensor's strides.
    """
    numbers = torch.arange(SAMPLES + 1)
    bounds = numbers * count // SAMPLES
    share = numbers[:-1] * GOLDEN_RATIO % 2**32
    return bounds[:-1] + (bounds.diff() * share >> 32)


def read_prompts(bundle: Path) -> Tensor:
    """Reads both prompts' embeddings, ``[2, *prompt_shape]``; ``[2, 0]`` if there are none."""
    files = prompt_files(bundle)
    if not all(path.exists() for path in files):
        return torch.zeros(len(files), 0)
    return torch.stack([load_file(path)["text_embeds"] for path in files])


def make_inputs(scenario: Scenario, spec: ProgramSpec) -> Inputs:
    """Draws prompts as a text encoder gives them, with a padded tail of zeros, and noise."""
    generator = torch.Generator().manual_seed(0)
    prompts = _drawn_prompts((2, *spec.prompt_shape), generator)
    noise = torch.randn(scenario.blocks, *spec.noise_shape, generator=generator)
    return Inputs(prompts, noise, {}, synthetic_conditions(spec, range(scenario.blocks)))


def synthetic_prompts(count: int, spec: ProgramSpec) -> Tensor:
    """Draws prompts as in ``make_inputs``, for one video: float32 ``[count, L, E]``."""
    return _drawn_prompts((count, *spec.prompt_shape[1:]), torch.Generator().manual_seed(0))


def with_prompts(
    inputs: Inputs,
    spec: ProgramSpec,
    encoder: Engine,
    tokenizer: Path,
    texts: Sequence[str],
) -> Inputs:
    """Returns the inputs with the embeddings of two texts as prompts, and with their tokens."""
    data = tokenizer.read_bytes()
    encode = TextEncoder(encoder, data, inputs.noise.device)
    prompts = [encode(text).expand(spec.prompt_shape).clone() for text in texts]
    tokenize = PromptTokenizer(data, spec.prompt_shape[1])
    tokens = [tokenize(text) for text in texts]
    stacked = {name: torch.stack([t[name] for t in tokens]) for name in tokens[0]}
    return replace(inputs, prompts=torch.stack(prompts), tokens=stacked)


def synthetic_conditions(spec: ProgramSpec, seeds: Iterable[int]) -> dict[str, Tensor]:
    """Draws the conditions of a block for each seed, ``[blocks, *shape]`` by name."""
    drawn = [spec.draw_conditions(seed) for seed in seeds]
    return {name: torch.stack([each[name] for each in drawn]) for name in spec.condition_shapes}


def _drawn_prompts(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draws ``[count, ..., L, E]``; ``[count, 0]`` for a program without prompts.

    The first prompt fills a quarter of its tokens, as a prompt of a few sentences does. Each later
    one fills an eighth more, up to seven eighths; then a quarter again.
    """
    if len(shape) == 1:
        return torch.zeros(*shape, 0)
    prompts = torch.randn(*shape, generator=generator)
    for index, prompt in enumerate(prompts):
        eighths = 2 + index % 6
        prompt[..., -(-shape[-2] * eighths // 8) :, :] = 0
    return prompts


@dataclass(frozen=True)
class Record:
    """Results of one set of engines on a scenario.

    Attributes:
        calls: call by call, the component and the stored values of the tensors that it wrote.
        played: latents and frames.
    """

    calls: list[tuple[str, dict[str, Tensor]]]
    played: Played

    def to_tensors(self) -> dict[str, Tensor]:
        """Returns the record as one flat table of tensors."""
        flat = {
            f"call.{number}.{component}/{name}": value
            for number, (component, written) in enumerate(self.calls)
            for name, value in written.items()
        }
        flat |= {f"latent.{b}": value for b, value in enumerate(self.played.latents)}
        return flat | {f"frames.{b}": value for b, value in self.played.frames.items()}

    @classmethod
    def from_tensors(cls, flat: Mapping[str, Tensor]) -> Self:
        """Inverse of ``to_tensors``."""
        calls: dict[int, tuple[str, dict[str, Tensor]]] = {}
        latents: dict[int, Tensor] = {}
        frames: dict[int, Tensor] = {}
        for key, value in flat.items():
            kind, number, *rest = key.split(".", 2)
            if kind == "call":
                component, _, name = rest[0].partition("/")
                calls.setdefault(int(number), (component, {}))[1][name] = value
            else:
                (latents if kind == "latent" else frames)[int(number)] = value
        return cls(
            [calls[number] for number in sorted(calls)],
            Played([latents[block] for block in sorted(latents)], frames),
        )


def record(
    player: Player, scenario: Scenario, inputs: Inputs, forced_by: Record | None = None
) -> Record:
    """Plays the components and records samples of the tensors that they write.

    Outputs in the program's ``teacher_forced`` are recorded whole. With ``forced_by``, the values
    of that record replace them after each call, so that later calls start from those.
    """
    calls: list[tuple[str, dict[str, Tensor]]] = []
    forced = player.program.teacher_forced

    def observe(number: int, component: str, written: Mapping[str, Tensor]) -> None:
        calls.append(
            (
                component,
                {
                    name: value.float().cpu().clone()
                    if (component, name) in forced
                    else sample(value)
                    for name, value in written.items()
                },
            )
        )
        if forced_by is not None:
            for name in (output for owner, output in forced if owner == component):
                written[name].copy_(forced_by.calls[number][1][name])

    frames = None if forced_by is None else forced_by.played.frames
    played = player.components(scenario, inputs, observe, frames)
    return Record(calls, played)


@dataclass(frozen=True)
class Golden:
    """Golden data of a bundle.

    Attributes:
        scenario: the scenario that was played.
        inputs: inputs of the rollout.
        reference: PyTorch eager's record in float32, with the bundle's weights.
        eager: its record in the model's own precision, forced by ``reference``; None if that
            precision is float32 too.
        eager_rollout: its free rollout in the model's own precision; None for no rollout.
        activations: largest activation in float32 of each weights group that is in fp16 instead of
            bf16.
    """

    scenario: Scenario
    inputs: Inputs
    reference: Record
    eager: Record | None
    eager_rollout: Played | None
    activations: Mapping[str, Activation] = field(default_factory=dict)

    @property
    def switches(self) -> tuple[int, ...]:
        """Blocks that are the first of a new prompt."""
        return (self.scenario.switch_after,) if self.inputs.prompts.numel() else ()

    def save(self, folder: Path) -> None:
        """Writes ``golden/`` into a bundle's folder."""
        root = folder / FOLDER
        root.mkdir()
        (root / "scenario.json").write_text(json.dumps(self.scenario.to_json()) + "\n")
        _write(root / "noise.safetensors", {"noise": self.inputs.noise})
        if self.inputs.prompts.numel():
            for path, prompt in zip(prompt_files(folder), self.inputs.prompts, strict=True):
                # Files of their own, which `vidc run --prompt-embeds` takes.
                _write(path, {"text_embeds": prompt.contiguous()})
        if self.inputs.tokens:
            _write(root / "tokens.safetensors", self.inputs.tokens)
        if self.inputs.conditions:
            _write(root / "conditions.safetensors", self.inputs.conditions)
        _write(root / "reference.safetensors", self.reference.to_tensors())
        if self.eager is not None:
            _write(root / "eager.safetensors", self.eager.to_tensors())
        if self.eager_rollout is not None:
            rollout = Record([], self.eager_rollout).to_tensors()
            _write(root / "eager_rollout.safetensors", rollout)
        if self.activations:
            (root / ACTIVATIONS).write_text(json.dumps(plain(self.activations)) + "\n")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Reads ``golden/`` of a bundle's folder.

        Raises:
            GateError: ``VIDC-VALIDATE-GOLDEN``, there are no golden data, or another version of
                vidc made them.
        """
        root = folder / FOLDER

        def stored(name: str) -> Record | None:
            path = root / f"{name}.safetensors"
            return Record.from_tensors(load_file(path)) if path.exists() else None

        reference, rollout = stored("reference"), stored("eager_rollout")
        if reference is None:
            raise GateError(
                "VIDC-VALIDATE-GOLDEN",
                f"{folder} holds no golden data to be validated with",
                "build the bundle again",
            )
        try:
            scenario = Scenario.from_json(json.loads((root / "scenario.json").read_text()))
        except TypeError as error:
            raise GateError(
                "VIDC-VALIDATE-GOLDEN",
                f"{folder} holds golden data of another version of vidc: {error}",
                "build the bundle again",
            ) from error
        return cls(
            scenario,
            Inputs(
                read_prompts(folder),
                load_file(root / "noise.safetensors")["noise"],
                _read_table(root / "tokens.safetensors"),
                _read_table(root / "conditions.safetensors"),
            ),
            reference,
            stored("eager"),
            None if rollout is None else rollout.played,
            read_activations(folder),
        )


def read_activations(folder: Path) -> dict[str, Activation]:
    """Returns the largest activations in ``golden/`` of a bundle's folder.

    Raises:
        GateError: ``VIDC-BUNDLE-FIELD``, the file does not have the fields that a build writes.
    """
    path = folder / FOLDER / ACTIVATIONS
    if not path.exists():
        return {}
    found: dict[str, Activation] = read(read_json(path), dict[str, Activation], str(path))
    return found


def _read_table(path: Path) -> dict[str, Tensor]:
    """Returns the tensors of a file; none if there is no file."""
    tensors: dict[str, Tensor] = load_file(path) if path.exists() else {}
    return tensors


def _write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    # safetensors' own writer makes files that nobody else may read.
    path.write_bytes(save(dict(tensors)))
