"""A trap that kills a command at one of its changes of the file system.

Python announces changes by audit events, before they happen; ``renameat2``, which has no event, by
the lookup of its name.
"""

import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHANGES = frozenset(
    {
        "os.chmod", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink",
        "os.truncate", "os.utime", "subprocess.Popen",
    }
)  # fmt: skip
"""Audit events that are changes whatever their arguments; a new process is one, too."""
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@dataclass(frozen=True)
class Command:
    """A command line.

    Attributes:
        arguments: after the program's name.
        folder: it runs there.
        environ: more environment variables.
        log: the file that receives stdout and stderr.
        changes: number of changes before the one that kills it.
        torn: a file that the last change opens to write is created, or emptied.
        alone: the process that makes the last change dies; else the build does, and a worker
            waits for its own end.
    """

    arguments: tuple[str, ...]
    folder: Path
    environ: dict[str, str]
    log: Path
    changes: int = 10_000
    torn: bool = False
    alone: bool = False


@dataclass(frozen=True)
class Ended:
    """Exit status of a command, its number of changes, and the one that killed it."""

    status: int
    changes: int
    last: str


@dataclass
class Trap:
    """Counts the changes of all processes of a command: each takes a byte from a pipe."""

    command: Command
    build: int = 0
    inside: bool = False
    pipes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        tokens, end = os.pipe()
        os.write(end, b"." * self.command.changes)
        os.close(end)
        self.pipes = [tokens, *os.pipe()]

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.inside or not is_change(event, arguments) or os.read(self.pipes[0], 1):
            return
        self.inside = True
        who = "build" if os.getpid() == self.build else "worker"
        os.write(self.pipes[2], f"{who}: {event} {arguments}"[:2000].encode())
        if event == "open" and self.command.torn:
            os.open(arguments[0], arguments[2] & ~os.O_EXCL, 0o666)
        if self.command.alone:
            os.kill(os.getpid(), signal.SIGKILL)
        os.kill(self.build, signal.SIGKILL)
        time.sleep(60)

    def ended(self, status: int) -> Ended:
        """Returns what came of the command; called in the process that did not fork from it."""
        os.close(self.pipes[2])
        last = os.read(self.pipes[1], 2000).decode()
        left = len(os.read(self.pipes[0], self.command.changes))
        for descriptor in self.pipes[:2]:
            os.close(descriptor)
        return Ended(status, self.command.changes - left, last)


def is_change(event: str, arguments: tuple[Any, ...]) -> bool:
    """Returns True if an audit event announces a change of the file system."""
    if event == "ctypes.dlsym":
        return arguments[1] == "renameat2"
    if event == "open":
        path, _, flags = arguments
        if isinstance(path, int) or not flags & _WRITING:
            return False
        return not os.fsdecode(path).startswith(("/dev/", "/proc/"))
    return event in CHANGES
