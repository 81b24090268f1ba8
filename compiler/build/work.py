"""What stages share: how one runs, and which of a model's settings reach it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from vidc.compiler.config.resolve import Settings
from vidc.compiler.store.digest import Json
from vidc.compiler.store.stage import Workspace

LIBRARIES = {
    "transformer": (),
    "vae": ("diffusers",),
    "text_encoder": ("transformers", "tokenizers"),
}
"""What builds the network of a weights group, besides torch."""


@dataclass(frozen=True)
class Work:
    """What a stage does, wherever its inputs come from and whichever versions of tools do it.

    Attributes:
        entries: modules whose sources it executes.
        config: the settings that reach it.
    """

    entries: tuple[str, ...]
    config: dict[str, Json]


def runner(stage: str, **arguments: Any) -> Callable[[Workspace], None]:
    """What runs a module of ``vidc.compiler.build`` with these arguments."""
    return partial(_run, stage, arguments)


def _run(stage: str, arguments: Mapping[str, Any], workspace: Workspace) -> None:
    # A stage's module is imported when it runs: a build that finds everything runs none.
    import_module(f"vidc.compiler.build.{stage}_run").run(workspace, **arguments)


def plain(value: Any) -> Any:
    """A value as JSON has it: lists in place of tuples."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, tuple) else value


def labeled(label: str, files: Iterable[Path]) -> dict[str, Path]:
    """Files that a stage consumes, by what they are for and their names."""
    # Names count: where the weights came from is told by them.
    return {f"{label}.{file.name}": file for file in files}


def group_sizes(settings: Settings, group: str) -> Json:
    """The configuration of a weights group's network."""
    sizes = {
        "transformer": settings.model.transformer,
        "vae": settings.model.vae,
        "text_encoder": settings.model.text_encoder,
    }[group]
    assert sizes is not None
    found: Json = plain(asdict(sizes))
    return found


def text_len(settings: Settings, group: str) -> int | None:
    """The length of prompts, which reaches the text encoder alone."""
    return settings.model.transformer.text_len if group == "text_encoder" else None
