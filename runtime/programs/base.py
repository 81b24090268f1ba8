"""Base class of programs: sessions, which run a bundle's engines."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Never, Self, TypeVar

import torch
from torch import Tensor

from vidc.plugins.errors import UsageError, VidcError
from vidc.runtime.engines import Engine
from vidc.runtime.files import Files
from vidc.runtime.graphs import DIRECT, Runners
from vidc.runtime.guard import (
    Guard,
    WorkLock,
    guard_calls,
    is_forked,
    isolated,
    require_own_process,
)
from vidc.runtime.inputs import Input, checked_number, require_frames
from vidc.runtime.programs.blocks import Blocks
from vidc.runtime.programs.spec import ProgramSpec
from vidc.runtime.states import Buffers, States
from vidc.runtime.watch import Watch

LATENTS, FRAMES = "latents", "frames"
"""Names of the runners that generate and that decode; decoding may overlap the next block."""

S = TypeVar("S", bound=ProgramSpec)


@dataclass(frozen=True)
class Resources:
    """Objects shared by the sessions of one bundle.

    Attributes:
        spec: the program's parameters, an instance of its class ``Spec``.
        engines: the engines by component; a session runs those that the spec names.
        device: device of the engines and of every buffer.
        runners: runners of the sessions' work.
        shared: the result of the program's ``share``.
        lock: held by the session that enqueues work.
        strict: True if sessions refuse values that are not finite, from callers and from engines.
    """

    spec: Any
    engines: Mapping[str, Engine]
    device: torch.device
    runners: Runners = DIRECT
    shared: Any = None
    lock: WorkLock = field(default_factory=WorkLock)
    strict: bool = True


class Session(Generic[S]):
    """One stream or clip: its own states and buffers over the bundle's engines and weights.

    Made by ``Bundle.session``. A program is a subclass with ``_allocate``, ``_capture``,
    ``_clear``, ``generate`` and ``decode``; it checks callers' tensors with ``_take`` and passes
    results to ``_watch``. Opening a session allocates its states and buffers and, on a GPU,
    prepares its work, as CUDA graphs if the engines can be captured. Rare work, such as a prompt
    switch, may be prepared at its first call. ``reset`` restarts a session in the same memory.

    Every public method and property, also of a subclass, goes through a ``Guard``. Until ``reset``,
    it raises VIDC-SESSION-FAILED after work that failed midway, and VIDC-SESSION-NOT-FINITE after
    results that were NaN or infinite. It raises VIDC-SESSION-BUSY while another thread is in one,
    VIDC-SESSION-CLOSED after ``close``, and VIDC-SESSION-FORK in a forked child.

    Attributes:
        Spec: class of the program's parameters.
        teacher_forced: pairs of a component and an output that the reference's values replace under
            teacher forcing. The first pair's component generates: its precision is the block's.
        forces_blocks: True if ``force`` is implemented.
        rounded_feedback: True if a block starts from earlier results rounded to 8 bits.
        decoder_names: the decoder's name in metrics, and its name in texts.
    """

    Spec: ClassVar[type[ProgramSpec]]
    teacher_forced: ClassVar[tuple[tuple[str, str], ...]]
    forces_blocks: ClassVar[bool] = False
    rounded_feedback: ClassVar[bool] = False
    decoder_names: ClassVar[tuple[str, str]]

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
        with isolated(device):
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
        """Sets everything that lasts from block to block to its initial value for ``self.seed``."""
        self._states.clear()
        self._unfinished = False
        """True after a block failed midway: keys of its noise may be in a ring's oldest slots."""

    def _require_finished(self) -> None:
        """Refuses a clean pass of the newest block after a later one has failed midway.

        Raises:
            UsageError: ``VIDC-SESSION-UNFINISHED``.
        """
        if self._unfinished:
            raise UsageError(
                "VIDC-SESSION-UNFINISHED",
                "the block after the newest one failed midway, and its noise may have replaced "
                "keys and values that the newest block attends to",
                "call step() again before force(), or reset()",
            )

    @classmethod
    def cover(cls, resources: Resources, inputs: Any, played: Any) -> None:
        """Makes the calls of components that a rollout does not make; golden data record them.

        Args:
            resources: engines to call.
            inputs: ``prompts``, ``noise`` and ``tokens`` of a rollout.
            played: ``latents`` and ``frames`` of the rollout.
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

    def condition(self, *args: Any, **kwargs: Any) -> None:
        """Sets what later blocks are generated from: tensors of ``Spec.condition_shapes``."""

    def generate(self, *, noise: Tensor | None = None) -> Tensor:
        """Generates the next block and returns its latent.

        Args:
            noise: of shape ``Spec.noise_shape``. Default: drawn from the seed.
        """
        raise NotImplementedError

    def force(self, latent: Tensor) -> None:
        """Replaces the newest block's latent, from which later blocks then go on.

        This is teacher forcing of whole blocks.

        Raises:
            UsageError: ``VIDC-SESSION-FORCE``, the program is without ``forces_blocks``.
        """
        raise UsageError(
            "VIDC-SESSION-FORCE",
            "sessions of this bundle cannot replace a block",
            "call step() or generate() instead",
        )

    def decode(self, latent: Tensor) -> Tensor:
        """Decodes the next block and returns its frames as ``step`` does."""
        raise NotImplementedError

    def step(self, noise: Tensor | None = None) -> Tensor:
        """Generates the next block: uint8 ``[frames, H, W, 3]`` on the device.

        Several videos side by side are ``[videos, frames, H, W, 3]``.
        """
        return self.decode(self.generate(noise=noise))

    def flush(self) -> None:
        """Runs the work that the newest block left for the next one, if the program leaves any.

        The next block then starts at once: call it while nothing waits for the device.
        """

    def fetch(self, frames: Tensor) -> Callable[[], Tensor]:
        """Starts to copy frames from ``step`` or ``decode`` to the host.

        On a GPU the copy to pinned memory runs after the decoder and overlaps the next block: call
        ``step`` for that block before you wait for these frames.

        Returns:
            A callable that waits for the copy and returns the frames on the CPU. It raises
            VIDC-SESSION-NOT-FINITE if the decoder computed NaN or infinities.

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
        return Blocks(self, checked_number(blocks, "blocks"))

    def reset(self, seed: int = 0) -> None:
        """Starts a new stream or clip with a seed, without capture or allocation.

        Raises:
            UsageError: ``VIDC-SESSION-NUMBER``, the seed is not from 0 to ``2**63 - 1``.
        """
        seed = checked_number(seed, "seed")
        with self._resources.lock:
            try:
                with self._resources.runners.turn():
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
        """Puts work inside the block on a runner, while no other session enqueues any.

        Args:
            runner: name of the runner.
            after_caller: as in ``Runner.turn``.
            work: name of the work in VIDC-SESSION-FAILED; by default the method's name.
            retryable: True if the same call gives the same result after an exception. Otherwise,
                and after an interrupt, the session needs a ``reset``.
        """
        with self._resources.lock:
            try:
                with self._resources.runners[runner].turn(after_caller):
                    yield
            except BaseException as error:
                if not retryable or not isinstance(error, Exception):
                    self._guard.fail(work, error)
                raise

    def _take(self, given: Input, value: object, shape: tuple[int, ...]) -> Tensor:
        """Returns a caller's tensor in float32, on the device it is on; raises as ``checked``."""
        resources = self._resources
        return given.checked(value, shape, torch.float32, resources.device, resources.strict)

    def _watch(self, runner: str, results: Tensor) -> None:
        """Checks an engine's results for values that are not finite; called in a turn.

        On a CPU, raises at once. On a GPU, nothing waits for the device: a later call or ``fetch``
        raises.
        """
        if self._resources.strict:
            self._watches[runner].look(results)
            if results.device.type == "cpu":
                self._check()

    def _check(self) -> None:
        """Ends the session and raises if results are known to be not finite."""
        for watch in self._watches.values():
            try:
                watch.check()
            except VidcError as error:
                raise self._guard.end(error) from None

    def _run(self, component: str) -> None:
        """Runs a component over the session's buffers and states."""
        self._resources.engines[component].run(self._buffers[component], self._states)


guard_calls(Session)
