"""What a stage is, and the components of the key of its result."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vidc.compiler.store.digest import DigestMemory, Json, sha256_tree
from vidc.compiler.store.sources import source_digest
from vidc.plugins.errors import BuildError


@dataclass(frozen=True)
class Input:
    """What a stage consumes of an earlier stage's output: these files, or all of it."""

    stage: str
    files: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Workspace:
    """Where a running stage reads and writes.

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


@dataclass(frozen=True)
class Stage:
    """One pure step of a build.

    Attributes:
        name: such as ``export:denoise``.
        run: writes the output.
        entries: modules whose sources it executes, with all they import; one that is imported
            by a computed name, such as a backend, is an entry of its own.
        config: the resolved settings that reach it.
        inputs: the earlier stages it consumes, each once.
        files: files and folders from outside that it consumes, by label.
        tools: versions of the tools it uses, by name.
        target: what it builds for.
        device_bytes: of the target's memory that it takes while it runs, an estimate. It decides
            when the stage runs and not what it makes: no part of the key.
    """

    name: str
    run: Callable[[Workspace], None]
    entries: tuple[str, ...]
    config: Json = None
    inputs: tuple[Input, ...] = ()
    files: Mapping[str, Path] = field(default_factory=dict)
    tools: Mapping[str, str] = field(default_factory=dict)
    target: Json = None
    device_bytes: int = 0


Outputs = Mapping[str, Mapping[str, str]]
"""Digests of the files of finished stages, by stage and relative path."""


def key_components(stage: Stage, outputs: Outputs, digests: DigestMemory) -> dict[str, Json]:
    """All that a stage's result depends on; the key is the digest of it.

    It holds digests of consumed outputs, not keys of earlier stages: a stage that ran again and
    gave the same output changes no key after it.

    Raises:
        BuildError: ``VIDC-BUILD-INPUT``, an outside file cannot be read.
        ValueError: an input names a file that its stage did not write.
    """
    return {
        "stage": stage.name,
        "config": stage.config,
        "inputs": {i.stage: _consumed(stage, i, outputs[i.stage]) for i in stage.inputs},
        "files": {label: _outside(stage, path, digests) for label, path in stage.files.items()},
        "sources": source_digest(stage.entries),
        "tools": dict(stage.tools),
        "target": stage.target,
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


def _consumed(stage: Stage, consumed: Input, output: Mapping[str, str]) -> str:
    if consumed.files is None:
        return sha256_tree(output)
    missing = sorted(set(consumed.files) - set(output))
    if missing:
        raise ValueError(
            f"stage {stage.name!r} consumes {missing} of {consumed.stage!r}, which wrote "
            f"{sorted(output)}"
        )
    return sha256_tree({name: output[name] for name in consumed.files})


def _outside(stage: Stage, path: Path, digests: DigestMemory) -> str:
    try:
        return digests.path(path)
    except (OSError, ValueError) as error:
        raise BuildError(
            "VIDC-BUILD-INPUT",
            f"stage {stage.name}: cannot read {path}: {error}",
            "check that the path exists and that you may read it",
        ) from error
