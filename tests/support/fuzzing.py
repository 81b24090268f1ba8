"""Fuzzing of what users bring: mutate valid files, read them, accept nothing but coded errors.

A case is named by its seed, its subject and its number, and can be run alone. Mutations reach what
a reader reads: bytes anywhere, values of JSON (headers of safetensors files included) and TOML, and
members of zip archives.
"""

import json
import os
import random
import resource
import shutil
import signal
import tomllib
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Any

from vidc.plugins.errors import VidcError

SECONDS, PATIENCE = 60, 600
"""Most processor time and most time of one case; the machine may be busy with other work."""
MEGABYTES = 400
"""Most memory that one case may add to the process."""
_NUMBERS = (0, 1, -1, 2, 7, 2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**64, -(2**63), 10**30, 0.5, 1e300)
_ODD: tuple[Any, ...] = (
    *_NUMBERS, float("nan"), float("inf"), None, True, False, "", "x", "../x", "/etc/passwd", "\0",
    "\x1b[2J", "\ud800", "nan", "1e999", "a" * 300, [], {}, [[]], [None], {"": {}}, [1] * 70,
)  # fmt: skip
_LEAVES = (
    "weight",
    "bias",
    "scale_weight",
    "comfy_quant",
    "alpha",
    "diff",
    "dora_scale",
    "lora_up",
)
_EDGES = (
    b"",
    b"\0",
    b"\xff",
    b"\0" * 8,
    b"\xff" * 8,
    b"\x7f" * 4,
    b"{",
    b"PK\x05\x06",
    b"\x80\x02",
)


@dataclass(frozen=True)
class Subject:
    """Files of one kind that users bring.

    Attributes:
        name: of the kind.
        make: writes valid files into a folder.
        read: reads them as the product does, as far as their values; may return a text to count.
        change: changes a folder's files and returns what was done; None for ``mutate``.
    """

    name: str
    make: Callable[[Path], None]
    read: Callable[[Path], object]
    change: Callable[[Path, random.Random], str] | None = None


@dataclass
class Outcome:
    """Results of many cases: how often each code came, and the reports of what must not happen."""

    codes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


def run(subject: Subject, folder: Path, seed: int, numbers: range) -> Outcome:
    """Runs cases; an error without a code, a long time or much memory is a failure."""
    valid = folder / "valid"
    valid.mkdir(parents=True)
    subject.make(valid)
    subject.read(valid)
    outcome = Outcome()
    for number in numbers:
        case = f"seed {seed}, {subject.name}, case {number}"
        changed = folder / "changed"
        shutil.copytree(valid, changed)
        what = (subject.change or mutate)(changed, random.Random(case))
        try:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            with _limited():
                code = _read(subject, changed)
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
            if grown > MEGABYTES:
                raise MemoryError(f"{grown} MB more")
        except Exception:  # noqa: BLE001 - every other error is what is looked for
            outcome.failures.append(f"{case}: {what}\n{traceback.format_exc(limit=-6)}")
        else:
            outcome.codes[code] += 1
        shutil.rmtree(changed)
    return outcome


def run_without_files(subject: Subject, folder: Path) -> Outcome:
    """Runs a case for each file of a subject, which a pipe or an endless device replaces."""
    valid = folder / "files"
    valid.mkdir()
    subject.make(valid)
    names = [path.relative_to(valid) for path in sorted(valid.rglob("*")) if path.is_file()]
    left = iter(names)

    def change(changed: Path, _: random.Random) -> str:
        path = changed / next(left)
        path.unlink()
        if path.suffix == ".toml":  # A pipe is a file of settings: --config <(command).
            path.symlink_to("/dev/zero")
        else:
            os.mkfifo(path)
        return f"{path.name} is no file"

    return run(replace(subject, change=change), folder / "run", 1, range(len(names)))


def _read(subject: Subject, folder: Path) -> str:
    try:
        found = subject.read(folder)
    except VidcError as error:
        str(error).encode()
        return error.code
    return found if isinstance(found, str) else "accepted"


@contextmanager
def _limited() -> Iterator[None]:
    def stop(number: int, _: object) -> None:
        kind, most = (" of a processor", SECONDS) if number == signal.SIGPROF else ("", PATIENCE)
        raise TimeoutError(f"more than {most} s{kind}")

    limits = (
        (signal.ITIMER_PROF, signal.SIGPROF, SECONDS),
        (signal.ITIMER_REAL, signal.SIGALRM, PATIENCE),
    )
    for timer, number, seconds in limits:
        signal.signal(number, stop)
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for timer, _, _ in limits:
            signal.setitimer(timer, 0)


def mutate(folder: Path, rng: random.Random) -> str:
    """Changes one to three things in one of a folder's files; returns what was done."""
    return mutate_file(rng.choice(sorted(p for p in folder.rglob("*") if p.is_file())), rng)


def mutate_file(path: Path, rng: random.Random) -> str:
    """Changes one to three things in a file; returns what was done."""
    done = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        change = rng.choice(_changes(path))
        content = change(path.read_bytes(), rng)
        path.write_bytes(content)
        done.append(change.__name__.strip("_"))
    return f"{', '.join(done)} in {path.name}"


def _changes(path: Path) -> list[Callable[[bytes, random.Random], bytes]]:
    if path.suffix == ".json":
        return [_bytes, _json, _json]
    if path.suffix == ".toml":
        return [_bytes, _toml, _toml]
    if path.suffix == ".safetensors":
        return [_bytes, _header, _names, _names]
    if path.suffix in (".pt", ".pth", ".bin", ".pt2") and zipfile.is_zipfile(path):
        return [_bytes, _member, _member]
    return [_bytes]


def _bytes(data: bytes, rng: random.Random) -> bytes:
    at, to = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    length = rng.choice((1, 2, 4, 8, 64))
    edge = rng.choice(_EDGES)
    kinds: tuple[Callable[[], bytes], ...] = (
        lambda: data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :],
        lambda: data[:at] + edge + data[at + len(edge) :],
        lambda: data[:at] + edge + data[at:],
        lambda: data[:at] + data[at + length :],
        lambda: data[:at],
        lambda: data[:at] + data[to:],
        lambda: data[:to] + data[at:],
        lambda: data[at : at + length] + data,
        lambda: data + data[at:to],
        lambda: data[:at] + rng.randbytes(length) + data[at + length :],
        lambda: data[:at] + rng.choice(_NUMBERS[:9]).to_bytes(9, "little", signed=True) + data[at:],
    )
    return rng.choice(kinds)()


def _json(data: bytes, rng: random.Random) -> bytes:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return _bytes(data, rng)
    text = json.dumps(_changed(value, rng))
    if rng.random() < 0.1 and text.startswith("{"):
        # A name that is there twice.
        text = "{" + text[1:-1].split(", ", 1)[0] + "," + text[1:] if len(text) > 2 else text
    return text.encode("utf-8", "surrogatepass")


def _toml(data: bytes, rng: random.Random) -> bytes:
    """Another value behind a key, another key, or a line twice."""
    lines = data.decode("utf-8", "replace").split("\n")
    at = rng.choice([i for i, line in enumerate(lines) if line.strip()] or [0])
    key, equals, text = lines[at].partition(" = ")
    kind = rng.random()
    if kind < 0.6 and equals:
        try:
            value = _changed(tomllib.loads(f"value = {text}")["value"], rng)
        except tomllib.TOMLDecodeError:
            value = rng.choice(_ODD)
        lines[at] = f"{key} = {json.dumps(value)}"
    elif kind < 0.8:
        lines[at] = _renamed(lines[at], rng)
    else:
        lines.insert(rng.randrange(len(lines) + 1), lines[at])
    return "\n".join(lines).encode("utf-8", "replace")


def _renamed(name: str, rng: random.Random) -> str:
    at = rng.randrange(len(name) + 1)
    return name[:at] + rng.choice(("", "x", ".", "0", "é", "\x1b")) + name[at + 1 :]


def _header(data: bytes, rng: random.Random) -> bytes:
    length = int.from_bytes(data[:8], "little")
    header = _json(data[8 : 8 + length], rng)
    return len(header).to_bytes(8, "little") + header + data[8 + length :]


def _names(data: bytes, rng: random.Random) -> bytes:
    """A header that still fits its file, with other names, dtypes, shapes or metadata."""
    length = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + length])
        metadata = header.pop("__metadata__", {})
        one, other = (rng.choice(sorted(header)) for _ in range(2))
        kind = rng.randrange(6)
        if kind == 0:
            header[one], header[other] = header[other], header[one]
        elif kind == 1:
            header[_renamed(one, rng)] = header.pop(one)
        elif kind == 2:
            header[one]["dtype"] = {"F32": "I32", "F16": "BF16"}.get(header[one]["dtype"], "U8")
        elif kind == 3:
            header[one]["shape"] = rng.choice(
                ([1, *header[one]["shape"]], header[one]["shape"][::-1])
            )
        elif kind == 4:
            header[f"{one.rpartition('.')[0]}.{rng.choice(_LEAVES)}"] = header.pop(one)
        else:
            key = rng.choice(("lora_adapter_metadata", "lora_alpha", "rank", "ss_network_dim"))
            metadata[key] = rng.choice(("", "0", "-1", "nan", "1e999", "{}", "[]", "[" * 9999, "x"))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        return _bytes(data, rng)
    text = json.dumps({"__metadata__": metadata, **header}).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


def _member(data: bytes, rng: random.Random) -> bytes:
    """An archive whose members, not whose frame, are changed: most often the pickle."""
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive:
            content = {name: archive.read(name) for name in archive.namelist()}
    except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError, OSError):
        return _bytes(data, rng)
    pickles = [name for name in content if name.endswith("data.pkl")]
    name = rng.choice(pickles if pickles and rng.random() < 0.7 else sorted(content) or [""])
    changed = content.pop(name, b"")
    if rng.random() < 0.8:
        content[name] = _bytes(changed, rng)
    elif rng.random() < 0.5:
        content[rng.choice(("../x", f"{name}x", "data.pkl", "a/b/data.pkl"))] = changed
    result = BytesIO()
    with zipfile.ZipFile(result, "w") as archive:
        for each, value in content.items():
            archive.writestr(zipfile.ZipInfo(each), value)
    return result.getvalue()


def nudge(path: Path, rng: random.Random) -> tuple[Any, Any]:
    """Changes a JSON document as ``nudged`` does; returns the old one and the new one."""
    old = new = json.loads(path.read_text())
    while new == old:
        new = nudged(old, rng)
    path.write_text(json.dumps(new))
    return old, new


def nudged(value: Any, rng: random.Random) -> Any:
    """A JSON value with one leaf changed to another of its type, or two items exchanged."""
    if isinstance(value, dict | list) and value:
        keys = sorted(value) if isinstance(value, dict) else [*range(len(value))]
        changed, key = value.copy(), rng.choice(keys)
        if rng.random() < 0.1:
            other = rng.choice(keys)
            changed[key], changed[other] = value[other], value[key]
        else:
            changed[key] = nudged(value[key], rng)
        return changed
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice((value + 1, value - 1, value * 2, -value, 0, 1))
    if isinstance(value, float):
        return rng.choice((value + 1, value - 1, value * 0.999, value * 2, -value, 0.0))
    if isinstance(value, str):
        return _renamed(value, rng)
    return _changed(value, rng)


def _changed(value: Any, rng: random.Random) -> Any:
    """A JSON value with one thing in it changed."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(sorted(value))
        rest = {name: item for name, item in value.items() if name != key}
        kind = rng.random()
        if kind < 0.7:
            return value | {key: _changed(value[key], rng)}
        if kind < 0.8:
            return rest
        if kind < 0.9:
            other = rng.choice((*sorted(value), f"{key}x", "", "\x1b", "a" * 300))
            return {**rest, other: value[key]}
        return value | {rng.choice(("other", "", key.upper())): rng.choice(_ODD)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        kind = rng.random()
        if kind < 0.6:
            return [*value[:at], _changed(value[at], rng), *value[at + 1 :]]
        return value[:at] + value[at + 1 :] if kind < 0.8 else [*value, value[at]]
    if type(value) is int and rng.random() < 0.5:
        return value + rng.choice((-1, 1, 2, 8, -value * 2))
    if isinstance(value, str) and value and rng.random() < 0.5:
        at = rng.randrange(len(value))
        return value[:at] + rng.choice(("", "x", "\n", ".", "*", "é")) + value[at + 1 :]
    return rng.choice(_ODD)
