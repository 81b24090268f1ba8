"""A small build to try things on: stages that write given files and tell that they ran."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from function_stage import FunctionStage

from vidc.compiler.store.plan import PlanRow, plan
from vidc.compiler.store.run import Result, run
from vidc.compiler.store.stage import Stage, Workspace
from vidc.compiler.store.store import Store

SLOT = "tiny/cpu"


@dataclass
class Build:
    """Runs stages in a store of its own and keeps what happened."""

    root: Path
    ran: list[str] = field(default_factory=list)
    hits: list[tuple[str, bool]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def stage(
        self,
        name: str,
        output: Mapping[str, str] | Callable[[Workspace], None],
        **fields: Any,
    ) -> Stage:
        def write(workspace: Workspace) -> None:
            self.ran.append(name)
            if callable(output):
                output(workspace)
                return
            for path, text in output.items():
                (workspace.output / path).parent.mkdir(parents=True, exist_ok=True)
                (workspace.output / path).write_text(text)

        return FunctionStage(name, write, **fields)

    def run(self, *stages: Stage, slot: str = SLOT) -> dict[str, Result]:
        self.ran.clear()
        with Store(self.root) as store:
            return run(stages, store, slot, self)

    def plan(self, *stages: Stage, slot: str = SLOT) -> Sequence[PlanRow]:
        return plan(stages, Store(self.root), slot)

    def started(self, stage: str) -> None:
        pass

    def finished(self, stage: str, hit: bool, seconds: float) -> None:
        assert seconds >= 0
        self.hits.append((stage, hit))

    def note(self, text: str) -> None:
        self.notes.append(text)

    def leftovers(self) -> list[Path]:
        return list(self.root.glob(".drafts/*"))


@pytest.fixture
def build(tmp_path: Path) -> Build:
    return Build(tmp_path / "store")
