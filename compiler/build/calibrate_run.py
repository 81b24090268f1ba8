"""Stage ``calibrate:transformer``: the ranges that static scales come from."""

from pathlib import Path

import torch

from vidc.compiler.build.calibration_recording import Recording, loaded_groups
from vidc.compiler.quantize.document import DOCUMENT, TENSORS
from vidc.compiler.store.stage import Workspace
from vidc.runtime.allocator import growing_segments
from vidc.runtime.faults import gpu_faults

KEPT = "calibrate"
"""The folder of unfinished recordings in ``Workspace.kept``."""


def run(workspace: Workspace, source: Recording | Path) -> None:
    """Writes both files of a calibration.

    Args:
        workspace: where to, and the weights that a recording runs.
        source: what to record, or the folder of a finished calibration.

    Raises:
        GateError: ``VIDC-CALIBRATION-NONFINITE``, ``VIDC-CALIBRATION-ZERO``.
        UnavailableError: ``VIDC-GPU-MEMORY``, ``VIDC-GPU-LOST``.
    """
    if isinstance(source, Path):
        for file in (DOCUMENT, TENSORS):
            (workspace.output / file).write_bytes((source / file).read_bytes())
        return
    folders = {g: workspace.inputs[f"load:{g}"] for g in loaded_groups(source.prompts)}
    assert workspace.kept is not None
    with growing_segments(), gpu_faults(torch.device(source.device_type)):
        source.write(folders, workspace.output, workspace.kept / KEPT, workspace.note)
