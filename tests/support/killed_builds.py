"""Builds of the toy that are killed, and what must hold afterwards."""

import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

from kill_trap import Command, Ended
from signing_keys import key_pair
from toy_family import PRESET

from vidc.compiler.store.atomic import drafts
from vidc.runtime import load
from vidc.runtime.manifest import MANIFEST_NAME

OLD, NEW = 2, 1
"""Seeds of the weights of an older bundle and of the one that is built."""
SECONDS = 5
"""Longest time until all processes of a killed build have ended."""
PATIENCE = 120


class WarmVidc:
    """A process that forks command lines.

    Args:
        words: the arguments of a first build, without ``-o``.
    """

    def __init__(self, *words: str) -> None:
        here, there = socket.socketpair()
        self._connection = Connection(here.detach())
        program = Path(__file__).with_name("warm_vidc.py")
        self._process = subprocess.Popen(
            [sys.executable, program, str(there.fileno()), *words],
            env={**os.environ, "PYTHONPATH": str(program.parent), "OMP_NUM_THREADS": "1"},
            pass_fds=[there.fileno()],
        )
        there.close()

    def close(self) -> None:
        self._connection.close()
        self._process.wait(PATIENCE)

    def run(
        self, command: Command, sent: int = signal.SIGKILL, after: float | None = None
    ) -> tuple[Ended, list[str]]:
        """Runs a command, with a signal after some seconds; returns what it left running."""
        self._connection.send(command)
        process: int = self._connection.recv()
        if after is not None and not self._connection.poll(after):
            with suppress(ProcessLookupError):
                os.kill(process, sent)
        limit = PATIENCE if after is None else SECONDS
        ended = self._connection.poll(limit)
        left = [] if ended else [f"the build itself ({process})"]
        if not ended:
            os.kill(process, signal.SIGKILL)
        result: Ended = self._connection.recv()
        deadline = time.monotonic() + limit
        while running(process) and time.monotonic() < deadline:
            time.sleep(0.02)
        left += running(process)
        with suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)
        return result, left


def running(session: int) -> list[str]:
    """Returns the command lines of a session's processes that have not ended."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, _, _, of, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(of) == session and state not in "ZX":
                words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found.append(f"{folder.name}: {words}")
    return found


def tree(folder: Path) -> dict[str, str]:
    """Returns the digest of each file below a folder by its path."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


class Harness:
    """Kills builds in one folder and compares what they leave with builds that were not killed.

    The bundle is signed. ``states`` are folders before a build, by name: ``cold``, an older bundle
    and an empty cache; ``ready``, the same with all results of the new one in the cache; ``first``,
    those without a bundle. ``killed`` counts the builds.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._at = folder, folder / "at"
        self.output = self._at / "out"
        self.killed = 0
        (folder / "small.toml").write_text(PRESET.format(width=8))
        key = key_pair(folder, "key")[0]
        self._words = ("build", str(folder / "small.toml"), "--gpu", "cpu", "--random-weights")
        self._signed = ("--sign", str(key), "-o", str(self.output))
        environ = {"VIDC_CACHE": str(self._at / "cache"), "TMPDIR": str(self._at / "tmp")}
        self._command = Command((), folder, environ, folder / "log")
        self._warm = WarmVidc(*self._words, str(NEW))
        (self._at / "cache").mkdir(parents=True)
        (self._at / "tmp").mkdir()
        self._built(OLD)
        shutil.rmtree(self._at / "cache")
        (self._at / "cache").mkdir()
        self._keep("cold")
        self._built(NEW)
        self._clean = names(self._at)
        self.old, self.new = tree(folder / "cold" / "out"), tree(self.output)
        shutil.copytree(self.output, folder / "new")
        shutil.rmtree(self.output)
        self._keep("first")
        shutil.copytree(folder / "cold" / "out", self.output)
        self._keep("ready")
        self.states = {name: self.whole(name) for name in ("first", "ready", "cold")}

    def close(self) -> None:
        self._warm.close()

    def whole(self, state: str) -> tuple[int, float]:
        """Returns the number of changes and the seconds of a build that is not killed."""
        self._place(state)
        started = time.monotonic()
        changes = self._built(NEW).changes
        return changes, time.monotonic() - started

    def at_change(self, state: str, number: int) -> list[str]:
        """Kills builds at a change, in each way that it allows; returns what is wrong afterwards.

        Before the change; with a file that it opens to write created or emptied; and in a worker,
        the worker alone instead of the build.
        """
        last, wrong = self._at_change(state, number)
        if ": open" in last:
            wrong += self._at_change(state, number, torn=True)[1]
        if last.startswith("worker"):
            wrong += self._at_change(state, number, alone=True)[1]
        return wrong

    def _at_change(
        self, state: str, number: int, *, torn: bool = False, alone: bool = False
    ) -> tuple[str, list[str]]:
        self._place(state)
        command = replace(self._build(NEW), changes=number, torn=torn, alone=alone)
        ended, wrong = self._warm.run(command)
        if alone and ended.status == 4 and "ended its process" in self._log():
            wrong += [f"{name} stays" for name in self._left()]
        elif ended.status != -signal.SIGKILL:
            wrong.append(f"status {ended.status}: {self._log()}")
        self.killed += 1
        return ended.last, self._aftermath(f"{state}, change {number}, {ended.last}", wrong)

    def after(self, state: str, seconds: float, sent: int) -> list[str]:
        """Sends a build a signal after some time; returns what is wrong afterwards."""
        self._place(state)
        ended, wrong = self._warm.run(self._build(NEW), sent, seconds)
        self.killed += 1
        log = self._log()
        if sent == signal.SIGINT:
            if ended.status not in (0, 130):
                wrong.append(f"status {ended.status}")
            if ended.status == 130 and not log.endswith("interrupted\n"):
                wrong.append(f"its last words are {log[-300:]!r}")
            if any(word in log for word in ("Traceback", "Exception ignored", "leaked")):
                wrong.append(log)
            wrong += [f"{name} stays" for name in self._left()]
        return self._aftermath(f"{state}, after {seconds:.3f} s, status {ended.status}", wrong)

    def _aftermath(self, case: str, wrong: list[str]) -> list[str]:
        """Returns what is wrong with the output, and after a second build, with what it left."""
        if self.output.exists():
            found = tree(self.output)
            # Between publication and signature, it is whole and unsigned.
            if found not in (self.old, self.new) and {**found, MANIFEST_NAME: ""} != self._unsigned:
                wrong.append(f"neither bundle: {found}")
            try:
                load(self.output).close()
            except Exception as error:  # noqa: BLE001 - every error is wrong
                wrong.append(f"the bundle is refused: {error}")
        for draft in drafts(self._at / "cache" / ".slots"):
            os.utime(draft, (0, 0))  # A day passes.
        again, left = self._warm.run(self._build(NEW))
        if again.status != 0:
            wrong.append(f"second build: status {again.status}: {self._log()}")
        elif tree(self.output) != self.new:
            wrong.append("second build: another bundle")
        wrong += [f"second build: {each}" for each in left]
        wrong += [f"second build: {name} stays" for name in self._left()]
        return [f"{case}: {each}" for each in wrong]

    @property
    def _unsigned(self) -> dict[str, str]:
        return {**self.new, MANIFEST_NAME: ""}

    def _left(self) -> list[str]:
        """Returns what lies beside the output, in the cache and in the temporary folder."""
        known = {*self._clean, *(f"cache/{name}" for name in (".digests", ".drafts"))}
        found = names(self._at) - known
        return sorted(name for name in found if str(Path(name).parent) not in found)

    def _build(self, seed: int) -> Command:
        return replace(self._command, arguments=(*self._words, str(seed), *self._signed))

    def _built(self, seed: int) -> Ended:
        ended, left = self._warm.run(self._build(seed))
        assert (ended.status, left) == (0, []), self._log()
        return ended

    def _keep(self, state: str) -> None:
        shutil.copytree(self._at, self.folder / state)

    def _place(self, state: str) -> None:
        shutil.rmtree(self._at)
        shutil.copytree(self.folder / state, self._at)

    def _log(self) -> str:
        return self._command.log.read_text()
