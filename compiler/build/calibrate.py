"""Stage ``calibrate:transformer``: the ranges that static scales come from."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from vidc.compiler.build.groups import LIBRARIES, group_sizes, labeled, weights_files
from vidc.compiler.build.load import SOURCE_NAME
from vidc.compiler.quantize.document import DOCUMENT, TENSORS
from vidc.compiler.store.digest import Json
from vidc.compiler.store.stage import Input, Key, Stage, Workspace
from vidc.compiler.store.versions import versions
from vidc.exporters.config import ModelConfig

if TYPE_CHECKING:
    from vidc.compiler.build.calibration_recording import Recording

CALIBRATE = "calibrate:transformer"
UNFINISHED = "calibrate"
"""The folder of unfinished recordings in ``Workspace.kept``."""


@dataclass(frozen=True)
class Calibrate(Stage):
    """Writes both files of a calibration.

    Attributes:
        model: sizes of all its networks.
        source: what to record, or the folder of a finished calibration; None where another
            machine ran the stage: such a stage has the rest of its key and does not run.
    """

    model: ModelConfig
    source: "Recording | Path | None"

    @property
    def name(self) -> str:
        """``calibrate:transformer``."""
        return CALIBRATE

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The weights that a recording plays, and where those of the transformer came from."""
        if self.source is None or isinstance(self.source, Path):
            return ()
        return tuple(Input(f"load:{group}", _loaded(group)) for group in self.source.precisions)

    def key(self) -> Key:
        """Returns the key: the files of a finished calibration, or all that a recording plays."""
        from vidc.compiler.quantize.artifact import model_tables

        source, config = self.source, {"model": model_tables(self.model)}
        if source is None:
            return Key((__name__,), config)
        if isinstance(source, Path):
            files = labeled("calibration", [source / DOCUMENT, source / TENSORS])
            return Key((__name__,), config, files, partial(versions, "torch"))
        libraries = [library for group in source.precisions for library in LIBRARIES[group]]
        texts = ["ftfy"] if source.prompts.texts else []
        recorded: dict[str, Json] = {
            "sizes": {group: group_sizes(self.model, group) for group in source.precisions},
            "precisions": dict(source.precisions),
            "prompts": {
                "kind": source.prompts.kind,
                "count": len(source.prompts),
                "sha256": source.prompts.sha256,
            },
            "seed": source.seed,
            "device": source.device_type,
        }
        return Key(
            (__name__,),
            {**config, **recorded},
            tools=lambda: {**source.versions, **versions(*libraries, *texts)},
        )

    def run(self, workspace: Workspace) -> None:
        """Records the ranges, or copies them.

        Raises:
            GateError: ``VIDC-CALIBRATION-NONFINITE``, ``VIDC-CALIBRATION-ZERO``.
            UnavailableError: ``VIDC-GPU-MEMORY``, ``VIDC-GPU-LOST``.
        """
        import torch

        from vidc.compiler.build.calibration_recording import Recording
        from vidc.runtime.allocator import growing_segments
        from vidc.runtime.faults import gpu_faults

        source = self.source
        if isinstance(source, Path):
            for file in (DOCUMENT, TENSORS):
                (workspace.output / file).write_bytes((source / file).read_bytes())
            return
        assert isinstance(source, Recording)
        assert workspace.kept is not None
        folders = {group: workspace.inputs[f"load:{group}"] for group in source.precisions}
        with growing_segments(), gpu_faults(torch.device(source.device_type)):
            source.write(folders, workspace.output, workspace.kept / UNFINISHED, workspace.note)


def _loaded(group: str) -> tuple[str, ...]:
    """Returns the files of stage ``load`` that a recording reads."""
    source = (SOURCE_NAME,) if group == "transformer" else ()
    return (*weights_files(group), *source)
