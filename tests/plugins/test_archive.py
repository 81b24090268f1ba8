"""The strict archive reader: one reading of every archive that it accepts."""

import io
import struct
import zipfile
from contextlib import suppress

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from vidc.plugins.archive import Archive
from vidc.plugins.errors import GateError


def zipped(members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data, compression)
    return buffer.getvalue()


PLAIN = zipped({"a/x": b"first", "a/y/z": b"", "a/größe": b"third"})


def refused(data: bytes) -> str:
    with pytest.raises(GateError) as caught:
        Archive(data, "engine.pt2")
    assert caught.value.code == "VIDC-BUNDLE-MALFORMED"
    return caught.value.message


def test_reads_what_python_writes() -> None:
    archive = Archive(PLAIN, "engine.pt2")
    assert {name: archive.read(name) for name in archive.members} == {
        "a/x": b"first", "a/y/z": b"", "a/größe": b"third",
    }  # fmt: skip


def test_reads_what_torch_saves() -> None:
    buffer = io.BytesIO()
    torch.save({"a": torch.ones(3), "b": torch.zeros(700)}, buffer)
    archive = Archive(buffer.getvalue(), "weights.pt")
    with zipfile.ZipFile(buffer) as expected:
        found = {name: archive.read(name) for name in archive.members}
        assert found == {name: expected.read(name) for name in expected.namelist()}


def test_reads_members_whose_sizes_are_in_wide_fields() -> None:
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(buffer, "w") as target,
        target.open(zipfile.ZipInfo("a/x"), "w", force_zip64=True) as sink,
    ):
        sink.write(b"wide")
    assert Archive(buffer.getvalue(), "x").read("a/x") == b"wide"


@pytest.mark.parametrize(
    "name", ["../x", "a/../../x", "/x", "a//x", "a/./x", "a\\x", "C:x", "a/", "a/\x1b[31m", ""]
)
def test_refuses_a_name_that_is_no_path_inside(name: str) -> None:
    data = zipped({"n" * len(name.encode()) or "n": b"1"})
    if name:
        data = data.replace(b"n" * len(name.encode()), name.encode())
    else:
        data = data[:26] + b"\0\0" + data[28:30] + data[31:]
    refused(data)


def test_refuses_bytes_before_the_archive() -> None:
    refused(b"#!/bin/sh\n" + PLAIN)
    # Python's writer adjusts the offsets of an archive that is appended to other bytes.
    buffer = io.BytesIO(b"x" * 64)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr("a/x", b"1")
    refused(buffer.getvalue())


def test_refuses_a_comment_or_bytes_after_the_end() -> None:
    refused(PLAIN + b"x")
    refused(PLAIN[:-2] + b"\x01\x00x")


def test_refuses_an_archive_within_the_comment_of_another() -> None:
    """A parser that looks for the last end record and one that trusts the length differ."""
    inner = zipped({"a/evil": b"1"})
    refused(PLAIN[:-2] + struct.pack("<H", len(inner)) + inner)


FIELDS = {"flags": 6, "method": 8, "crc": 14, "stored": 18, "size": 22, "extra": 28, "name": 30}
"""Fields of the first member's own header that its entry in the directory repeats, by offset."""


@pytest.mark.parametrize("field", FIELDS)
def test_refuses_a_local_header_that_differs_from_the_directory(field: str) -> None:
    damaged = bytearray(PLAIN)
    damaged[FIELDS[field]] ^= 2
    refused(bytes(damaged))


def test_refuses_a_member_that_the_directory_does_not_list() -> None:
    first = zipped({"a/hidden": b"1"})
    local = first[: first.index(b"PK\x01\x02")]
    start = PLAIN.index(b"PK\x01\x02")
    size, at = struct.unpack("<2I", PLAIN[-10:-2])
    end = PLAIN[:-10] + struct.pack("<2I", size, at + len(local)) + PLAIN[-2:]
    refused(end[:start] + local + end[start:])


def test_refuses_compression_and_duplicates() -> None:
    assert "compressed" in refused(zipped({"a": bytes(1000)}, zipfile.ZIP_DEFLATED))
    assert "twice" in refused(zipped({"a/x": b"1", "a/y": b"2"}).replace(b"a/y", b"a/x"))


@given(st.integers(0, len(PLAIN) - 1), st.integers(1, 255), st.booleans())
@example(172, 64, False)
def test_a_damaged_archive_is_refused_or_means_the_same_to_python(
    position: int, mask: int, cut: bool
) -> None:
    damaged = bytearray(PLAIN)
    damaged[position] ^= mask
    data = bytes(damaged[:position] if cut else damaged)
    with suppress(GateError, NotImplementedError):  # Python refuses a later version of the format.
        archive = Archive(data, "engine.pt2")
        with zipfile.ZipFile(io.BytesIO(data)) as other:
            places = {name: member.size for name, member in archive.members.items()}
            assert places == {info.filename: info.file_size for info in other.infolist()}
