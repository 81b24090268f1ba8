"""Base of programs: a session's states, static buffers and graphs over a bundle's engines."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Never, Self, TypeVar

import torch
from torch import Tensor

from vidc.plugins.errors import UsageError, VidcError
from vidc.plugins.signature import Signature, TensorSpec
from vidc.runtime.engines import Engine
from vidc.runtime.files import Files
from vidc.runtime.graphs import DIRECT, Runners
from vidc.runtime.guard import Guard, apart, guard_calls, is_forked, require_own_process
from vidc.runtime.inputs import Input, checked_number, require_frames
from vidc.runtime.states import Buffers, States
from vidc.runtime.watch import Watch

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
        strict: sessions refuse values that are not finite, from callers and from engines.
    """

    spec: Any
    engines: Mapping[str, Engine]
    device: torch.device
    runners: Runners = DIRECT
    shared: Any = None
    lock: Lock = field(default_factory=Lock)
    strict: bool = True


class Session(Generic[S]):
    """One stream or clip: its own states and buffers over the bundle's engines and weights.

    Made by ``Bundle.session``. A program implements ``_allocate``, ``_capture``, ``_clear``,
    ``generate`` and ``decode``; it checks tensors by ``_take`` and shows results to ``_watch``.
    Opening a session allocates all memory and, on a GPU, captures all work; ``reset`` restarts it.

    Every public method and property, a program's own too, goes through a ``Guard``. Any of them
    raises VIDC-SESSION-BUSY while another thread is in one; VIDC-SESSION-FAILED after work that
    failed midway, until ``reset``; VIDC-SESSION-NOT-FINITE after results that were NaN or infinite,
    until ``reset``; VIDC-SESSION-CLOSED after ``close``; VIDC-SESSION-FORK in a forked child.

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

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        guard_calls(cls)

    def __init__(self, resources: Resources, seed: int = 0) -> None:
        require_own_process()
        self.seed = checked_number(seed, "seed")
        device = resources.device
        self._guard = Guard(device)
        self._resources = resources
        self.spec: S = resources.spec
        found = {n: resources.engines[n] for n in self.spec.components if n in resources.engines}
        with apart(device):
            self._states = States((engine.signature for engine in found.values()), device)
            self._buffers = {n: Buffers(e.signature, device) for n, e in found.items()}
            self._watches = {name: Watch(name, device) for name in (LATENTS, FRAMES)}
            self._allocate(device)
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
            A callable that waits for the copy and returns the frames on the CPU. It raises
            VIDC-SESSION-NOT-FINITE instead of returning frames of values that are not finite.

        Raises:
            UsageError: ``VIDC-SESSION-FRAMES``, not a tensor on the session's device.
        """
        require_frames(frames, self._resources.device)
        finish = self._resources.runners[FRAMES].fetch(frames)
        watch = self._watches[FRAMES]

        def wait() -> Tensor:
            fetched = finish()
            watch.check()
            return fetched

        return wait

    def stream(self, blocks: int) -> Iterator[Tensor]:
        """Returns an iterator over the results of ``blocks`` calls of ``step``.

        Raises:
            UsageError: ``VIDC-SESSION-NUMBER``.
        """
        return _Stream(self, checked_number(blocks, "blocks"))

    def reset(self, seed: int = 0) -> None:
        """Restarts the session with a seed, without capture or allocation.

        Raises:
            UsageError: ``VIDC-SESSION-NUMBER``, the seed is not from 0 to ``2**63 - 1``.
        """
        seed = checked_number(seed, "seed")
        try:
            with self._resources.lock, self._resources.runners.turn():
                self.seed = seed
                self._clear()
                for watch in self._watches.values():
                    watch.clear()
        except BaseException as error:
            self._guard.fail("reset", error)
            raise
        self._guard.recover()

    def close(self) -> None:
        """Frees states, buffers and graphs after all queued work is done.

        Does nothing in a forked child, which shares them with its parent.

        Raises:
            UsageError: ``VIDC-SESSION-BUSY``.
        """
        guard: Guard | None = vars(self).get("_guard")
        if guard is None or is_forked():
            return
        with guard.call("close", self._check):
            if "_resources" not in vars(self):
                return
            device = self._resources.device
            with self._resources.lock:
                if device.type == "cuda":
                    with suppress(RuntimeError):  # A lost device cannot synchronize.
                        torch.cuda.synchronize(device)
                vars(self).clear()

    def __enter__(self) -> Self:
        self._guard  # noqa: B018  Refuses a closed session.
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Never:
            """Refuses use after ``close``, which removes all attributes."""
            if "_guard" in vars(self):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            raise UsageError(
                "VIDC-SESSION-CLOSED",
                "the session is closed, or its bundle is",
                "open another one: bundle.session(seed=...)",
            )

    @contextmanager
    def _turn(
        self, runner: str, after_caller: bool = True, *, work: str = "", retryable: bool = False
    ) -> Iterator[None]:
        """Puts work inside the block on a runner, exclusively for this session.

        Args:
            runner: its name.
            after_caller: as in ``Runner.turn``.
            work: name of the work, in errors after it failed; by default the method's.
            retryable: the work, if an exception ends it midway, can be done again with the same
                result; otherwise that ends the session until ``reset``.
        """
        try:
            with self._resources.lock, self._resources.runners[runner].turn(after_caller):
                yield
        except BaseException as error:
            if not retryable or not isinstance(error, Exception):
                self._guard.fail(work, error)
            raise

    def _take(self, given: Input, value: object, shape: tuple[int, ...]) -> Tensor:
        """Returns a tensor from a caller, float32 on its own device; raises as ``checked``."""
        resources = self._resources
        return given.checked(value, shape, torch.float32, resources.device, resources.strict)

    def _watch(self, runner: str, results: Tensor) -> None:
        """Looks at an engine's results for values that are not finite; called in a turn.

        On a GPU, a later call or ``fetch`` learns of them: nothing waits for the device.
        """
        if self._resources.strict:
            self._watches[runner].look(results)
            if results.device.type == "cpu":
                self._check()

    def _check(self) -> None:
        """Ends the session if it is known that results were not finite."""
        for watch in self._watches.values():
            try:
                watch.check()
            except VidcError as error:
                raise self._guard.end(error) from None

    def _run(self, component: str) -> None:
        """Runs a component over the session's buffers and states."""
        self._resources.engines[component].run(self._buffers[component], self._states)


guard_calls(Session)


class _Stream(Iterator[Tensor]):
    """Frames of a number of blocks; a block that could not be generated is not counted."""

    def __init__(self, session: Session[Any], blocks: int) -> None:
        self._session = session
        self._left = blocks

    def __next__(self) -> Tensor:
        session = self._session
        with session._guard.call("stream", session._check):
            if self._left:
                frames = session.step()
                self._left -= 1
                return frames
        raise StopIteration
