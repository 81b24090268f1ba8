"""Base of programs: a session's states, static buffers and graphs over a bundle's engines."""

from collections.abc import Callable, Iterable, Iterator, Mapping
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

LATENTS, FRAMES = "latents", "frames"
"""Runners that generate and that decode; decoding may overlap the next block."""


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

    @property
    def prompt_shape(self) -> tuple[int, ...]:
        """Shape of a prompt's embeddings, ``[videos, L, E]``; empty where there are no prompts."""
        return ()

    @property
    def videos(self) -> int:
        """Videos that a session generates side by side."""
        return 1

    @property
    def latent_frames(self) -> int:
        """Latent frames of a block."""
        return 1

    @property
    def video_frames(self) -> int:
        """Video frames of any block but the first."""
        return 1

    @property
    def filling(self) -> int:
        """Blocks after which a block's work no longer grows."""
        return 1

    @property
    def full_inputs(self) -> Mapping[str, float]:
        """Values of the inputs that say how far a session is, after ``filling`` blocks."""
        return {}

    @property
    def calls(self) -> Mapping[str, Mapping[str, int]]:
        """Calls of each component by action: ``block``, the name of decoding, and ``switch``."""
        raise NotImplementedError

    @property
    def noise_shape(self) -> tuple[int, ...]:
        """Shape of the explicit noise of a block; the first dimension counts denoising steps."""
        raise NotImplementedError

    @property
    def frame_size(self) -> tuple[int, int]:
        """Height and width of a video frame."""
        raise NotImplementedError

    @property
    def workload(self) -> dict[str, Any]:
        """Sizes that decide the time of a block, as JSON values."""
        return {"height": self.frame_size[0], "width": self.frame_size[1]}

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

    Made by ``Bundle.session``. A program implements ``_allocate``, ``_capture``, ``_clear``,
    ``generate`` and ``decode``. Opening a session allocates all memory and, on a GPU, captures all
    work; ``reset`` restarts it. Any use of a closed session except ``close`` raises
    VIDC-SESSION-CLOSED.

    Attributes:
        Spec: class of the program's parameters.
        forced: the component whose output decides a block, and that output. Under teacher forcing
            the reference's values replace it.
        decoders: components that decode: that of a first block, if it has its own, comes first.
        decoding: name of decoding in metrics, and what decodes.
    """

    Spec: ClassVar[type[ProgramSpec]]
    forced: ClassVar[tuple[str, str]]
    decoders: ClassVar[tuple[str, ...]]
    decoding: ClassVar[tuple[str, str]]

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

    @classmethod
    def cover(cls, resources: Resources, inputs: Any, played: Any) -> None:
        """Calls components in states that no rollout brings them to; golden data record the calls.

        Args:
            resources: engines to call.
            inputs: ``prompts``, ``noise`` and ``tokens`` of a rollout.
            played: ``latents`` and ``frames`` of it.
        """

    def prompt(self, prompt: Any) -> None:
        """Sets the first prompt.

        Raises:
            UsageError: ``VIDC-PROMPT-UNUSED``, the program takes none: its spec has no
                ``prompt_shape``.
        """
        raise UsageError(
            "VIDC-PROMPT-UNUSED", "sessions of this bundle take no prompts", "leave the prompt out"
        )

    def switch_prompt(self, prompt: Any) -> None:
        """Sets a new prompt between two blocks; raises as ``prompt``."""
        self.prompt(prompt)

    def generate(self, noise: Tensor | None = None) -> Tensor:
        """Generates the next block and returns its latent.

        Args:
            noise: of shape ``Spec.noise_shape``. Default: drawn from the seed.
        """
        raise NotImplementedError

    def decode(self, latent: Tensor) -> Tensor:
        """Decodes the next block and returns its frames as ``step`` does."""
        raise NotImplementedError

    def step(self, noise: Tensor | None = None) -> Tensor:
        """Generates the next block: uint8 ``[frames, H, W, 3]`` on the device.

        Several videos side by side are ``[videos, frames, H, W, 3]``.
        """
        return self.decode(self.generate(noise))

    def fetch(self, frames: Tensor) -> Callable[[], Tensor]:
        """Starts to copy frames from ``step`` or ``decode`` to the host.

        On a GPU the copy to pinned memory runs after the decoder and overlaps the next block:
        start that block first, then wait for these frames.

        Returns:
            A callable that waits for the copy and returns the frames on the CPU.
        """
        return self._resources.runners[FRAMES].fetch(frames)

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
