"""Stage ``golden``: the outputs of PyTorch eager on the bundle's weights."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial

from vidc.compiler.build.groups import LIBRARIES, plain, weights_files
from vidc.compiler.store.digest import Json
from vidc.compiler.store.stage import Input, Key, Stage, Workspace
from vidc.compiler.store.versions import versions
from vidc.compiler.validate.scenario import Scenario
from vidc.exporters.config import ModelConfig
from vidc.plugins.names import TOKENIZER, weights_path


@dataclass(frozen=True)
class PlayGolden(Stage):
    """Writes ``golden/``: eager in float32 and, where they differ, in the model's precisions.

    Attributes:
        model: sizes of all its networks.
        precisions: of its weights groups.
        scenario: what is played.
        prompts: texts before and after its switch, for a model with a text encoder.
        device_type: where, ``cpu`` or ``cuda``; float32 is float32 there, not TF32.
        target: the GPU, as JSON; None for a CPU.
    """

    model: ModelConfig
    precisions: Mapping[str, str]
    scenario: Scenario
    prompts: tuple[str, ...]
    device_type: str
    target: Json

    @property
    def name(self) -> str:
        """``golden``."""
        return "golden"

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The weights of every group, and the tokenizer."""
        return tuple(Input(f"load:{group}", weights_files(group)) for group in self.precisions)

    @property
    def portable(self) -> bool:
        """False: PyTorch plays on the target."""
        return False

    def key(self) -> Key:
        """Returns the key; prompts are part of it for a model with a text encoder."""
        libraries = [library for group in self.precisions for library in LIBRARIES[group]]
        texts = "text_encoder" in self.precisions
        return Key(
            (__name__,),
            {
                "model": plain(asdict(self.model)),
                "precisions": dict(self.precisions),
                "scenario": self.scenario.to_json(),
                "prompts": list(self.prompts) if texts else [],
            },
            tools=partial(versions, "torch", *libraries, *(["ftfy"] if texts else [])),
            target=self.target,
        )

    def run(self, workspace: Workspace) -> None:
        """Plays the scenario.

        Raises:
            UnavailableError: ``VIDC-GPU-MEMORY``, ``VIDC-GPU-LOST``.
        """
        import torch

        from vidc.compiler.validate.golden import Golden
        from vidc.compiler.validate.reference import eager_engines, play_eager, play_in_float32
        from vidc.runtime.allocator import growing_segments
        from vidc.runtime.faults import gpu_faults

        folders = {group: workspace.inputs[f"load:{group}"] for group in self.precisions}
        weights = {group: folder / weights_path(group) for group, folder in folders.items()}
        texts = folders.get("text_encoder")
        tokenizer = None if texts is None else texts / TOKENIZER
        device, eager, rollout = torch.device(self.device_type), None, None
        exact = torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
        with exact, growing_segments(), gpu_faults(device):
            # The float32 engines are gone before the next ones are made.
            inputs, reference = play_in_float32(
                self.model, weights, tokenizer, self.scenario, self.prompts, device
            )
            if set(self.precisions.values()) != {"fp32"}:
                engines = eager_engines(self.model, weights, self.precisions, device)
                eager, rollout = play_eager(self.model, engines, self.scenario, inputs, reference)
        Golden(self.scenario, inputs, reference, eager, rollout).save(workspace.output)
