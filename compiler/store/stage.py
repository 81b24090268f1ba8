"""The protocol of a stage, and the components of the key of its result."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vidc.compiler.store.digest import DigestMemory, Json, sha256_tree
from vidc.compiler.store.sources import source_digest
from vidc.plugins.errors import BuildError


@dataclass(frozen=True)
class Input:
    """An earlier stage whose output is consumed: these files of it, or all."""

    stage: str
    files: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Workspace:
    """The folders that a running stage reads and writes.

    Attributes:
        output: an empty folder for its files; regular files only, no links.
        inputs: the output folder of each stage it consumes, by stage name, to be read only. What
            its ``Input`` does not name must not be read: its key does not depend on that.
        note: shows a line of progress.
        kept: a folder that outlives builds, for what makes later ones faster: no key depends on
            it, and it may be gone at any time. None where there is none.
    """

    output: Path
    inputs: Mapping[str, Path]
    note: Callable[[str], None]
    kept: Path | None = None


def no_tools() -> Mapping[str, str]:
    """No versions, for a stage whose result depends on vidc's own sources alone."""
    return {}


@dataclass(frozen=True)
class Key:
    """Everything a result depends on that is known before its inputs are.

    Attributes:
        entries: modules whose sources run, with all they import; one that is imported by a
            computed name, such as a backend, is an entry of its own.
        config: the resolved settings that reach the stage.
        files: files and folders from outside that it consumes, by label.
        tools: returns the versions of its tools by name. It is called only where the stage is
            planned or run: a machine that checks a key needs none of them.
        target: what it builds for.
    """

    entries: tuple[str, ...]
    config: Json = None
    files: Mapping[str, Path] = field(default_factory=dict)
    tools: Callable[[], Mapping[str, str]] = no_tools
    target: Json = None


class Step(ABC):
    """A part of a build that has a name, inputs and a key."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Its name, such as ``export:denoise``."""

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The earlier stages it consumes, each once."""
        return ()

    @abstractmethod
    def key(self) -> Key:
        """Returns what its result depends on, besides the inputs."""


@dataclass(frozen=True)
class Stage(Step):
    """A pure step whose result the store keeps. Worker processes get it pickled.

    Attributes:
        device_bytes: of the target's memory that it takes while it runs, an estimate. It decides
            when the stage runs and not what it makes: no part of the key.
    """

    device_bytes: int = field(default=0, kw_only=True)

    @property
    def portable(self) -> bool:
        """True if any machine can run it and its result is right on every other."""
        return True

    @abstractmethod
    def run(self, workspace: Workspace) -> None:
        """Writes the output."""


Outputs = Mapping[str, Mapping[str, str]]
"""Digests of the files of finished stages, by stage and relative path."""


def key_components(step: Step, outputs: Outputs, digests: DigestMemory) -> dict[str, Json]:
    """Returns all that a result depends on; the key is the digest of it.

    It holds digests of consumed outputs, not keys of earlier stages: a stage that ran again and
    gave the same output changes no key after it. Inputs that are not in ``outputs`` are left out.

    Raises:
        BuildError: ``VIDC-BUILD-INPUT``, an outside file cannot be read.
        ValueError: an input names a file that its stage did not write.
        VidcError: what ``Step.key`` raises.
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
    """Refuses, with ValueError, stages that are not in topological order or not named once."""
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
