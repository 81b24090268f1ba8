"""Timing cache of TensorRT's builder, kept in a file for later builds."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vidc.compiler.store.atomic import write_bytes

CODE = "VIDC-TENSORRT-TIMINGS"
MAX_BYTES = 2**30
_HEAD = b"vidc timings 1\n"
_DIGEST_BYTES = hashlib.sha256().digest_size


class Timings:
    """Timing cache file of one TensorRT version and one GPU model.

    TensorRT measures what the cache lacks, so an unusable file only costs time: it is reported and
    replaced. No cache key depends on it, because kernel choices vary between builds anyway.

    Args:
        file: path of the file.
        note: displays a line of progress.
    """

    def __init__(self, file: Path, note: Callable[[str], None]) -> None:
        self._file = file
        self._note = note
        self._cache: Any = None

    def load(self, config: Any) -> None:
        """Loads the cache into a builder's configuration, which must not outlive this object."""
        try:
            known = self._read()
        except (OSError, ValueError) as error:
            self._say(f"cannot be used ({error}): kernels are measured again, and it is replaced")
            known = b""
        cache = config.create_timing_cache(known)
        if known and (cache is None or not config.set_timing_cache(cache, False)):
            self._say(
                "is refused by TensorRT, as one of another GPU or driver is: kernels are measured "
                "again, and it is replaced"
            )
            known = b""
        if not known:
            cache = config.create_timing_cache(b"")
            config.set_timing_cache(cache, False)
        self._cache = cache

    def save(self, config: Any) -> None:
        """Saves the timings of ``config``, merged with those of other builds since ``load``.

        Two simultaneous saves may lose the timings of one.
        """
        try:
            try:
                beside = config.create_timing_cache(self._read())
            except ValueError:
                beside = None
            if beside is not None:
                self._cache.combine(beside, False)
            measured = bytes(self._cache.serialize())
            write_bytes(self._file, _HEAD + hashlib.sha256(measured).digest() + measured)
        except OSError as error:
            self._say(f"cannot be written ({error}): the next build measures kernels again")

    def _read(self) -> bytes:
        """Returns the serialized cache, empty if there is no file.

        Raises:
            OSError: the file cannot be read.
            ValueError: the file is damaged.
        """
        try:
            with self._file.open("rb") as file:
                found = file.read(MAX_BYTES + 1)
        except FileNotFoundError:
            return b""
        start = len(_HEAD) + _DIGEST_BYTES
        digest, measured = found[len(_HEAD) : start], found[start:]
        if not found.startswith(_HEAD) or hashlib.sha256(measured).digest() != digest:
            raise ValueError("it is damaged")
        return measured

    def _say(self, what: str) -> None:
        self._note(f"{CODE}: {self._file} {what}")
