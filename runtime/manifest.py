"""The manifest: what a bundle is, and which files it consists of.

It comes from outside and is trusted in nothing: ``read_manifest`` raises a VidcError on whatever
is not exactly schema 1.
"""

import json
import math
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from vidc.plugins.errors import GateError, UnavailableError, UsageError
from vidc.plugins.signature import DTYPES, Signature
from vidc.runtime.stream import StreamSpec
from vidc.runtime.strict import field_error, plain, read

SCHEMA = 1
MANIFEST_NAME = "manifest.json"
MAX_MANIFEST_BYTES = 16 * 2**20

_MAX_DEPTH = 32
_MAX_INT = 2**63 - 1
_MAX_ELEMENTS = 2**48
_MAX_RANK = 8
_MAX_PATH_PART = 255
_REBUILD = "build the bundle again, or copy it again from where it was built"

_IDENTIFIER = re.compile(r"[a-z0-9_]{1,64}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CAPABILITY = re.compile(r"[0-9]{1,2}\.[0-9]")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]")
_DRIVE = re.compile(r"[A-Za-z]:")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def check_path(path: str) -> None:
    """Refuses a path that is not plain, relative and within the bundle.

    Raises:
        GateError: ``VIDC-BUNDLE-PATH``.
    """
    pure = PurePosixPath(path)
    if (
        path in ("", ".")
        or pure.is_absolute()
        or ".." in pure.parts
        or str(pure) != path
        or "\\" in path
        or _DRIVE.match(path)
        or _UNPRINTABLE.search(path)
        or any(len(part.encode()) > _MAX_PATH_PART for part in pure.parts)
    ):
        raise GateError(
            "VIDC-BUNDLE-PATH",
            f"{path[:_MAX_PATH_PART]!r} is not a relative, normalized path inside the bundle",
            "do not use this bundle unless you know who made it; " + _REBUILD,
        )


@dataclass(frozen=True)
class Target:
    """The machine that the engines were built for.

    Attributes:
        name: the target's name in ``configs/targets``.
        compute_capability: such as ``9.0``; None for a bundle that runs on a CPU.
        memory_bytes: memory of the target's device.
    """

    name: str
    compute_capability: str | None
    memory_bytes: int

    def __post_init__(self) -> None:
        capability = self.compute_capability
        _require(
            capability is None or _CAPABILITY.fullmatch(capability) is not None,
            f"compute_capability = {capability!r} is not like '9.0'",
        )
        _require(self.memory_bytes >= 0, f"memory_bytes = {self.memory_bytes} is negative")

    @property
    def device_type(self) -> str:
        """Type of the torch device that the engines run on: ``cuda`` or ``cpu``."""
        return "cpu" if self.compute_capability is None else "cuda"


@dataclass(frozen=True)
class Requirements:
    """What an engine needs of the machine that runs it, besides the target's device.

    Attributes:
        torch: the release that built it, if it calls into libtorch, which keeps old symbols but
            lacks future ones.
        cpu_features: instructions its code uses, by the names of ``torch.cpu.get_capabilities()``.
        operators: of ``vidc.plugins.engine_operators``, whose kernels on a GPU come from the
            library of kernels, of the manifest's ``plugin_abi``.
        compute_capabilities: of the GPUs that it runs on; none for the target's alone.
    """

    torch: str | None
    cpu_features: tuple[str, ...]
    operators: tuple[str, ...]
    compute_capabilities: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for capability in self.compute_capabilities:
            _require(
                _CAPABILITY.fullmatch(capability) is not None,
                f"compute_capabilities holds {capability[:64]!r}, which is not like '9.0'",
            )


PORTABLE = Requirements(torch=None, cpu_features=(), operators=())
"""What an engine needs that contains no native code."""


@dataclass(frozen=True)
class Engine:
    """One component as built by a backend.

    Attributes:
        backend: what built it.
        loader: the module of ``vidc.runtime`` that loads it.
        version: of the tool that built it.
        precision: what its weights and matrix products are computed in.
        files: paths in the bundle, the one to open first.
        signature: the tensors it takes, returns and keeps.
        options: what the loader needs besides, free JSON.
        requires: what the machine must have.
    """

    backend: str
    loader: str
    version: str
    precision: str
    files: tuple[str, ...]
    signature: Signature
    options: dict[str, Any]
    requires: Requirements

    def __post_init__(self) -> None:
        for name in ("backend", "loader"):
            value = getattr(self, name)
            _require(
                _IDENTIFIER.fullmatch(value) is not None,
                f"{name} = {value[:64]!r} is not an identifier of a-z, 0-9 and _",
            )
        _require(len(self.files) > 0, "files is empty")
        for path in self.files:
            check_path(path)
        _check_signature(self.signature)


def _check_signature(signature: Signature) -> None:
    names = [tensor.name for tensor in signature]
    _require(len(set(names)) == len(names), "the signature names a tensor twice")
    for tensor in signature:
        _require(_NAME.fullmatch(tensor.name) is not None, f"bad tensor name {tensor.name!r}")
        _require(
            tensor.dtype in DTYPES,
            f"dtype {tensor.dtype!r} of {tensor.name} is none of {', '.join(DTYPES)}",
        )
        _require(
            len(tensor.shape) <= _MAX_RANK
            and all(0 < size <= _MAX_ELEMENTS for size in tensor.shape)
            and math.prod(tensor.shape) <= _MAX_ELEMENTS,
            f"shape of {tensor.name} is out of bounds",
        )


@dataclass(frozen=True)
class Weights:
    """One file of weights, and where they came from (free JSON)."""

    path: str
    source: dict[str, Any]

    def __post_init__(self) -> None:
        check_path(self.path)


@dataclass(frozen=True)
class FileEntry:
    """Size in bytes and SHA-256, in lower-case hexadecimal, of one file."""

    size: int
    sha256: str

    def __post_init__(self) -> None:
        _require(self.size >= 0, f"size = {self.size} is negative")
        _require(
            _SHA256.fullmatch(self.sha256) is not None, f"{self.sha256[:80]!r} is not a SHA-256"
        )


@dataclass(frozen=True)
class Validation:
    """How the build's own validation went, and where in the bundle its report is.

    Attributes:
        passed: all gates did.
        gates: their number.
        report: its path.
        level: ``rollout``, ``component`` or ``none``.
        working_bytes: device memory that captured work kept; 0 where nothing is captured.
    """

    passed: bool
    gates: int
    report: str | None
    level: str
    working_bytes: int

    def __post_init__(self) -> None:
        for name in ("gates", "working_bytes"):
            _require(getattr(self, name) >= 0, f"{name} = {getattr(self, name)} is negative")
        if self.report is not None:
            check_path(self.report)


@dataclass(frozen=True)
class Manifest:
    """What a bundle is. ``files`` lists every file of the bundle but the manifest itself."""

    name: str
    preset: str
    family: str
    config: dict[str, Any]
    stream: StreamSpec
    target: Target
    engines: dict[str, Engine]
    weights: dict[str, Weights]
    files: dict[str, FileEntry]
    plugin_abi: int
    calibration: dict[str, Any] | None
    tools: dict[str, str]
    validation: Validation
    stages: dict[str, str]

    def __post_init__(self) -> None:
        for name in (*self.engines, *self.weights):
            _require(
                _NAME.fullmatch(name) is not None, f"bad name of an engine or weights: {name!r}"
            )
        for path in self.files:
            check_path(path)
        _require(MANIFEST_NAME not in self.files, f"files lists {MANIFEST_NAME} itself")
        for owner, paths in self._references():
            for path in paths:
                _require(path in self.files, f"{owner} refers to {path!r}, which files lacks")

    def _references(self) -> Iterable[tuple[str, tuple[str, ...]]]:
        yield from ((f"engine {name}", engine.files) for name, engine in self.engines.items())
        yield from ((f"weights {stem}", (item.path,)) for stem, item in self.weights.items())
        if self.validation.report is not None:
            yield "validation", (self.validation.report,)

    def to_json(self) -> dict[str, Any]:
        """The manifest as plain JSON values."""
        return {"schema": SCHEMA, **plain(self)}


def write_manifest(manifest: Manifest, bundle: Path) -> None:
    """Writes ``manifest.json`` into the folder ``bundle``; equal manifests give equal bytes.

    Raises:
        ValueError: the free JSON holds NaN or an infinity.
    """
    text = json.dumps(
        manifest.to_json(), sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False
    )
    (bundle / MANIFEST_NAME).write_text(text + "\n", encoding="utf-8", newline="\n")


def read_manifest(bundle: Path) -> Manifest:
    """Reads the manifest of the bundle in a folder; opens none of its other files.

    Raises:
        UsageError: ``VIDC-BUNDLE-NOT``, there is no such folder or it is no bundle.
        UnavailableError: ``VIDC-BUNDLE-SCHEMA``, it was written by a newer vidc.
        GateError: ``VIDC-BUNDLE-MALFORMED``, not JSON within bounds; ``VIDC-BUNDLE-FIELD``, a
            field is unknown, missing, mistyped or out of range; ``VIDC-BUNDLE-PATH``, a path
            leads out of the bundle or through a symbolic link; ``VIDC-BUNDLE-UNREADABLE``.
    """
    if not bundle.is_dir():
        raise UsageError(
            "VIDC-BUNDLE-NOT", f"there is no folder {bundle}", "give the folder of a built bundle"
        )
    try:
        schema, table = read_document(bundle, MANIFEST_NAME)
    except FileNotFoundError:
        raise UsageError(
            "VIDC-BUNDLE-NOT",
            f"{bundle} is not a bundle: it has no {MANIFEST_NAME}",
            "give the folder that vidc build printed; a build that did not finish leaves none",
        ) from None
    if schema > SCHEMA:
        raise UnavailableError(
            "VIDC-BUNDLE-SCHEMA",
            f"{bundle} has manifest schema {schema}; this vidc reads schema {SCHEMA}",
            "upgrade vidc to the version that built the bundle, or build it with this one",
        )
    manifest: Manifest = read(table, Manifest, "manifest")
    for path in manifest.files:
        refuse_links(bundle, path)
    return manifest


def read_document(folder: Path, name: str) -> tuple[int, dict[str, Any]]:
    """The JSON object in a file that says what else is in its folder, and its schema number.

    Raises:
        FileNotFoundError: there is no such file.
        GateError: ``VIDC-BUNDLE-MALFORMED``, not JSON within bounds; ``VIDC-BUNDLE-FIELD``, it is
            no object with a schema number; ``VIDC-BUNDLE-PATH``, a symbolic link;
            ``VIDC-BUNDLE-UNREADABLE``.
    """
    refuse_links(folder, name)
    try:
        value = _parse(_read_bytes(folder / name))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise unreadable(folder / name, error) from error
    except RecursionError:
        raise _malformed(name, "it is nested too deeply") from None
    except ValueError as error:
        raise _malformed(name, str(error)[:200]) from error
    where = name.removesuffix(".json")
    if not isinstance(value, dict):
        raise field_error(where, f"expected an object, found {type(value).__name__}")
    schema = value.pop("schema", None)
    if type(schema) is not int or schema < 1:
        raise field_error(f"{where}.schema", f"expected a number, found {str(schema)[:40]!r}")
    return schema, value


def refuse_links(bundle: Path, path: str) -> None:
    """Refuses a path of which any part below the bundle's folder is a symbolic link.

    Raises:
        GateError: ``VIDC-BUNDLE-PATH``, or ``VIDC-BUNDLE-UNREADABLE``.
    """
    file = bundle
    for part in PurePosixPath(path).parts:
        file /= part
        try:
            is_link = file.is_symlink()
        except OSError as error:
            raise unreadable(file, error) from error
        if is_link:
            raise GateError(
                "VIDC-BUNDLE-PATH",
                f"{file} is a symbolic link; a bundle holds plain files alone",
                "copy the bundle with links resolved (cp -rL)",
            )


def unreadable(file: Path, error: OSError) -> GateError:
    """A ``VIDC-BUNDLE-UNREADABLE`` error: the operating system does not let ``file`` be read."""
    return GateError(
        "VIDC-BUNDLE-UNREADABLE",
        f"{file} cannot be read: {error.strerror}",
        "check the file's permissions and the disk",
    )


def _read_bytes(file: Path) -> bytes:
    if not stat.S_ISREG(file.stat().st_mode):
        raise ValueError("it is not a file")
    with file.open("rb") as stream:
        data = stream.read(MAX_MANIFEST_BYTES + 1)
    if len(data) > MAX_MANIFEST_BYTES:
        raise ValueError(f"it is larger than {MAX_MANIFEST_BYTES} bytes")
    return data


def _malformed(name: str, what: str) -> GateError:
    return GateError("VIDC-BUNDLE-MALFORMED", f"{name} cannot be read: {what}", _REBUILD)


def _parse(data: bytes) -> Any:
    value = json.loads(
        data.decode("utf-8"),
        object_pairs_hook=_object,
        parse_int=_integer,
        parse_float=_number,
        parse_constant=_number,
    )
    _check_plain(value, _MAX_DEPTH)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for key, item in pairs:
        if key in value:
            raise ValueError(f"the key {key[:64]!r} is there twice")
        value[key] = item
    return value


def _integer(digits: str) -> int:
    value = int(digits) if len(digits) <= 20 else _MAX_INT + 1
    if abs(value) > _MAX_INT:
        raise ValueError(f"the integer {digits[:24]} does not fit 64 bits")
    return value


def _number(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits[:24]} is not a finite number")
    return value


def _check_plain(value: Any, depth: int) -> None:
    """Bounds the nesting, and refuses strings that UTF-8 cannot hold (lone surrogates)."""
    if depth == 0:
        raise ValueError(f"it is nested deeper than {_MAX_DEPTH} levels")
    if isinstance(value, str):
        value.encode()
    elif isinstance(value, dict):
        for key, item in value.items():
            key.encode()
            _check_plain(item, depth - 1)
    elif isinstance(value, list):
        for item in value:
            _check_plain(item, depth - 1)
