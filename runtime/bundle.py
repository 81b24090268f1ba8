"""A loaded bundle: engines and weights, and the sessions that share them."""

from collections.abc import Mapping
from pathlib import Path
from threading import Lock

import torch

from vidc.plugins.errors import UnavailableError
from vidc.plugins.names import TOKENIZER
from vidc.runtime import integrity, manifest
from vidc.runtime.compatibility import check
from vidc.runtime.engines import Engine, capturable, loader
from vidc.runtime.faults import gpu_faults
from vidc.runtime.lane import GraphLane, WarmLane
from vidc.runtime.memory import require_memory
from vidc.runtime.session import DIRECT, Lanes, Session
from vidc.runtime.states import shared_states
from vidc.runtime.stream import StreamSpec
from vidc.runtime.strict import field_error
from vidc.runtime.text import TextEncoder
from vidc.runtime.weights import Weights

TEXT_ENCODER = "text_encoder"
NOT_IN_STREAM = frozenset({TEXT_ENCODER, "vae_encode_first", "vae_encode"})
"""Components that a stream does not replay."""


class Bundle:
    """Engines that sessions share. Made by ``load``."""

    def __init__(
        self,
        stream: StreamSpec,
        engines: Mapping[str, Engine],
        device: torch.device,
        text_encoder: TextEncoder | None = None,
        notes: tuple[str, ...] = (),
        captured: bool = True,
    ) -> None:
        self.stream = stream
        self.engines = engines
        self.device = device
        self.notes = notes
        """What the user should know: works here, but was built for something else."""
        self._text_encoder = text_encoder
        self._lock = Lock()
        self.lanes = DIRECT
        """Where the work of all sessions runs."""
        if device.type == "cuda":
            lane = GraphLane if captured else WarmLane
            self.lanes = Lanes(lane(device), lane(device))

    def working_bytes(self) -> int:
        """Device memory that the captured work of all sessions keeps; grows with the first one."""
        lanes = {self.lanes.latents, self.lanes.frames}
        return sum(lane.working_bytes for lane in lanes)

    def session(self, seed: int = 0) -> Session:
        """Opens a stream with states of its own.

        Raises:
            UnavailableError: ``VIDC-SESSION-MEMORY``, its states do not fit the device;
                ``VIDC-GPU-LOST``.
        """
        engines = {n: engine for n, engine in self.engines.items() if n not in NOT_IN_STREAM}
        try:
            with gpu_faults(self.device):
                return Session(
                    self.stream,
                    engines,
                    self.device,
                    self._lock,
                    self._text_encoder,
                    seed,
                    self.lanes,
                )
        except (MemoryError, RuntimeError, UnavailableError) as error:
            if not _is_out_of_memory(error):
                raise
            reason = error.message if isinstance(error, UnavailableError) else error
            raise UnavailableError(
                "VIDC-SESSION-MEMORY",
                f"one more session does not fit on {self.device}: {reason}",
                "drop what refers to a session that has ended, or build with a smaller window",
            ) from error


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, UnavailableError):
        return error.code == "VIDC-GPU-MEMORY"
    # On a CPU, torch has no exception of its own for it.
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(
        error
    )


def load(path: Path | str, verify: integrity.VerifyMode = "fast") -> Bundle:
    """Opens a bundle: checks it against its manifest and this machine, loads its engines.

    Args:
        path: the bundle's folder.
        verify: ``full`` hashes every file, ``fast`` compares sizes and hashes small
            files, ``off`` trusts the folder.

    Raises:
        GateError: ``VIDC-BUNDLE-FIELD``, a component that the stream needs has no engine, or
            engines disagree on a state.
        UnavailableError: ``VIDC-GPU-MEMORY``, the GPU has too little memory; ``VIDC-GPU-LOST``.
        VidcError: what ``read_manifest``, ``verify``, ``check`` and the engine loaders raise.
    """
    folder = Path(path)
    document = manifest.read_manifest(folder)
    integrity.verify(folder, document, verify)
    device = torch.device(document.target.device_type)
    notes = check(document, device)
    _require_stream(document)
    with gpu_faults(device):
        if device.type == "cuda":
            in_stream = [name for name in document.engines if name not in NOT_IN_STREAM]
            require_memory(document, in_stream, device)
        return _loaded(folder, document, device, notes)


def _loaded(
    folder: Path, document: manifest.Manifest, device: torch.device, notes: tuple[str, ...]
) -> Bundle:
    files = {stem: folder / entry.path for stem, entry in document.weights.items()}
    weights = Weights(files, device)
    engines = {
        name: loader(entry.loader)(folder, entry, weights, device)
        for name, entry in document.engines.items()
    }
    encoder = engines.get(TEXT_ENCODER)
    text = None if encoder is None else TextEncoder(encoder, folder / TOKENIZER, device)
    captured = all(capturable(entry.loader) for entry in document.engines.values())
    return Bundle(document.stream, engines, device, text, notes, captured)


def _require_stream(document: manifest.Manifest) -> None:
    """Refuses a bundle that would fail in the midst of a stream."""
    missing = [name for name in document.stream.components if name not in document.engines]
    if missing:
        raise field_error(
            "manifest.engines", f"{', '.join(missing)} of the stream's components are missing"
        )
    shared_states(
        engine.signature for name, engine in document.engines.items() if name not in NOT_IN_STREAM
    )
