"""Stages of an analysis: ``sensitivity:<pattern>`` for each group of layers, then ``mix``."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from vidc.compiler.analyze.choose import Budget, Choice, Scored, by_damage, choose
from vidc.compiler.analyze.groups import LayerGroup, layers_of
from vidc.compiler.analyze.trials import Damage, Trials
from vidc.compiler.build.calibrate import calibrate_name
from vidc.compiler.build.calibration_prompts import Prompts, pairs
from vidc.compiler.build.calibration_recording import (
    loaded_groups,
    machine,
    prompt_embeddings,
    undecoded,
)
from vidc.compiler.build.calibration_rollouts import rollout_inputs
from vidc.compiler.build.load import loaded_input
from vidc.compiler.config.program import model_modules, program_spec
from vidc.compiler.config.resolve import Settings
from vidc.compiler.quantize.apply import Quantization
from vidc.compiler.quantize.artifact import model_tables, read_calibration
from vidc.compiler.quantize.attention import require_heads
from vidc.compiler.quantize.document import DOCUMENT, TENSORS
from vidc.compiler.quantize.switch import QuantizedLayers
from vidc.compiler.store.digest import Json
from vidc.compiler.store.sources import versions
from vidc.compiler.store.stage import Input, Key, Stage, Workspace
from vidc.compiler.validate.reference import eager_engines, quantized_network
from vidc.plugins.names import weights_path
from vidc.runtime.faults import gpu_faults

FIGURES = "figures.json"


class Subject:
    """Model, recipe, prompts and noise of one analysis, shared by its stages.

    ``Trials`` are made once, by the first stage that has to run.

    Args:
        settings: settings of the model on this machine.
        formats: the layers' formats in the recipe under analysis.
        prompts: at least one prompt; each has a rollout of its own.
        seed: seed of the noise.
        decoded: True to compare frames, which needs the decoder's weights; False for latents.
    """

    def __init__(
        self,
        settings: Settings,
        formats: Quantization,
        prompts: Prompts,
        seed: int,
        decoded: bool,
    ) -> None:
        self.settings, self.model = settings, settings.model
        self.formats, self.prompts, self.seed = formats, prompts, seed
        decoder = (self.model.decoder_group,) if decoded else ()
        self.decoded = decoded
        # A model may decode with the quantized group itself.
        self.groups = tuple(dict.fromkeys((*loaded_groups(self.model, prompts), *decoder)))
        self.device = torch.device(settings.target.device_type)
        self._trials: Trials | None = None

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The weights files in use, and the calibration."""
        loads = (loaded_input(self.model.parts[group]) for group in self.groups)
        return (*loads, Input(calibrate_name(self.model), (DOCUMENT, TENSORS)))

    def key(self, layers: Sequence[str], **config: Json) -> Key:
        """Returns the key of a result for these layers; formats of other layers do not matter."""
        formats = {**self.formats.linear, **self.formats.attention}
        return Key(
            (__name__, *model_modules(self.model)),
            {
                "model": model_tables(self.model),
                "precision": {group: self.settings.precision[group] for group in self.groups},
                "prompts": [self.prompts.kind, len(self.prompts), self.prompts.sha256],
                "seed": self.seed,
                "formats": {layer: asdict(formats[layer]) for layer in layers},
                "machine": machine(self.device),
                **config,
            },
            tools=partial(versions, "torch"),
        )

    def trials(self, workspace: Workspace) -> Trials:
        """Returns the trials; the first call makes them and plays the high-precision rollouts.

        Raises:
            GateError: ``VIDC-CALIBRATION-ZERO``, as ``require_heads``.
            UsageError: as ``read_calibration``.
        """
        if self._trials is None:
            started = time.perf_counter()
            self._trials = self._made(workspace.inputs)
            seconds = time.perf_counter() - started
            workspace.note(f"rollouts in high precision: {seconds:.1f} s")
        return self._trials

    def _made(self, folders: Mapping[str, Path]) -> Trials:
        model, device, precision = self.model, self.device, self.settings.precision
        ranges = read_calibration(folders[calibrate_name(model)], model)
        require_heads(self.formats.attention, ranges)
        loaded = {group: folders[f"load:{group}"] for group in self.groups}
        embeddings = pairs(prompt_embeddings(model, precision, self.prompts, loaded, device))
        weights = {
            group: folder / weights_path(group)
            for group, folder in loaded.items()
            if group != model.text_group
        }
        engines = eager_engines(model, weights, precision, device)
        if not self.decoded:
            engines = undecoded(model, engines)
        network = quantized_network(engines, model)
        decoders = program_spec(model).decode_components
        inputs = [
            rollout_inputs(model, self.seed, index, pair).to(device)
            for index, pair in enumerate(embeddings)
        ]
        return Trials(
            model,
            {name: engines[name] for name in decoders if name in engines},
            QuantizedLayers(model.quantized_part, network, self.formats, ranges),
            inputs,
        )


@dataclass(frozen=True)
class Sensitivity(Stage):
    """Stage ``sensitivity:<pattern>``: the damage that one group of layers does in 8 bits."""

    subject: Subject
    group: LayerGroup

    @property
    def name(self) -> str:
        """``sensitivity:`` and the group's pattern of layer names."""
        return sensitivity_name(self.group)

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The inputs of the analysis."""
        return self.subject.inputs

    def key(self) -> Key:
        """Returns the key of the rollouts; predicted times and the budget are not part of it."""
        return self.subject.key(self.group.layers)

    def run(self, workspace: Workspace) -> None:
        """Measures rollouts with only this group in 8 bits.

        Raises:
            UnavailableError: ``VIDC-GPU-MEMORY``, ``VIDC-GPU-LOST``.
            VidcError: as ``Subject.trials``.
        """
        with gpu_faults(self.subject.device):
            damage = self.subject.trials(workspace).damage(self.group.layers)
        _write(workspace, {"sqnr_db": damage.sqnr_db.hex(), "psnr_db": damage.psnr_db.hex()})

    @staticmethod
    def read(output: Path) -> Damage:
        """Reads the figures that ``run`` wrote, exactly."""
        found = _read(output)
        return Damage(float.fromhex(found["sqnr_db"]), float.fromhex(found["psnr_db"]))


@dataclass(frozen=True)
class ChooseMix(Stage):
    """Stage ``mix``: chooses the groups that a budget allows in 8 bits and measures them together.

    Attributes:
        subject: model and rollouts of the analysis.
        budget: budget of the mix.
        saved: predicted seconds that each group saves per block.
        seconds: predicted seconds of a block in high precision.
    """

    name = "mix"

    subject: Subject
    budget: Budget
    saved: Mapping[LayerGroup, float]
    seconds: float

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The inputs of the analysis, and the figures of every group."""
        measured = (Input(sensitivity_name(group), (FIGURES,)) for group in self.saved)
        return (*self.subject.inputs, *measured)

    def key(self) -> Key:
        """Returns the key of the rollouts, the budget and the predicted times."""
        saved = {group.pattern: seconds for group, seconds in self.saved.items()}
        return self.subject.key(
            layers_of(self.saved),
            budget=asdict(self.budget),
            saved=dict(saved),
            seconds=self.seconds,
        )

    def run(self, workspace: Workspace) -> None:
        """Chooses the mix; measures candidates in rollouts.

        Raises:
            UsageError: ``VIDC-BUDGET-UNREACHABLE``.
            UnavailableError: ``VIDC-GPU-MEMORY``, ``VIDC-GPU-LOST``.
            VidcError: as ``Subject.trials``.
        """

        def measure(mixed: Sequence[Scored]) -> float:
            layers = layers_of([each.group for each in mixed])
            return self.subject.trials(workspace).psnr(layers)

        scored = score(self.saved, workspace.inputs)
        with gpu_faults(self.subject.device):
            choice = choose(self.budget, scored, self.seconds, measure)
        chosen: list[Json] = [each.group.pattern for each in choice.groups]
        _write(workspace, {"quantized": chosen, "psnr_db": choice.psnr_db.hex()})

    @staticmethod
    def read(output: Path, scored: Sequence[Scored]) -> Choice:
        """Reads the choice that ``run`` wrote, with the groups in the order of ``scored``."""
        found = _read(output)
        chosen = tuple(each for each in scored if each.group.pattern in found["quantized"])
        return Choice(chosen, float.fromhex(found["psnr_db"]))


def score(saved: Mapping[LayerGroup, float], outputs: Mapping[str, Path]) -> tuple[Scored, ...]:
    """Returns groups with their figures, the most damaging first.

    Args:
        saved: predicted seconds that each group saves per block.
        outputs: output folders of the stages by name.
    """
    found = []
    for group, seconds in saved.items():
        damage = Sensitivity.read(outputs[sensitivity_name(group)])
        found.append(Scored(group, damage.sqnr_db, damage.psnr_db, seconds))
    return tuple(by_damage(found))


def sensitivity_name(group: LayerGroup) -> str:
    """Returns the name of the stage that measures a group."""
    return f"sensitivity:{group.pattern}"


def _write(workspace: Workspace, figures: Mapping[str, Json]) -> None:
    (workspace.output / FIGURES).write_text(json.dumps(figures) + "\n")


def _read(output: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((output / FIGURES).read_text())
    return found
