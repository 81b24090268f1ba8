"""Step ``package``: assembles a bundle from the stages' results and validates it.

Both happen in a staging folder, which is published only if the validation passes.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from vidc.compiler.build.compile import ENGINE_NAME, read_engine, read_notes
from vidc.compiler.build.load import SOURCE_NAME, read_source
from vidc.compiler.config.program import model_modules, program_spec
from vidc.compiler.config.resolve import Settings
from vidc.compiler.quantize.document import DOCUMENT, TENSORS
from vidc.compiler.store.digest import DigestMemory
from vidc.compiler.store.publish import Finished, Kind, Publication, Publishing
from vidc.compiler.store.record import File
from vidc.compiler.store.run import Result
from vidc.compiler.store.sources import versions
from vidc.compiler.store.stage import Input, Key
from vidc.plugins.abi import PLUGIN_ABI
from vidc.plugins.errors import GateError, VidcError
from vidc.plugins.names import weights_path
from vidc.plugins.signature import Signature
from vidc.runtime import manifest
from vidc.runtime.integrity import compare_names, file_entry
from vidc.runtime.record import RECORD_NAME, Record
from vidc.runtime.strict import read

if TYPE_CHECKING:
    from vidc.compiler.validate.check import Validation

REPORT = "report.html"
PACKAGE = "package"
LOADERS = "vidc.runtime.engines"
BUNDLE = Kind(manifest.MANIFEST_NAME, lambda document: document["files"])


@dataclass(frozen=True)
class Package(Publication):
    """Assembles a bundle in a staging folder and validates it there.

    Attributes:
        settings: settings of the build.
        weights: stage that wrote each group's weights for the engines.
        golden: stage that wrote the golden data.
        calibration: stage that provides the ranges; None if the recipe needs none.
    """

    name = PACKAGE
    kind = BUNDLE

    settings: Settings
    weights: Mapping[str, str]
    golden: str
    calibration: str | None

    @property
    def parts(self) -> tuple[str, ...]:
        """The stages whose files are copied."""
        compiled = (f"compile:{name}" for name in self.settings.model.components)
        ranges = () if self.calibration is None else (self.calibration,)
        return (*self.weights.values(), *compiled, self.golden, *ranges)

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The copied stages, and ``source.json`` of quantized groups, for the manifest."""
        quantized = [g for g, stage in self.weights.items() if stage != f"load:{g}"]
        sources = (Input(f"load:{group}", (SOURCE_NAME,)) for group in quantized)
        return (*(Input(part) for part in self.parts), *sources)

    def key(self) -> Key:
        """Returns the key: all settings, and the files that decide gates and report."""
        package = find_spec(LOADERS)  # Finds the package without importing it.
        assert package is not None
        loaders = iter_modules(package.submodule_search_locations)
        return Key(
            (
                __name__,
                *model_modules(self.settings.model),
                *(f"{LOADERS}.{loader.name}" for loader in loaders),
            ),
            self.settings.to_json(),
            {
                "thresholds": _resource("vidc.configs", "thresholds.toml"),
                "report": _resource("vidc.compiler.validate", "report.html.j2"),
                "page": _resource("vidc.compiler.report", "base.html.j2"),
            },
            _tools,
        )

    def notes(self, results: Mapping[str, Result]) -> list[str]:
        """Returns the backends' notes, each with the components that share it."""
        noted: dict[str, list[str]] = {}
        for component in self.settings.model.components:
            for text in read_notes(results[f"compile:{component}"].path):
                noted.setdefault(text, []).append(component)
        return [f"{', '.join(components)}: {text}" for text, components in noted.items()]

    def published(
        self, folder: Path, key: str, results: Mapping[str, Finished], digests: DigestMemory
    ) -> bool:
        """Returns True if the folder is the bundle of this key, and no file is damaged."""
        try:
            document = manifest.read_manifest(folder)
            compare_names(folder, manifest.MANIFEST_NAME, document.files)
        except VidcError:
            return False
        files = {path: entry.sha256 for path, entry in document.files.items()}
        return document.stages.get(PACKAGE) == key and digests.match(folder, files)

    def run(self, workspace: Publishing) -> None:
        """Writes the bundle and validates it.

        Raises:
            GateError: ``VIDC-VALIDATE-FAILED``; the report stays beside the bundle's path.
        """
        staging = workspace.output
        document = self._manifest(workspace, self._assemble(workspace))
        manifest.write_manifest(document, staging)
        workspace.note("validating")
        passed = workspace.call(PACKAGE, validate_staged, staging, workspace.place)
        manifest.write_manifest(_validated(document, passed, staging), staging)

    def _assemble(self, workspace: Publishing) -> dict[str, manifest.BundleFile]:
        """Copies the files of the stages; returns their sizes and digests as the store has them."""
        entries = {}
        for part in self.parts:
            result = workspace.results[part]
            for name, file in result.files.items():
                if name in (SOURCE_NAME, ENGINE_NAME, DOCUMENT, TENSORS):
                    continue
                copy = workspace.output / name
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(result.path / name, copy)
                entries[name] = _entry(copy, file)
        return dict(sorted(entries.items()))

    def _manifest(
        self, workspace: Publishing, entries: dict[str, manifest.BundleFile]
    ) -> manifest.Manifest:
        settings, results = self.settings, workspace.results
        groups = settings.model.components
        described = {
            name: _engine(results[f"compile:{name}"].path, name, settings.named_precision(group))
            for name, group in groups.items()
        }
        target = settings.target
        precisions = sorted({settings.named_precision(group) for group in self.weights})
        return manifest.Manifest(
            name="-".join([settings.preset, target.name, *precisions]),
            preset=settings.preset,
            family=settings.family,
            program=settings.model.program,
            spec=program_spec(settings.model),
            config=settings.to_json(),
            target=manifest.Target(
                name=target.name,
                compute_capability=target.compute_capability,
                memory_bytes=(target.memory_gb or 0) * 10**9,
            ),
            engines=described,
            weights={
                group: manifest.Weights(
                    weights_path(group), read_source(results[f"load:{group}"].path)
                )
                for group in self.weights
            },
            files=entries,
            plugin_abi=PLUGIN_ABI,
            calibration=self._calibration(results),
            tools=_tools(),
            validation=manifest.Validation(
                passed=False, gates=0, report=None, level="none", working_bytes=0
            ),
            stages=dict(workspace.keys),
        )

    def _calibration(self, results: Mapping[str, Result]) -> dict[str, Any] | None:
        """Returns the document of the calibration; None if the recipe needs no ranges."""
        if self.calibration is None:
            return None
        found: dict[str, Any] = json.loads((results[self.calibration].path / DOCUMENT).read_text())
        return found


def _entry(copy: Path, recorded: File) -> manifest.BundleFile:
    """Returns a file's size and digest as the store recorded them, and chunk digests if large.

    Raises:
        GateError: ``VIDC-BUNDLE-ALTERED``, a large file's copy differs from the record.
    """
    if recorded.size <= manifest.CHUNK_BYTES:
        return manifest.BundleFile(recorded.size, recorded.sha256, ())
    found = file_entry(copy)
    if (found.size, found.sha256) != (recorded.size, recorded.sha256):
        raise GateError(
            "VIDC-BUNDLE-ALTERED",
            f"{copy} has SHA-256 {found.sha256}, the cache recorded {recorded.sha256}",
            "check the disk and what `vidc cache verify` says, then build again",
        )
    return found


def _engine(folder: Path, component: str, precision: str) -> manifest.Engine:
    engine = read_engine(folder)
    return manifest.Engine(
        backend=engine["backend"],
        loader=engine["loader"],
        version=engine["version"],
        precision=precision,
        files=tuple(engine["files"]),
        signature=Signature.from_json(engine["signature"]),
        options=engine["options"],
        requires=read(engine["requires"], manifest.Requirements, f"{component}.requires"),
    )


def _tools() -> dict[str, str]:
    return versions("vidc", "torch", "numpy", "safetensors")


def _resource(package: str, name: str) -> Path:
    return Path(str(files(package).joinpath(name)))


def validate_staged(staging: Path, place: Path) -> manifest.Validation:
    """Validates the bundle in a staging folder and writes its report.

    Args:
        staging: folder of the bundle.
        place: path where the bundle will be published; the report of a failed validation is
            written beside it.

    Raises:
        GateError: ``VIDC-VALIDATE-FAILED``.
    """
    from vidc.compiler.validate.check import validate
    from vidc.compiler.validate.golden import Golden
    from vidc.runtime.bundle import load

    with load(staging, verify="off") as bundle:
        validation = validate(manifest.read_manifest(staging), bundle, Golden.load(staging))
        if not validation.passed:
            report = place.with_name(f"{place.name}.{REPORT}")
            report.write_text(validation.html(), encoding="utf-8")
            raise _failed(validation, report)
        (staging / REPORT).write_text(validation.html(), encoding="utf-8")
        return manifest.Validation(
            passed=True,
            gates=len(validation.comparison.gates),
            report=REPORT,
            level=validation.level,
            working_bytes=bundle.working_bytes(),
        )


def _validated(
    document: manifest.Manifest, passed: manifest.Validation, staging: Path
) -> manifest.Manifest:
    """Adds the report and the passed validation to the manifest; writes the bundle's record."""
    files = {**document.files, REPORT: file_entry(staging / REPORT)}
    document = replace(document, files=files, validation=passed)
    Record.of(document).write(staging)
    files[RECORD_NAME] = file_entry(staging / RECORD_NAME)
    return replace(document, files=dict(sorted(files.items())))


def _failed(validation: "Validation", report: Path) -> GateError:
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
