"""Stage ``calibrate:<group>``: the ranges that static scales come from."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from vidc.compiler.build.load import SOURCE_NAME, labeled, loaded_input
from vidc.compiler.config.program import model_modules
from vidc.compiler.quantize.document import DOCUMENT, TENSORS
from vidc.compiler.store.digest import Json
from vidc.compiler.store.stage import Input, Key, Stage, Workspace
from vidc.compiler.store.versions import versions
from vidc.exporters.families.family import Family

if TYPE_CHECKING:
    from vidc.compiler.build.calibration_recording import Recording

UNFINISHED = "calibrate"
"""The folder of unfinished recordings in ``Workspace.kept``."""


@dataclass(frozen=True)
class Calibrate(Stage):
    """Writes both files of a calibration.

    Attributes:
        model: model that is calibrated.
        source: recording to make, or folder of a finished calibration. None if another machine
            ran the stage: it then has only the rest of its key and does not run.
    """

    model: Family
    source: "Recording | Path | None"

    @property
    def name(self) -> str:
        """``calibrate:<group>``."""
        return calibrate_name(self.model)

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The weights that a recording plays, with the source of the quantized group's."""
        if self.source is None or isinstance(self.source, Path):
            return ()
        parts = (self.model.parts[group] for group in self.source.precisions)
        main = self.model.quantized_group
        return tuple(loaded_input(p, *([SOURCE_NAME] if p.group == main else [])) for p in parts)

    def key(self) -> Key:
        """Returns the key: files of a finished calibration, or all inputs of a recording."""
        from vidc.compiler.quantize.artifact import model_tables

        source, config = self.source, {"model": model_tables(self.model)}
        entries = (__name__, *model_modules(self.model))
        if source is None:
            return Key(entries, config)
        if isinstance(source, Path):
            files = labeled("calibration", [source / DOCUMENT, source / TENSORS])
            return Key(entries, config, files, partial(versions, "torch"))
        parts = [self.model.parts[group] for group in source.precisions]
        libraries = [library for part in parts for library in part.libraries]
        texts = ["ftfy"] if source.prompts.texts else []
        recorded: dict[str, Json] = {
            "sizes": {part.group: part.config.to_json() for part in parts},
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
            entries,
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


def calibrate_name(model: Family) -> str:
    """Returns the name of the stage that calibrates a model."""
    return f"calibrate:{model.quantized_group}"
