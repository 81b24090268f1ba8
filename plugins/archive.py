"""Strict reader of the zip archives that PyTorch writes: ``.pt2`` packages and ``.pt`` files.

Parsers of zip files disagree: some trust the directory at the end, some the header before each
member, and some skip bytes that others read. This reader accepts only archives that have one
reading: stored members that follow each other from the first byte on, each described alike in both
places, then one directory and the end. Any other parser then finds the same members.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from vidc.plugins.errors import GateError

_LOCAL, _CENTRAL, _DESCRIPTOR = 0x04034B50, 0x02014B50, 0x08074B50
_END, _END64, _LOCATOR64 = 0x06054B50, 0x06064B50, 0x07064B50
_LOCAL_HEADER = struct.Struct("<I5H3I2H")
_CENTRAL_HEADER = struct.Struct("<I6H3I5H2I")
_END_RECORD = struct.Struct("<I4H2IH")
_END64_RECORD = struct.Struct("<IQ2H2I4Q")
_LOCATOR64_RECORD = struct.Struct("<IIQI")
_ZIP64 = 1
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF
_DESCRIBED_LATER, _UTF8 = 1 << 3, 1 << 11
_MAX_MEMBERS = 1 << 20


@dataclass(frozen=True)
class Member:
    """One stored file of an archive: the place of its bytes, and their checksum."""

    start: int
    size: int
    crc32: int


class Archive:
    """The members of an archive by name.

    Args:
        data: the whole file: bytes, or a memory map.
        name: of the file, for messages.

    Raises:
        GateError: ``VIDC-BUNDLE-MALFORMED``, parsers could read it in more than one way, a member
            is compressed or encrypted, or its name leads out of the archive's folder.
    """

    def __init__(self, data: bytes | memoryview, name: str) -> None:
        self._data = memoryview(data)
        self.name = name
        try:
            self.members: Mapping[str, Member] = self._read_directory()
        except (struct.error, UnicodeDecodeError) as error:
            self.refuse(f"it is cut short or damaged: {error}")

    def __contains__(self, member: str) -> bool:
        return member in self.members

    def read(self, member: str) -> bytes:
        """Returns a member's bytes."""
        found = self.members[member]
        return bytes(self._data[found.start : found.start + found.size])

    def starts_with(self, member: str, prefix: bytes) -> bool:
        """Returns True if a member's first bytes are these."""
        found = self.members[member]
        return self._data[found.start : found.start + found.size][: len(prefix)] == prefix

    def _read_directory(self) -> dict[str, Member]:
        count, start, end = self._directory()
        members: dict[str, Member] = {}
        at, place = start, 0
        for _ in range(count):
            name, member, place, at = self._read_member(at, place)
            if name in members:
                self.refuse(f"member {name!r} is there twice")
            members[name] = member
        if at != end or place != start:
            self.refuse("bytes between its members or before its directory belong to nothing")
        return members

    def _directory(self) -> tuple[int, int, int]:
        """Returns the number of members, and the start and end of the directory."""
        last = len(self._data) - _END_RECORD.size
        if last < 0:
            self.refuse("it is too short for an archive")
        magic, *disks, total, size, start, comment = _END_RECORD.unpack_from(self._data, last)
        if magic != _END or comment:
            self.refuse("it does not end with the record that ends an archive")
        *disks, here = disks
        end = last
        if self._magic(last - _LOCATOR64_RECORD.size) == _LOCATOR64:
            end = last - _LOCATOR64_RECORD.size - _END64_RECORD.size
            _, disk, at, _ = _LOCATOR64_RECORD.unpack_from(self._data, end + _END64_RECORD.size)
            found = _END64_RECORD.unpack_from(self._data, max(end, 0))
            magic, length, _, _, *disks64, here64, total64, size64, start64 = found
            narrow = (here, total, size, start)
            wide = (here64, total64, size64, start64)
            limits = (_FULL16, _FULL16, _FULL32, _FULL32)
            if (
                (magic, length, at, disk) != (_END64, _END64_RECORD.size - 12, end, 0)
                or any(disks64)
                or any(n not in (w, f) for n, w, f in zip(narrow, wide, limits, strict=True))
            ):
                self.refuse("its two end records differ")
            here, total, size, start = wide
        if any(disks) or here != total or start + size != end or total > _MAX_MEMBERS:
            self.refuse("its end record does not fit its directory")
        return total, start, end

    def _read_member(self, at: int, place: int) -> tuple[str, Member, int, int]:
        """Returns a member's name and place, and the ends of the member and of its entry.

        Args:
            at: offset of the directory's entry.
            place: where the member's own header has to start.
        """
        header = _CENTRAL_HEADER.unpack_from(self._data, at)
        magic, _, _, flags, method, _, _, crc, stored, size = header[:10]
        name_size, extra_size, comment, disk, _, _, offset = header[10:]
        at += _CENTRAL_HEADER.size
        raw = bytes(self._data[at : at + name_size])
        extra = self._data[at + name_size : at + name_size + extra_size]
        at += name_size + extra_size
        name = raw.decode("utf-8" if flags & _UTF8 else "ascii")
        if magic != _CENTRAL or comment or disk:
            self.refuse("its directory is damaged")
        size, stored, offset = self._wide(extra, size, stored, offset)
        if method or flags & ~(_DESCRIBED_LATER | _UTF8) or stored != size:
            self.refuse(f"member {name!r} is compressed or encrypted")
        self._check_name(name)
        if offset != place:
            self.refuse(f"member {name!r} does not follow the one before it")
        start, end = self._check_local(place, raw, flags, (crc, stored, size))
        return name, Member(start, size, crc), end, at

    def _check_local(
        self, place: int, raw: bytes, flags: int, sums: tuple[int, int, int]
    ) -> tuple[int, int]:
        """Compares a member's own header with the directory; returns start and end of the member.

        The start is that of its bytes; the end includes a descriptor after them.
        """
        header = _LOCAL_HEADER.unpack_from(self._data, place)
        magic, _, own_flags, method, _, _, crc, stored, size, name_size, extra_size = header
        begin = place + _LOCAL_HEADER.size
        start = begin + name_size + extra_size
        size, stored, _ = self._wide(self._data[begin + name_size : start], size, stored, 0)
        end = start + sums[2]
        later = bool(flags & _DESCRIBED_LATER)
        expected = ((0, 0, 0), sums) if later else (sums,)
        if (
            magic != _LOCAL
            or (own_flags, method) != (flags, 0)
            or bytes(self._data[begin : begin + name_size]) != raw
            or (crc, stored, size) not in expected
            or end > len(self._data)
        ):
            self.refuse(f"member {raw[:80]!r} differs from its entry in the directory")
        return start, self._after_descriptor(end, sums, raw) if later else end

    def _after_descriptor(self, end: int, sums: tuple[int, int, int], raw: bytes) -> int:
        """Returns where the record ends that repeats a member's sizes after its bytes."""
        # Sizes of 4 GB and more fit only the form with 64 bits.
        narrow = [struct.pack("<4I", _DESCRIPTOR, *sums)] if max(sums) <= _FULL32 else []
        forms = [*narrow, struct.pack("<2I2Q", _DESCRIPTOR, *sums)]
        expected = [form for form in forms if self._data[end : end + len(form)] == form]
        if not expected:
            self.refuse(f"member {raw[:80]!r} differs from its entry in the directory")
        return end + len(expected[0])

    def _wide(self, extra: memoryview, *narrow: int) -> tuple[int, ...]:
        """Replaces sizes that do not fit 32 bits by those of the zip64 field."""
        wide: list[int] = []
        while len(extra):
            kind, length = struct.unpack_from("<2H", extra)
            if length > len(extra) - 4:
                self.refuse("a field of a member's header is cut short")
            if kind == _ZIP64:
                if wide or length % 8:
                    self.refuse("a member's size is there twice")
                wide = [*struct.unpack_from(f"<{length // 8}Q", extra, 4)]
            extra = extra[4 + length :]
        found = [wide.pop(0) if n == _FULL32 and wide else n for n in narrow]
        if wide:
            self.refuse("a member's size is there twice")
        return tuple(found)

    def _check_name(self, name: str) -> None:
        parts = name.split("/")
        if any(part in ("", ".", "..") for part in parts) or any(c in name for c in "\\:\x7f"):
            self.refuse(f"member name {name[:80]!r} is not a path inside the archive")
        if not name.isprintable():
            self.refuse(f"member name {name[:80]!r} has characters that do not print")

    def _magic(self, at: int) -> int:
        return int.from_bytes(self._data[at : at + 4], "little") if at >= 0 else 0

    def refuse(self, what: str) -> NoReturn:
        """Raises ``VIDC-BUNDLE-MALFORMED`` about this archive."""
        raise GateError(
            "VIDC-BUNDLE-MALFORMED",
            f"{self.name} is not an archive that vidc reads: {what[:200]}",
            "copy it again from where it was made, or build it again",
        )
