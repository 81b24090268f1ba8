"""Base of programs: a session's states, static buffers and graphs over a bundle's engines."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Never, Self, TypeVar

import torch
from torch import Tensor

from vidc.plugins.errors import UsageError
from vidc.plugins.signature import Signature, TensorSpec
from vidc.runtime.engines import Engine
from vidc.runtime.files import Files
from vidc.runtime.graphs import DIRECT, Runners
from vidc.runtime.states import Buffers, States


@dataclass(frozen=True)
class ProgramSpec:
    """Base class of a program's parameters, stored in a bundle's manifest.

    A subclass is a frozen dataclass of JSON values and tuples. It raises ValueError for a value
    out of range.
    """

    @property
    def components(self) -> tuple[str, ...]:
        """Components that a session runs, in the order of first use."""
        raise NotImplementedError

    def check(self, signatures: Mapping[str, Signature]) -> None:
        """Compares the parameters with the engines' tensors.

        Args:
            signatures: by component, of every engine of the bundle.

        Raises:
            ValueError: a tensor that the program uses is missing or has another shape.
        """

    def smaller(self, states: Iterable[TensorSpec], needed: int, available: int) -> str:
        """Returns a hint for a smaller build that fits the device, or an empty string.

        Args:
            states: of a session.
            needed: bytes that the bundle needs with one session.
            available: bytes that the device has.
        """
        return ""


S = TypeVar("S", bound=ProgramSpec)


@dataclass(frozen=True)
class Resources:
    """Objects shared by the sessions of one bundle.

    Attributes:
        spec: of the program, of its class ``Spec``.
        engines: by component; a session runs those that the spec names.
        device: of the engines and of every buffer.
        runners: of the sessions' work.
        shared: the result of the program's ``share``.
        lock: held by the session that enqueues work.
    """

    spec: Any
    engines: Mapping[str, Engine]
    device: torch.device
    runners: Runners = DIRECT
    shared: Any = None
    lock: Lock = field(default_factory=Lock)


class Session(Generic[S]):
    """One stream or clip: its own states and buffers over the bundle's engines and weights.

    Made by ``Bundle.session``. A program implements ``_allocate``, ``_capture``, ``_clear`` and
    ``step``. Opening a session allocates all memory and, on a GPU, captures all work; ``reset``
    restarts it. Any use of a closed session except ``close`` raises VIDC-SESSION-CLOSED.
    """

    Spec: ClassVar[type[ProgramSpec]]

    @classmethod
    def share(cls, files: Files, engines: Mapping[str, Engine], device: torch.device) -> Any:
        """Returns the program's own shared object; called when a bundle is loaded."""
        return None

    def __init__(self, resources: Resources, seed: int = 0) -> None:
        self._resources = resources
        self.spec: S = resources.spec
        self.seed = seed
        found = {n: resources.engines[n] for n in self.spec.components if n in resources.engines}
        self._states = States((engine.signature for engine in found.values()), resources.device)
        self._buffers = {n: Buffers(e.signature, resources.device) for n, e in found.items()}
        self._allocate(resources.device)
        with resources.lock:
            self._capture(resources.runners)
        self.reset(seed)

    def _allocate(self, device: torch.device) -> None:
        """Allocates buffers besides those of the engines."""

    def _capture(self, runners: Runners) -> None:
        """Prepares the session's work on its runners."""

    def _clear(self) -> None:
        """Sets all state between steps to its initial values, for ``self.seed``."""
        self._states.clear()

    def step(self) -> Tensor:
        """Generates the next frames: uint8 ``[frames, H, W, 3]`` on the device."""
        raise NotImplementedError

    def stream(self, blocks: int) -> Iterator[Tensor]:
        """Yields the results of ``blocks`` calls of ``step``."""
        for _ in range(blocks):
            yield self.step()

    def reset(self, seed: int = 0) -> None:
        """Restarts the session with a seed, without capture or allocation."""
        with self._resources.lock, self._resources.runners.turn():
            self.seed = seed
            self._clear()

    def close(self) -> None:
        """Frees states, buffers and graphs after all queued work is done."""
        if "_resources" not in vars(self):
            return
        device = self._resources.device
        with self._resources.lock:
            if device.type == "cuda":
                with suppress(RuntimeError):  # A lost device cannot synchronize.
                    torch.cuda.synchronize(device)
            vars(self).clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Never:
            """Refuses use after ``close``, which removes all attributes."""
            if "_resources" in vars(self):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            raise UsageError(
                "VIDC-SESSION-CLOSED",
                "the session is closed, or its bundle is",
                "open another one: bundle.session(seed=...)",
            )

    @contextmanager
    def _turn(self, runner: str, after_caller: bool = True) -> Iterator[None]:
        """Puts work inside the block on a runner, exclusively for this session."""
        with self._resources.lock, self._resources.runners[runner].turn(after_caller):
            yield

    def _run(self, component: str) -> None:
        """Runs a component over the session's buffers and states."""
        self._resources.engines[component].run(self._buffers[component], self._states)
