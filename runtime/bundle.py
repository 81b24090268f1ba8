"""A loaded bundle: engines and weights, and the sessions that share them."""

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, RLock
from typing import Any, Self
from weakref import WeakSet

import torch

from vidc.plugins.errors import GateError, UnavailableError, UsageError, VidcError
from vidc.runtime import integrity, manifest
from vidc.runtime.compatibility import check, other_arithmetic, other_versions
from vidc.runtime.engines import Engine, capturable, loader
from vidc.runtime.faults import gpu_faults
from vidc.runtime.files import Files
from vidc.runtime.graphs import Runners
from vidc.runtime.guard import is_forked, isolated, require_own_process
from vidc.runtime.inputs import here
from vidc.runtime.memory import require_memory
from vidc.runtime.program import program
from vidc.runtime.programs.base import Resources, Session
from vidc.runtime.record import compare_record
from vidc.runtime.states import shared_states
from vidc.runtime.strict import field_error
from vidc.runtime.weights import Weights


class Bundle:
    """Engines and weights that sessions share. Made by ``load``.

    Args:
        program: session class of the bundle's program.
        resources: objects that its sessions share.
        notes: messages for the user about parts that work here but were built for something else.
    """

    def __init__(
        self, program: type[Session[Any]], resources: Resources, notes: tuple[str, ...] = ()
    ) -> None:
        self.program = program
        self.notes = notes
        self._resources: Resources | None = resources
        self._sessions: WeakSet[Session[Any]] = WeakSet()
        self._closing = RLock()

    @property
    def resources(self) -> Resources:
        """Objects that sessions share.

        Raises:
            UsageError: ``VIDC-BUNDLE-CLOSED``.
        """
        if self._resources is None:
            raise UsageError(
                "VIDC-BUNDLE-CLOSED", "the bundle is closed", "load it again: vidc.runtime.load"
            )
        return self._resources

    @property
    def spec(self) -> Any:
        """The program's parameters, an instance of its class ``Spec``."""
        return self.resources.spec

    @property
    def engines(self) -> Mapping[str, Engine]:
        """The engines by component."""
        return self.resources.engines

    @property
    def device(self) -> torch.device:
        """The device that the engines run on."""
        return self.resources.device

    @property
    def runners(self) -> Runners:
        """The runners that all sessions share."""
        return self.resources.runners

    def working_bytes(self) -> int:
        """Bytes of device memory that captured graphs keep.

        The first session allocates them, and the first prompt switch of each length.
        """
        return self.runners.working_bytes

    def session(self, seed: int = 0, decoder: str | None = None) -> Any:
        """Opens a session with its own states.

        Args:
            seed: of the noise.
            decoder: one of ``spec.decoders``; the first by default.

        Raises:
            UnavailableError: ``VIDC-SESSION-MEMORY``, its states do not fit on the device;
                ``VIDC-GPU-LOST``; ``VIDC-SESSION-FORK``.
            UsageError: ``VIDC-BUNDLE-CLOSED``; ``VIDC-SESSION-NUMBER``, the seed is not from 0 to
                ``2**63 - 1``; ``VIDC-SESSION-DECODER``, there is no decoder of this name.
        """
        resources = self.resources
        resources = replace(resources, spec=resources.spec.with_decoder(decoder))
        try:
            with gpu_faults(resources.device):
                session = self.program(resources, seed)
        except (MemoryError, RuntimeError, UnavailableError) as error:
            if not _is_out_of_memory(error):
                raise
            reason = error.message if isinstance(error, UnavailableError) else error
            raise UnavailableError(
                "VIDC-SESSION-MEMORY",
                f"one more session does not fit on {resources.device}: {reason}",
                "close a session that has ended, or build with a smaller window",
            ) from error
        with self._closing:
            if self._resources is not None:
                self._sessions.add(session)
                return session
        session.close()
        return self.resources  # Raises: another thread closed the bundle meanwhile.

    def close(self) -> None:
        """Closes the bundle's sessions and drops its engines and weights.

        Does nothing in a forked child, which shares them with its parent.

        Raises:
            UsageError: ``VIDC-SESSION-BUSY``, another thread is in a call of a session.
        """
        if is_forked():
            return
        with self._closing:
            for session in [*self._sessions]:
                session.close()
            self._resources = None

    def __enter__(self) -> Self:
        self.resources  # noqa: B018  Refuses a closed bundle.
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, UnavailableError):
        return error.code == "VIDC-GPU-MEMORY"
    # On a CPU, torch raises a plain RuntimeError.
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(
        error
    )


def load(
    path: Path | str,
    verify: integrity.VerifyMode = "full",
    *,
    trust: Path | str | Iterable[Path | str] | None = None,
    digest: str | None = None,
) -> Bundle:
    """Checks a bundle against its manifest and this machine, and loads its engines.

    On a machine of several GPUs, they are loaded on the current one and stay there.

    AOTInductor and TensorRT engines are native code: loading them runs code of the bundle's maker.
    If a build replaces the bundle meanwhile, the new one is loaded.

    Args:
        path: the bundle's folder.
        verify: ``full`` hashes every file. ``fast`` hashes code, graphs and small files, and
            compares the rest, such as weights, by size alone: it does not find changed weights.
            ``off`` trusts the folder.
        trust: files of Ed25519 public keys in PEM; refuses a bundle that none of them signed.
        digest: of the manifest, as ``vidc build`` prints it; refuses any other bundle.

    Raises:
        GateError: ``VIDC-BUNDLE-FIELD``, a component of the program has no engine, engines
            disagree on a state, or the program's parameters are not those of the engines;
            ``VIDC-BUNDLE-RECORD``, the manifest changed after the validation;
            ``VIDC-BUNDLE-UNVALIDATED``, its validation did not pass.
        UnavailableError: ``VIDC-GPU-MEMORY``, the GPU has too little memory; ``VIDC-GPU-LOST``;
            ``VIDC-SESSION-FORK``, this process was forked from one that had loaded a bundle.
        UsageError: ``VIDC-BUNDLE-NOT``; ``VIDC-TRUST-KEY``, ``trust`` is not files;
            ``VIDC-TRUST-VERIFY``, ``trust`` or ``digest`` without ``full``.
        VidcError: as raised by ``read_manifest``, ``require_signature``, ``verify``, ``check`` and
            the engine loaders.
    """
    require_own_process()
    folder = _path(path, "VIDC-BUNDLE-NOT", "path")
    keys: tuple[Path, ...] | None = None
    if trust is not None:
        files = trust if isinstance(trust, Iterable) and not isinstance(trust, str) else [trust]
        keys = tuple(_path(file, "VIDC-TRUST-KEY", "trust") for file in files)
    while True:
        found = _identity(folder)
        try:
            bundle = _load(folder, verify, keys, digest)
        except VidcError:
            if _identity(folder) == found:
                raise
        else:
            if _identity(folder) == found:
                return bundle
            bundle.close()


def _path(value: Any, code: str, name: str) -> Path:
    """Returns an argument as a path."""
    try:
        return Path(value)
    except TypeError as error:
        found = f"{name} is a {type(value).__name__}, expected a str or a Path"
        raise UsageError(code, found, f"such as {name}='out/demo'") from error


def _identity(folder: Path) -> tuple[int, ...] | None:
    """Returns numbers that change when a build replaces a folder; None if it is missing."""
    try:
        status = folder.stat()
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


def _load(
    folder: Path,
    verify: integrity.VerifyMode,
    trust: tuple[Path, ...] | None,
    digest: str | None,
) -> Bundle:
    """Loads a bundle once. ``load`` calls it again if a build replaced the bundle meanwhile."""
    document = manifest.read_manifest(folder)
    _require_trusted(document, verify, trust, digest)
    device = torch.device(document.target.device_type)
    compared = None if verify == "off" else document.files
    with Files(folder, compared) as files, ExitStack() as opened:
        with _comparing(folder, files, document, verify):
            notes = check(document, device)
            _require_engines(document)
            notes += other_versions(document) + other_arithmetic()
            if verify != "off":
                compare_record(files, document)
                _require_passed(document)
            with gpu_faults(device), isolated(device):
                device = here(device)
                if device.type == "cuda":
                    require_memory(document, device)
                bundle = opened.enter_context(_loaded(files, document, device, notes))
        files.refuse_changes()
        opened.pop_all()  # All files match: the bundle stays open.
    return bundle


def _require_trusted(
    document: manifest.Manifest,
    verify: str,
    trust: tuple[Path, ...] | None,
    digest: str | None,
) -> None:
    """Refuses a manifest with another digest, or without a trusted signature."""
    if trust is None and digest is None:
        return
    if verify != "full":
        raise UsageError(
            "VIDC-TRUST-VERIFY",
            f"verify={verify!r} does not hash every file, so no signature or digest covers them",
            "leave verify out",
        )
    if digest is not None and document.digest != str(digest).strip().lower():
        raise GateError(
            "VIDC-TRUST-DIGEST",
            f"{document.name} has digest {document.digest}, expected {str(digest)[:80]}",
            "it is another bundle, or it was changed: copy it again from where it was built",
        )
    if trust is not None:
        from vidc.runtime.trust import require_signature

        require_signature(document, trust)


@contextmanager
def _comparing(
    folder: Path, files: Files, document: manifest.Manifest, verify: integrity.VerifyMode
) -> Iterator[None]:
    """Compares the folder with its manifest; hashes files in a thread while the block runs.

    Leaves out the files of engines: loaders hash code before they run it. If a file differs, its
    error is raised, also if the block fails. An interrupt does not wait for the hashing.
    """
    integrity.require_mode(verify)
    if verify == "off":
        yield
        return
    integrity.compare_names(folder, manifest.MANIFEST_NAME, document.files)
    loaded = {path for engine in document.engines.values() for path in engine.files}
    rest = {path: entry for path, entry in document.files.items() if path not in loaded}
    for path in rest:
        files.name(path)  # Opens it: the thread and the block share open files.
    stop = Event()
    with ThreadPoolExecutor(1, "vidc-hash") as pool:
        comparing = pool.submit(integrity.compare_files, files, rest, verify, stop)
        try:
            yield
        except Exception:
            comparing.result()  # A file that differs explains the failure better.
            raise
        else:
            comparing.result()
        finally:
            stop.set()  # Ends the hashing after an interrupt.


def _loaded(
    files: Files, document: manifest.Manifest, device: torch.device, notes: tuple[str, ...]
) -> Bundle:
    weights = Weights({n: files.name(entry.path) for n, entry in document.weights.items()}, device)
    engines = {
        name: loader(entry.loader)(files, entry, weights, device)
        for name, entry in document.engines.items()
    }
    session = program(document.program)
    captured = all(capturable(entry.loader) for entry in document.engines.values())
    resources = Resources(
        document.spec,
        engines,
        device,
        Runners.on(device, captured),
        session.share(files, engines, device),
    )
    return Bundle(session, resources, notes)


def _require_engines(document: manifest.Manifest) -> None:
    """Refuses engines that are missing, disagree, or are not those of the program's spec."""
    components, engines = document.spec.components, document.engines
    missing = [name for name in components if name not in engines]
    if missing:
        raise field_error(
            "manifest.engines",
            f"{', '.join(missing)} of the components of program {document.program} are missing",
        )
    signatures = {name: engine.signature for name, engine in engines.items()}
    shared_states(signatures[name] for name in components)
    try:
        document.spec.check(signatures)
    except ValueError as error:
        raise field_error("manifest.spec", str(error)) from error


def _require_passed(document: manifest.Manifest) -> None:
    if not document.validation.passed:
        raise GateError(
            "VIDC-BUNDLE-UNVALIDATED",
            f"{document.name} did not pass the validation of its build",
            "build the bundle again, and see the report of the gates that fail",
        )
