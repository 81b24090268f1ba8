"""Exports a model's components to a folder, for use without vidc's engines and runtime."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vidc.compiler.build.export import Export
from vidc.compiler.build.load import Load
from vidc.compiler.build.sources import Sources
from vidc.compiler.build.stages import WORKERS, export_stage, load_stage, slot
from vidc.compiler.config.resolve import Settings
from vidc.compiler.store.publish import exclusive, replacing
from vidc.compiler.store.run import Progress, Result, run, working
from vidc.compiler.store.store import Store
from vidc.exporters.artifact import ExportedComponent
from vidc.plugins.errors import UsageError, nearest
from vidc.plugins.names import weights_path


@dataclass(frozen=True)
class ExportedFiles:
    """Paths in the folder of one component's ONNX graph, program and weights."""

    component: str
    precision: str
    onnx: str
    program: str
    weights: str


@dataclass(frozen=True)
class Exported:
    """A finished export.

    Attributes:
        output: the folder.
        components: exported components.
        missing: weights files that the graphs refer to and that were not written, because no
            source of weights was given; paths in the folder.
    """

    output: Path
    components: tuple[ExportedFiles, ...]
    missing: tuple[str, ...]


def export_stages(
    settings: Settings, sources: Sources | None, components: Sequence[str]
) -> list[Load | Export]:
    """Returns the stages that export these components and, with sources, load their weights.

    Raises:
        UsageError: ``VIDC-EXPORT-COMPONENT``, the model has no component of such a name.
        VidcError: what ``load_stage`` raises.
    """
    groups = settings.model.components
    for name in components:
        if name not in groups:
            raise UsageError(
                "VIDC-EXPORT-COMPONENT",
                f"{settings.preset} has no component {name!r}",
                nearest(name, groups),
            )
    used = () if sources is None else dict.fromkeys(groups[name] for name in components)
    return [
        *(load_stage(settings, sources, group) for group in used),
        *(export_stage(settings, name) for name in components),
    ]


def refuse_occupied(output: Path) -> None:
    """Refuses an output that is not a new or empty folder.

    Raises:
        UsageError: ``VIDC-EXPORT-OUTPUT``.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UsageError(
            "VIDC-EXPORT-OUTPUT",
            f"{output} is there already and is not an empty folder",
            "choose another folder with -o, or remove it",
        )


def export(
    settings: Settings,
    sources: Sources | None,
    components: Sequence[str],
    output: Path,
    cache: Path,
    progress: Progress,
) -> Exported:
    """Writes ``<component>.onnx`` and ``<component>.pt2`` for each component, and the weights.

    The folder appears whole or not at all. Exports and builds share cached results.

    Args:
        settings: settings of the model.
        sources: sources of the weights; without them no weights are written.
        components: names, each once.
        output: a new or empty folder.
        cache: folder of the results of stages.
        progress: receives each stage.

    Raises:
        UsageError: ``VIDC-EXPORT-COMPONENT``, ``VIDC-EXPORT-OUTPUT``.
        BuildError: ``VIDC-BUILD-DISK``; what the stages and the store raise.
    """
    refuse_occupied(output)
    wanted = export_stages(settings, sources, components)
    output = output.absolute()
    with Store(cache) as store, working(store, WORKERS) as pool:
        results = run(wanted, store, slot(settings), progress, pool)
        with exclusive(store, output, progress.note), replacing(output, "export") as staging:
            for stage in wanted:
                _copy(stage, results[stage.name], staging)
    files = tuple(_files(settings, name) for name in components)
    needed = dict.fromkeys(item.weights for item in files)
    return Exported(output, files, tuple(path for path in needed if not (output / path).exists()))


def _copy(stage: Load | Export, result: Result, folder: Path) -> None:
    if isinstance(stage, Load):
        (folder / "weights").mkdir(exist_ok=True)
        path = weights_path(stage.part.group)
        shutil.copyfile(result.path / path, folder / path)
        return
    exported = ExportedComponent.open(result.path)
    for file in (exported.onnx, exported.program):
        shutil.copyfile(file, folder / file.name)


def _files(settings: Settings, component: str) -> ExportedFiles:
    group = settings.model.components[component]
    return ExportedFiles(
        component=component,
        precision=settings.precision[group],
        onnx=f"{component}.onnx",
        program=f"{component}.pt2",
        weights=weights_path(group),
    )
