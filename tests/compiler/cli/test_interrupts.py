"""Interrupts that Python, or a library, would lose."""

import signal
import sys
import time

import click
import pytest

from vidc.compiler.cli.interrupts import Interrupts


def interrupt():
    signal.raise_signal(signal.SIGINT)


class Dropped:
    def __del__(self):
        interrupt()


def test_an_interrupt_in_a_destructor_comes_again(capsys):
    def work():
        with Interrupts(seconds=0.02) as interrupts:
            Dropped()
            assert interrupts.received
            time.sleep(10)

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        work()
    assert time.monotonic() - started < 5
    assert capsys.readouterr().err == ""


def test_other_errors_of_a_destructor_are_still_printed(monkeypatch):
    class Faulty:
        def __del__(self):
            raise ValueError("faulty")

    seen = []
    monkeypatch.setattr("sys.unraisablehook", lambda found: seen.append(str(found.exc_value)))
    with Interrupts():
        Faulty()
    assert seen == ["faulty"]


def test_cleaning_up_is_not_interrupted_again():
    done = []

    def work():
        with Interrupts(seconds=0.01):
            try:
                interrupt()
            finally:
                for _ in range(10):
                    time.sleep(0.02)
                done.append(True)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done


def test_signals_are_as_before_afterwards():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGALRM)]
    with pytest.raises(KeyboardInterrupt), Interrupts(seconds=0.01):
        interrupt()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGALRM)] == before
    time.sleep(0.05)


def test_termination_is_an_interrupt_until_the_command_ends(vidc, monkeypatch):
    """So that what `finally` and `atexit` remove does not stay behind, as at `docker stop`."""
    removed = []

    @click.command
    def command():
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            removed.append(True)

    monkeypatch.setattr(sys.modules["vidc.compiler.cli.main"], "root", command)
    assert vidc() == (130, "", "\ninterrupted\n")
    assert (removed, signal.getsignal(signal.SIGTERM)) == ([True], signal.SIG_DFL)


def test_an_ignored_interrupt_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            interrupt()
        assert not interrupts.received
    finally:
        signal.signal(signal.SIGINT, before)


class Panic(BaseException):
    """As an extension in Rust raises it."""


@pytest.mark.parametrize("raised", [RuntimeError("KeyboardInterrupt: <EMPTY MESSAGE>"), Panic()])
def test_an_interrupt_that_a_library_turns_into_its_own_error_ends_with_130(
    vidc, monkeypatch, raised
):
    @click.command
    def command():
        try:
            interrupt()
        except KeyboardInterrupt:
            raise raised from None

    monkeypatch.setattr(sys.modules["vidc.compiler.cli.main"], "root", command)
    status, out, err = vidc()
    assert (status, out, err) == (130, "", "interrupted\n")
