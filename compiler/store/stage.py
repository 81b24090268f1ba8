"""Stages of a build, and the keys of their results."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vidc.compiler.store.digest import DigestMemory, Json, sha256_tree
from vidc.compiler.store.sources import source_digest
from vidc.plugins.errors import BuildError


@dataclass(frozen=True)
class Input:
    """An earlier stage whose output is read: the named files, or all of them if None."""

    stage: str
    files: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Workspace:
    """Folders of a running stage.

    Attributes:
        output: an empty folder for its files; regular files only, no links.
        inputs: read-only output folder of each consumed stage, by stage name. A stage reads only
            files that its ``Input`` names, since its key depends only on these.
        note: shows a line of progress.
        kept: a cache folder that outlives builds; no key depends on it, and it may disappear at
            any time. None without one.
    """

    output: Path
    inputs: Mapping[str, Path]
    note: Callable[[str], None]
    kept: Path | None = None


@dataclass(frozen=True)
class Key:
    """Dependencies of a result besides the outputs of earlier stages.

    Attributes:
        entries: names of the modules that run. Their imports are found by ``source_digest``; a
            module that is imported by a computed name, such as a backend, is an entry itself.
        config: the resolved settings of the stage.
        files: files and folders outside the store, by label.
        tools: returns the versions of its tools by name; none by default. Called only to plan or
            run the stage, so checking a key does not need the tools.
        target: the device that the result is for, as JSON; None if it is valid on all.
    """

    entries: tuple[str, ...]
    config: Json = None
    files: Mapping[str, Path] = field(default_factory=dict)
    tools: Callable[[], Mapping[str, str]] = dict
    target: Json = None


class Step(ABC):
    """A part of a build with a name, inputs and a key."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Its name, such as ``golden:quantized``."""

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The consumed earlier stages, each once."""
        return ()

    @abstractmethod
    def key(self) -> Key:
        """Returns the dependencies of its result besides the inputs."""


@dataclass(frozen=True)
class Stage(Step):
    """A pure step with its result in the store. Picklable for worker processes.

    Attributes:
        device_bytes: estimate of the target's memory while it runs. It affects only scheduling and
            is not part of the key.
    """

    device_bytes: int = field(default=0, kw_only=True)

    @property
    def portable(self) -> bool:
        """True if any machine can run it and its result is valid on every other."""
        return True

    @abstractmethod
    def run(self, workspace: Workspace) -> None:
        """Writes the output."""

    def notes(self, output: Path) -> list[str]:
        """Returns lines for the user about a result, also if the store had it."""
        return []


Outputs = Mapping[str, Mapping[str, str]]
"""Digests of the files of finished stages, by stage and relative path."""


def key_components(step: Step, outputs: Outputs, digests: DigestMemory) -> dict[str, Json]:
    """Returns the components of a result's key; the key is their digest.

    They contain digests of consumed outputs, not keys of earlier stages: a rerun with the same
    output changes no later key. Inputs that are not in ``outputs`` are omitted.

    Raises:
        BuildError: ``VIDC-BUILD-INPUT``, a file outside the store cannot be read.
        ValueError: an input names a file that its stage did not write.
        VidcError: as raised by ``Step.key``.
    """
    key = step.key()
    known = [i for i in step.inputs if i.stage in outputs]
    return {
        "stage": step.name,
        "config": key.config,
        "inputs": {i.stage: _consumed(step, i, outputs[i.stage]) for i in known},
        "files": {label: _outside(step, path, digests) for label, path in key.files.items()},
        "sources": source_digest(key.entries),
        "tools": dict(key.tools()),
        "target": key.target,
    }


def check_order(stages: Sequence[Stage]) -> None:
    """Raises ValueError unless stages are in topological order with unique names."""
    seen: set[str] = set()
    for stage in stages:
        if stage.name in seen:
            raise ValueError(f"two stages are named {stage.name!r}")
        consumed = [i.stage for i in stage.inputs]
        for name in consumed:
            if name not in seen:
                raise ValueError(
                    f"stage {stage.name!r} consumes {name!r}, which does not come before it"
                )
        if len(set(consumed)) != len(consumed):
            raise ValueError(f"stage {stage.name!r} consumes a stage twice")
        seen.add(stage.name)


def _consumed(step: Step, consumed: Input, output: Mapping[str, str]) -> str:
    if consumed.files is None:
        return sha256_tree(output)
    missing = sorted(set(consumed.files) - set(output))
    if missing:
        raise ValueError(
            f"stage {step.name!r} consumes {missing} of {consumed.stage!r}, which wrote "
            f"{sorted(output)}"
        )
    return sha256_tree({name: output[name] for name in consumed.files})


def _outside(step: Step, path: Path, digests: DigestMemory) -> str:
    try:
        return digests.path(path)
    except (OSError, ValueError) as error:
        raise BuildError(
            "VIDC-BUILD-INPUT",
            f"stage {step.name}: cannot read {path}: {error}",
            "check that the path exists and that you may read it",
        ) from error
