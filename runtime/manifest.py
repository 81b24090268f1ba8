"""The manifest of a bundle: its contents and its files.

A manifest is untrusted input: ``read_manifest`` raises a VidcError for anything but exactly
schema 2.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vidc.plugins.errors import UnavailableError, UsageError
from vidc.plugins.signature import DTYPES, Signature
from vidc.runtime.document import (
    FileEntry,
    check_path,
    check_sha256,
    read_document,
    refuse_links,
    unreadable,
)
from vidc.runtime.program import spec_class
from vidc.runtime.strict import plain, read

SCHEMA = 2
MANIFEST_NAME = "manifest.json"
CHUNK_BYTES = 64 * 2**20
"""Larger files have a digest for each chunk of this size, so that chunks hash in parallel."""

_MAX_ELEMENTS = 2**48
_MAX_RANK = 8

_IDENTIFIER = re.compile(r"[a-z0-9_]{1,64}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_HEXADECIMAL = re.compile(r"[0-9a-f]+")
_CAPABILITY = re.compile(r"[0-9]{1,2}\.[0-9]")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


@dataclass(frozen=True)
class Target:
    """The machine that the engines are built for.

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
        """Type of the engines' torch device: ``cuda`` or ``cpu``."""
        return "cpu" if self.compute_capability is None else "cuda"


@dataclass(frozen=True)
class Requirements:
    """An engine's requirements of the machine, besides the target's device.

    Attributes:
        torch: minimum release, the one that built the engine; None if it does not call libtorch.
        cpu_features: instruction sets of its code, as ``torch.cpu.get_capabilities()`` names them.
        operators: operators of ``vidc.plugins.engine_operators`` that it calls; their GPU kernels
            come from the kernel library with the manifest's ``plugin_abi``.
        compute_capabilities: of the GPUs that it supports; empty means only the target's.
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
"""Requirements of an engine without native code."""


@dataclass(frozen=True)
class Engine:
    """One component as built by a backend.

    Attributes:
        backend: the backend that built it.
        loader: the module of ``vidc.runtime.engines`` that loads it.
        version: version of the tool that built it.
        precision: precision of its weights and matmuls.
        files: paths in the bundle; the first one is the file to open.
        signature: its inputs, outputs and states.
        options: options of the loader, free JSON.
        requires: requirements of the machine.
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
    """One file of weights, and their source (free JSON)."""

    path: str
    source: dict[str, Any]

    def __post_init__(self) -> None:
        check_path(self.path)


@dataclass(frozen=True)
class BundleFile(FileEntry):
    """One file of a bundle.

    Attributes:
        chunks: SHA-256 of each ``CHUNK_BYTES`` of a larger file, the last one shorter.
    """

    chunks: tuple[str, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        for digest in self.chunks:
            check_sha256(digest)
        expected = -(-self.size // CHUNK_BYTES) if self.size > CHUNK_BYTES else 0
        found = len(self.chunks)
        _require(found == expected, f"{found} chunks, {self.size} bytes have {expected}")


@dataclass(frozen=True)
class Validation:
    """Result of the build's validation, and the path of its report in the bundle.

    Attributes:
        passed: True if all gates passed.
        gates: number of gates.
        report: path in the bundle.
        level: ``rollout``, ``component`` or ``none``.
        working_bytes: device memory that captured graphs kept; 0 without capture.
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
class Seal:
    """Cryptographic signature of a manifest.

    Attributes:
        key: the signer's raw Ed25519 public key, 32 bytes in hexadecimal.
        value: the Ed25519 signature of ``Manifest.signed``, 64 bytes in hexadecimal.
    """

    key: str
    value: str

    def __post_init__(self) -> None:
        for name, size in (("key", 64), ("value", 128)):
            text = getattr(self, name)
            _require(
                len(text) == size and _HEXADECIMAL.fullmatch(text) is not None,
                f"{name} is not {size} characters of 0-9 and a-f",
            )


@dataclass(frozen=True)
class Manifest:
    """Description of a bundle.

    Attributes:
        name: of the bundle, for people.
        preset: of the build.
        family: of the model.
        program: program of its sessions, by its name for ``vidc.runtime.program``.
        spec: the program's parameters, of its class ``Spec``.
        config: resolved configuration of the build, free JSON.
        target: the machine that the engines are built for.
        engines: by component.
        weights: by group.
        files: every file of the bundle except the manifest.
        plugin_abi: ``PLUGIN_ABI`` of the operators that engines call.
        calibration: source of the scales, free JSON; None without calibration.
        tools: versions of the tools that built it.
        validation: result of the build's validation.
        stages: key of each stage of the build.
        signature: cryptographic signature of all other fields; None if the bundle is not signed.
    """

    name: str
    preset: str
    family: str
    program: str
    spec: Any
    config: dict[str, Any]
    target: Target
    engines: dict[str, Engine]
    weights: dict[str, Weights]
    files: dict[str, BundleFile]
    plugin_abi: int
    calibration: dict[str, Any] | None
    tools: dict[str, str]
    validation: Validation
    stages: dict[str, str]
    signature: Seal | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of the bundle's weights, of its golden data, and of all other files: engines."""
        sizes = {"weights": 0, "golden data": 0, "engines": 0}
        for path, file in self.files.items():
            folder = path.partition("/")[0]
            kind = {"weights": "weights", "golden": "golden data"}.get(folder, "engines")
            sizes[kind] += file.size
        return sizes

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
        """Returns the manifest as plain JSON values."""
        return {"schema": SCHEMA, **plain(self)}

    @property
    def signed(self) -> bytes:
        """The bytes that a signature covers: all fields but the signature."""
        return canonical({**self.to_json(), "signature": None})

    @property
    def digest(self) -> str:
        """SHA-256 of ``signed``: of every field, and through ``files`` of every file."""
        return hashlib.sha256(self.signed).hexdigest()


def canonical(value: Any) -> bytes:
    """Returns the bytes of plain JSON values; equal values give equal bytes.

    Raises:
        ValueError: a number is NaN or infinite.
    """
    text = json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
    return f"{text}\n".encode()


def digest(value: Any) -> str:
    """Returns the SHA-256 of plain JSON values."""
    return hashlib.sha256(canonical(value)).hexdigest()


def write_manifest(manifest: Manifest, bundle: Path) -> None:
    """Writes ``manifest.json`` into ``bundle``; equal manifests give equal bytes.

    Raises:
        ValueError: the free JSON has NaN or infinity.
    """
    (bundle / MANIFEST_NAME).write_bytes(canonical(manifest.to_json()))


def _is_folder(path: Path) -> bool:
    """Returns True for a folder; raises VIDC-BUNDLE-UNREADABLE where the system refuses to look."""
    try:
        return path.is_dir()
    except OSError as error:
        raise unreadable(path, error) from error
    except ValueError:  # A name with a null character, or one that cannot be encoded.
        return False


def read_manifest(bundle: Path) -> Manifest:
    """Reads the manifest in a bundle's folder; opens no other file.

    Raises:
        UsageError: ``VIDC-BUNDLE-NOT``, the folder does not exist or is not a bundle.
        UnavailableError: ``VIDC-BUNDLE-SCHEMA``, a newer or older vidc wrote it;
            ``VIDC-BUNDLE-PROGRAM``, its program is not installed.
        GateError: ``VIDC-BUNDLE-MALFORMED``, not JSON within bounds; ``VIDC-BUNDLE-FIELD``, a
            field is unknown, missing, mistyped or out of range; ``VIDC-BUNDLE-PATH``, a path
            leads out of the bundle or through a symbolic link; ``VIDC-BUNDLE-UNREADABLE``.
    """
    if not _is_folder(bundle):
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
    if schema != SCHEMA:
        newer = "upgrade vidc to the version that built the bundle, or build it with this one"
        raise UnavailableError(
            "VIDC-BUNDLE-SCHEMA",
            f"{bundle} has manifest schema {schema}; this vidc reads schema {SCHEMA}",
            newer if schema > SCHEMA else "build the bundle again with this vidc",
        )
    untyped: Manifest = read(table, Manifest, "manifest")
    spec = read(untyped.spec, spec_class(untyped.program), "manifest.spec")
    manifest = replace(untyped, spec=spec)
    for path in manifest.files:
        refuse_links(bundle, path)
    return manifest
