"""Runs command lines of vidc in processes forked from one that has imported all they need.

A build of the toy takes 2.6 s of CPU time so, and 10 s where every process imports torch; a
publication alone takes 0.6 s. Workers are forked as well, without the descriptors that a new
program would not have. The parent has no thread that a fork would miss.
"""

import atexit
import gc
import importlib
import os
import signal
import sys
import tempfile
import traceback
from contextlib import suppress
from multiprocessing import Pipe, util
from multiprocessing.connection import Connection

from kill_trap import Command, Trap

from vidc.compiler.build import build
from vidc.compiler.cli.main import main

_MOST_DESCRIPTORS = 4096


def fork_program(kept: list[int], words: list[str]) -> int:
    """Forks in place of ``spawnv_passfds``: runs the program that follows ``-c``."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        for left, right in zip([2, *kept], [*kept, _MOST_DESCRIPTORS], strict=True):
            os.closerange(left + 1, right)
        sys.argv = ["-c", "--multiprocessing-fork"]
        exec(words[words.index("-c") + 1], {"__name__": "__mp_main__"})
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else bool(end.code)
    except BaseException:  # noqa: BLE001 - as a program's end
        traceback.print_exc()
    finally:
        os._exit(status)


def warm_up(*words: str) -> None:
    """Imports what a build imports. It runs in a fork, since a process that used engines cannot."""
    receiving, sending = Pipe(duplex=False)
    process = os.fork()
    if not process:
        try:
            sending.send(_modules_of_build(words))
        finally:
            os._exit(0)
    sending.close()
    for name in receiving.recv():
        with suppress(Exception):  # Some are imported by others alone.
            importlib.import_module(name)
    os.waitpid(process, 0)
    gc.collect()
    gc.freeze()


def _modules_of_build(words: tuple[str, ...]) -> list[str]:
    build.WORKERS = 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ["VIDC_CACHE"] = f"{folder}/cache"
        try:
            main([*words, "-o", f"{folder}/out"])
        except SystemExit as end:
            if end.code != 0:
                raise
    return list(sys.modules)


def serve(connection: Connection) -> Command | None:
    """Runs commands one after the other; returns in a fork, with its command, and at the end."""
    while True:
        try:
            command: Command = connection.recv()
        except EOFError:
            return None
        trap = Trap(command)
        # An interrupt waits until the command can report it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        process = os.fork()
        if not process:
            connection.close()
            _begin(command, trap)
            return command
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        connection.send(process)
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        connection.send(trap.ended(status))


def _begin(command: Command, trap: Trap) -> None:
    os.setsid()
    os.chdir(command.folder)
    os.environ |= command.environ
    tempfile.tempdir = None
    log = os.open(command.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    trap.build = os.getpid()
    util.spawnv_passfds = lambda _, words, kept: fork_program(
        sorted({*map(int, kept), *trap.pipes}), [os.fsdecode(word) for word in words]
    )
    sys.addaudithook(trap)


if __name__ == "__main__":
    sys.stdout = sys.stderr
    warm_up(*sys.argv[2:])
    if (given := serve(Connection(int(sys.argv[1])))) is not None:
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            main(given.arguments)
        except (SystemExit, KeyboardInterrupt) as end:
            if isinstance(end, KeyboardInterrupt):  # As vidc.compiler.cli reports it.
                print("interrupted")
            atexit._run_exitfuncs()
            # Not the end of libraries, which would wait for threads of the process forked from.
            os._exit(130 if isinstance(end, KeyboardInterrupt) else int(end.code or 0))
