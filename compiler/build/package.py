"""Packaging: assembles a bundle beside its place, validates it there, and puts it in place."""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from vidc.compiler.build.calibrate_stage import CALIBRATE, is_calibrated
from vidc.compiler.build.compile_run import ENGINE_NAME, read_engine, read_notes
from vidc.compiler.build.golden_stage import golden_stage_name
from vidc.compiler.build.load_run import SOURCE_NAME, read_source
from vidc.compiler.build.quantize_stage import weights_stage_name
from vidc.compiler.config.resolve import Settings
from vidc.compiler.config.stream import stream_spec
from vidc.compiler.quantize.document import DOCUMENT, TENSORS
from vidc.compiler.store.digest import Json, sha256_tree
from vidc.compiler.store.publish import Kind, replacing
from vidc.compiler.store.run import Result
from vidc.compiler.store.sources import source_digest
from vidc.compiler.store.stage import Outputs
from vidc.compiler.store.versions import versions
from vidc.compiler.validate.check import Validation, validate
from vidc.compiler.validate.golden import Golden
from vidc.exporters.components import component_groups, weights_groups
from vidc.exporters.config import ModelConfig
from vidc.plugins.abi import PLUGIN_ABI
from vidc.plugins.errors import GateError, VidcError
from vidc.plugins.names import weights_path
from vidc.plugins.signature import Signature
from vidc.runtime import engines, manifest
from vidc.runtime.bundle import load
from vidc.runtime.integrity import file_entry, verify
from vidc.runtime.strict import read

REPORT = "report.html"
PACKAGE = "package"
BUNDLE = Kind(manifest.MANIFEST_NAME, lambda document: document["files"])


def parts(settings: Settings) -> tuple[str, ...]:
    """The stages whose outputs a bundle is made of."""
    return (
        *(weights_stage_name(settings, group) for group in weights_groups(settings.model)),
        *(f"compile:{name}" for name in component_groups(settings.model)),
        golden_stage_name(settings),
        *([CALIBRATE] if is_calibrated(settings) else []),
    )


def key_components(settings: Settings, outputs: Outputs) -> dict[str, Json]:
    """All that a bundle depends on: what it is made of, and how it is judged.

    Args:
        settings: of the build.
        outputs: of finished stages; parts that are not among them are left out.
    """
    known = [part for part in parts(settings) if part in outputs]
    loaders = (f"{engines.__name__}.{module.name}" for module in iter_modules(engines.__path__))
    return {
        "stage": PACKAGE,
        "config": settings.to_json(),
        "inputs": {part: sha256_tree(outputs[part]) for part in known},
        "files": {
            "thresholds": _resource_digest("vidc.configs", "thresholds.toml"),
            "report": _resource_digest("vidc.compiler.validate", "report.html.j2"),
            "page": _resource_digest("vidc.compiler.report", "base.html.j2"),
        },
        "sources": source_digest(("vidc.compiler.build.package", *loaders)),
        "tools": _tools(),
    }


def published(output: Path, key: str) -> bool:
    """Whether ``output`` is the bundle of this key, whole."""
    try:
        document = manifest.read_manifest(output)
        verify(output, document, "fast")
    except VidcError:
        return False
    return document.stages.get(PACKAGE) == key


def engine_notes(config: ModelConfig, results: Mapping[str, Result]) -> list[str]:
    """What backends noted of a build's engines; a line that several share names them all."""
    noted: dict[str, list[str]] = {}
    for component in component_groups(config):
        for text in read_notes(results[f"compile:{component}"].path):
            noted.setdefault(text, []).append(component)
    return [f"{', '.join(components)}: {text}" for text, components in noted.items()]


def package(
    settings: Settings,
    results: Mapping[str, Result],
    keys: Mapping[str, str],
    output: Path,
    note: Callable[[str], None],
) -> None:
    """Makes the bundle at ``output``; what was there stays until the new one is validated.

    Args:
        settings: of the build.
        results: of its stages.
        keys: of its stages and of the bundle.
        output: the bundle's folder.
        note: shows a line of progress.

    Raises:
        GateError: ``VIDC-VALIDATE-FAILED``; the report is left beside ``output``.
        BuildError: ``VIDC-BUILD-DISK``, ``VIDC-BUILD-STAGE``.
        UsageError: ``VIDC-BUILD-OUTPUT``, something that is no bundle is in the way.
    """
    BUNDLE.refuse_occupied(output)
    with replacing(output, PACKAGE) as staging:
        entries = _assemble(settings, results, staging)
        document = _manifest(settings, results, keys, entries)
        manifest.write_manifest(document, staging)
        note("validating")
        bundle = load(staging, verify="off")
        validation = validate(document, bundle, Golden.load(staging))
        report = validation.html()
        if not validation.passed:
            beside = output.with_name(f"{output.name}.{REPORT}")
            beside.write_text(report, encoding="utf-8")
            raise _failed(validation, beside)
        (staging / REPORT).write_text(report, encoding="utf-8")
        working = bundle.working_bytes()
        manifest.write_manifest(_validated(document, validation, working, staging), staging)


def _assemble(
    settings: Settings, results: Mapping[str, Result], staging: Path
) -> dict[str, manifest.FileEntry]:
    """Copies the parts; gives the sizes and digests that the store recorded of their files."""
    entries = {}
    for part in parts(settings):
        for name, file in results[part].files.items():
            if name in (SOURCE_NAME, ENGINE_NAME, DOCUMENT, TENSORS):
                continue
            copy = staging / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(results[part].path / name, copy)
            entries[name] = manifest.FileEntry(file.size, file.sha256)
    return dict(sorted(entries.items()))


def _manifest(
    settings: Settings,
    results: Mapping[str, Result],
    keys: Mapping[str, str],
    entries: dict[str, manifest.FileEntry],
) -> manifest.Manifest:
    described = {}
    for name, group in component_groups(settings.model).items():
        engine = read_engine(results[f"compile:{name}"].path)
        described[name] = manifest.Engine(
            backend=engine["backend"],
            loader=engine["loader"],
            version=engine["version"],
            precision=settings.named_precision(group),
            files=tuple(engine["files"]),
            signature=Signature.from_json(engine["signature"]),
            options=engine["options"],
            requires=read(engine["requires"], manifest.Requirements, f"{name}.requires"),
        )
    target = settings.target
    groups = weights_groups(settings.model)
    precisions = sorted({settings.named_precision(group) for group in groups})
    return manifest.Manifest(
        name="-".join([settings.preset, target.name, *precisions]),
        preset=settings.preset,
        family=settings.family,
        config=settings.to_json(),
        stream=stream_spec(settings.model),
        target=manifest.Target(
            name=target.name,
            compute_capability=target.compute_capability,
            memory_bytes=(target.memory_gb or 0) * 10**9,
        ),
        engines=described,
        weights={
            group: manifest.Weights(weights_path(group), read_source(results[f"load:{group}"].path))
            for group in groups
        },
        files=entries,
        plugin_abi=PLUGIN_ABI,
        calibration=_calibration(settings, results),
        tools=_tools(),
        validation=manifest.Validation(
            passed=False, gates=0, report=None, level="none", working_bytes=0
        ),
        stages=dict(keys),
    )


def _calibration(settings: Settings, results: Mapping[str, Result]) -> dict[str, Any] | None:
    """What ``vidc calibrate`` says of the ranges that were used, by its own document."""
    if not is_calibrated(settings):
        return None
    found: dict[str, Any] = json.loads((results[CALIBRATE].path / DOCUMENT).read_text())
    return found


def _tools() -> dict[str, str]:
    return versions("vidc", "torch", "numpy", "safetensors")


def _resource_digest(package: str, name: str) -> str:
    return hashlib.sha256(files(package).joinpath(name).read_bytes()).hexdigest()


def _validated(
    document: manifest.Manifest, validation: Validation, working_bytes: int, staging: Path
) -> manifest.Manifest:
    report = {REPORT: file_entry(staging / REPORT)}
    return manifest.Manifest(
        **vars(document)
        | {
            "files": dict(sorted((document.files | report).items())),
            "validation": manifest.Validation(
                passed=True,
                gates=len(validation.comparison.gates),
                report=REPORT,
                level=validation.level,
                working_bytes=working_bytes,
            ),
        }
    )


def _failed(validation: Validation, report: Path) -> GateError:
    failed = [gate for gate in validation.comparison.gates if not gate.passed]
    shown = "; ".join(
        f"{gate.component}{'' if gate.block is None else f' block {gate.block}'}: "
        f"{gate.metric} {'not measured' if gate.value is None else f'{gate.value:.3g}'}, "
        f"threshold {gate.threshold:g}"
        for gate in failed[:4]
    )
    return GateError(
        "VIDC-VALIDATE-FAILED",
        f"{len(failed)} of {len(validation.comparison.gates)} gates failed: {shown}",
        f"open {report}; no bundle was published",
    )
