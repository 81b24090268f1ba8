"""A stage that runs a function, with a key of its own choosing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vidc.compiler.store.digest import Json
from vidc.compiler.store.stage import Input, Key, Stage, Workspace


@dataclass(frozen=True)
class FunctionStage(Stage):
    name: str = ""
    work: Callable[[Workspace], None] = print
    entries: tuple[str, ...] = ("vidc.plugins.errors",)
    config: Json = None
    inputs: tuple[Input, ...] = ()
    files: Mapping[str, Path] = field(default_factory=dict)
    tools: Mapping[str, str] = field(default_factory=dict)
    target: Json = None

    def key(self) -> Key:
        return Key(self.entries, self.config, self.files, lambda: self.tools, self.target)

    def run(self, workspace: Workspace) -> None:
        self.work(workspace)


def write_name(name: str, workspace: Workspace) -> None:
    """Writes a stage's name into a file in a folder."""
    (workspace.output / "a").mkdir()
    (workspace.output / "a" / "data").write_text(name)
