"""The base of programs: one session's states, static buffers and graphs over a bundle's engines."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Never, Self, TypeVar

import torch
from torch import Tensor

from vidc.plugins.errors import UsageError
from vidc.plugins.signature import TensorSpec
from vidc.runtime.engines import Engine
from vidc.runtime.graphs import DIRECT, Runners
from vidc.runtime.states import Buffers, States


@dataclass(frozen=True)
class ProgramSpec:
    """Base of what a program needs to know besides its engines; it is in a bundle's manifest.

    A subclass is a frozen dataclass of JSON values and tuples. It raises ValueError where one is
    out of range.
    """

    @property
    def components(self) -> tuple[str, ...]:
        """Components that a session runs, in the order of first use."""
        raise NotImplementedError

    def smaller(self, states: Iterable[TensorSpec], needed: int, available: int) -> str:
        """Says which smaller build would fit a device, if the program knows one.

        Args:
            states: of a session.
            needed: bytes of the bundle with one session.
            available: bytes of the device.
        """
        return ""


S = TypeVar("S", bound=ProgramSpec)


@dataclass(frozen=True)
class Resources:
    """What the sessions of one bundle share.

    Attributes:
        spec: of the program, of its class ``Spec``.
        engines: by component; a session runs those that the spec names.
        device: of the engines and of every buffer.
        runners: where sessions' work runs.
        shared: what the program's ``share`` made.
        lock: one session at a time gives work to the device.
    """

    spec: Any
    engines: Mapping[str, Engine]
    device: torch.device
    runners: Runners = DIRECT
    shared: Any = None
    lock: Lock = field(default_factory=Lock)


class Session(Generic[S]):
    """One stream or clip: states and buffers of its own, the bundle's engines and weights.

    Made by ``Bundle.session``. A program implements ``_allocate``, ``_capture``, ``_clear`` and
    ``step``. All memory is allocated and, on a GPU, all work captured when a session opens;
    ``reset`` makes it as new. A closed session refuses everything with VIDC-SESSION-CLOSED.
    """

    Spec: ClassVar[type[ProgramSpec]]

    @classmethod
    def share(cls, folder: Path, engines: Mapping[str, Engine], device: torch.device) -> Any:
        """Makes what sessions share besides engines, when a bundle is loaded from its folder."""
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
        """Sets what a session keeps from step to step to its first values, for ``self.seed``."""
        self._states.clear()

    def step(self) -> Tensor:
        """Generates the next frames: uint8 ``[frames, H, W, 3]`` on the device."""
        raise NotImplementedError

    def stream(self, blocks: int) -> Iterator[Tensor]:
        """Yields what ``step`` returns, so many times."""
        for _ in range(blocks):
            yield self.step()

    def reset(self, seed: int = 0) -> None:
        """Makes the session as new under a seed: nothing is captured or allocated."""
        with self._resources.lock, self._resources.runners.turn():
            self.seed = seed
            self._clear()

    def close(self) -> None:
        """Frees states, buffers and graphs, once the device has done what it was given."""
        if "_resources" not in vars(self):
            return
        device = self._resources.device
        with self._resources.lock:
            if device.type == "cuda":
                with suppress(RuntimeError):  # A lost device has nothing to wait for.
                    torch.cuda.synchronize(device)
            vars(self).clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Never:
            """Refuses use after ``close``, which leaves a session without attributes."""
            if "_resources" in vars(self):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            raise UsageError(
                "VIDC-SESSION-CLOSED",
                "the session is closed, or its bundle is",
                "open another one: bundle.session(seed=...)",
            )

    @contextmanager
    def _turn(self, runner: str, after_caller: bool = True) -> Iterator[None]:
        """Runs what is done inside on a runner, while no other session gives work to it."""
        with self._resources.lock, self._resources.runners[runner].turn(after_caller):
            yield

    def _run(self, component: str) -> None:
        """Runs a component over the session's buffers and states."""
        self._resources.engines[component].run(self._buffers[component], self._states)
