"""Stage ``golden``: records what PyTorch eager computes with the bundle's weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from vidc.compiler.build.load import loaded_input
from vidc.compiler.config.program import model_modules
from vidc.compiler.store.digest import Json
from vidc.compiler.store.sources import versions
from vidc.compiler.store.stage import Input, Key, Stage, Workspace
from vidc.compiler.validate.scenario import Scenario
from vidc.exporters.families.family import Family
from vidc.plugins.names import TOKENIZER, weights_path


@dataclass(frozen=True)
class PlayGolden(Stage):
    """Writes ``golden/``: results in float32 and, unless that is the precision, in the model's own.

    The float32 results are the reference. The others show PyTorch's own error at the model's
    precisions, which the limits of some gates are multiples of.

    Attributes:
        model: model that runs.
        precisions: precision of each weights group.
        scenario: the blocks and the prompt switch.
        prompts: texts before and after the switch, for a model with a text encoder.
        device_type: where PyTorch runs, ``cpu`` or ``cuda``; TF32 is off.
        target: the GPU, as JSON; None for a CPU.
    """

    name = "golden"
    portable = False  # PyTorch runs on the target.

    model: Family
    precisions: Mapping[str, str]
    scenario: Scenario
    prompts: tuple[str, ...]
    device_type: str
    target: Json

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The weights of every group, and the tokenizer."""
        return tuple(map(loaded_input, self.model.parts.values()))

    @property
    def _narrow(self) -> tuple[str, ...]:
        """Weights groups in fp16 whose parts use fp16 instead of bf16 on a GPU."""
        return tuple(
            group
            for group, precision in self.precisions.items()
            if precision == self.model.parts[group].instead_of_bf16 == "fp16"
        )

    def key(self) -> Key:
        """Returns the key; prompts are part of it for a model with a text encoder."""
        parts, texts = self.model.parts.values(), self.model.texts
        libraries = [library for part in parts for library in part.libraries]
        return Key(
            (__name__, *model_modules(self.model)),
            {
                "model": self.model.to_json(),
                "precisions": dict(self.precisions),
                "scenario": self.scenario.to_json(),
                "prompts": list(self.prompts) if texts else [],
            },
            tools=partial(versions, "torch", *libraries, *(["ftfy"] if texts else [])),
            target=self.target,
        )

    def run(self, workspace: Workspace) -> None:
        """Runs the scenario in PyTorch.

        Raises:
            UnavailableError: ``VIDC-GPU-MEMORY``, ``VIDC-GPU-LOST``.
            GateError: ``VIDC-BUILD-HEADROOM``, activations come near the largest value of fp16.
        """
        import torch

        from vidc.compiler.validate.golden import Golden
        from vidc.compiler.validate.reference import eager_engines, play_eager, play_in_float32
        from vidc.runtime.allocator import growing_segments
        from vidc.runtime.faults import gpu_faults

        folders = {group: workspace.inputs[f"load:{group}"] for group in self.precisions}
        weights = {group: folder / weights_path(group) for group, folder in folders.items()}
        tokenizer = None
        if self.model.texts:
            tokenizer = folders[str(self.model.text_group)] / TOKENIZER
        device, eager, rollout = torch.device(self.device_type), None, None
        exact = torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
        with exact, growing_segments(), gpu_faults(device):
            # The float32 engines are freed before the next ones are made.
            inputs, reference, activations = play_in_float32(
                self.model, weights, tokenizer, self.scenario, self.prompts, device, self._narrow
            )
            if set(self.precisions.values()) != {"fp32"}:
                engines = eager_engines(self.model, weights, self.precisions, device)
                eager, rollout = play_eager(self.model, engines, self.scenario, inputs, reference)
        golden = Golden(self.scenario, inputs, reference, eager, rollout, activations)
        golden.save(workspace.output)

    def notes(self, output: Path) -> list[str]:
        """Returns the largest activations of groups that are in fp16 on a GPU."""
        if not self._narrow:
            return []
        from vidc.compiler.validate.golden import read_activations  # Imports the runtime.

        return [
            f"{group}: the largest activation is {found}"
            for group, found in read_activations(output).items()
        ]
