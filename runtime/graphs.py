"""Runners: capture work as CUDA graphs and replay it, or call it directly."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import Lock
from typing import Self

import torch
from torch import Tensor

from vidc.runtime.allocator import growing_segments
from vidc.runtime.faults import gpu_faults

Work = Callable[[], object]
"""A callable that only uses static buffers and, on a GPU, does not wait for the device."""


_PREPARING = Lock()
"""Held while work is captured: the settings that it needs belong to the process."""


class Runner:
    """Calls work directly, in order; base class of runners that warm up or capture."""

    @property
    def working_bytes(self) -> int:
        """Bytes of device memory that prepared work keeps as workspace."""
        return 0

    def prepare(self, works: Sequence[Work], warm_up: Sequence[Work] | None = None) -> list[Work]:
        """Returns equivalent callables, captured if the runner captures.

        Args:
            works: callables to prepare.
            warm_up: work that runs first, if the runner needs it; by default ``works``.
        """
        return list(works)

    def prepare_at_first_call(self, work: Work) -> Work:
        """Returns an equivalent callable that prepares ``work`` at its first call.

        Every call must be inside a turn of this runner.
        """
        return work

    @contextmanager
    def turn(self, after_caller: bool = True) -> Iterator[None]:
        """Puts work inside the block on this runner's stream, if it has one.

        Args:
            after_caller: also waits for the work queued on the caller's current stream.
        """
        yield

    def follow(self, other: "Runner") -> None:
        """Makes later work here wait for the work queued on the other runner."""

    def hand_out(self, tensor: Tensor) -> Tensor:
        """Returns a tensor made in a turn, safe to use on the caller's stream."""
        return tensor

    def fetch(self, tensor: Tensor) -> Callable[[], Tensor]:
        """Starts to copy a handed-out tensor to the host; returns a callable that waits for it."""
        return lambda: tensor


class WarmRunner(Runner):
    """Calls work directly on a GPU, for engines that cannot be captured.

    Work runs on the caller's current stream, after all work of earlier turns.

    Args:
        device: a GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._done: torch.cuda.Event | None = None

    def prepare(self, works: Sequence[Work], warm_up: Sequence[Work] | None = None) -> list[Work]:
        """Runs the warm-up twice: a state with a spare buffer has then used both buffers."""
        first = works if warm_up is None else warm_up
        with self.turn():
            for work in (*first, *first):
                work()
        return list(works)

    @contextmanager
    def turn(self, after_caller: bool = True) -> Iterator[None]:
        """Turns GPU faults into coded errors, and orders work on whatever streams callers use."""
        with gpu_faults(self.device):
            stream = self._ordered()
            try:
                yield
            finally:
                self._done = stream.record_event()

    def fetch(self, tensor: Tensor) -> Callable[[], Tensor]:
        """Returns a callable that copies to the host."""

        def copied() -> Tensor:
            with gpu_faults(self.device):
                self._ordered()
                return tensor.cpu()

        return copied

    def _ordered(self) -> torch.cuda.Stream:
        """Returns the caller's stream, which waits for the last turn's."""
        stream = torch.cuda.current_stream(self.device)
        if self._done is not None:
            stream.wait_event(self._done)
        return stream


class GraphRunner(Runner):
    """Captures work as CUDA graphs and replays them on its own stream.

    A runner's graphs never run at the same time, so they share one memory pool.

    Args:
        device: a GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._is_set_up = False
        self._keeper: Work | None = None
        """Keeps the pool alive: torch cannot capture into a pool whose last graph is gone."""

    def prepare(self, works: Sequence[Work], warm_up: Sequence[Work] | None = None) -> list[Work]:
        """Captures each of ``works`` as a CUDA graph and returns the replays.

        The warm-up runs before the runner's first capture.
        """
        with self._preparing():
            if not self._is_set_up:
                self._run(works if warm_up is None else warm_up)
                self._keeper = self._capture(partial(torch.zeros, 1, device=self.device))
                self._is_set_up = True
            return [self._capture(work) for work in works]

    def prepare_at_first_call(self, work: Work) -> Work:
        """Returns a callable that first runs ``work`` and captures it, and later replays it.

        The run is the warm-up of the capture.
        """
        captured: list[Work] = []

        def call() -> None:
            if captured:
                captured[0]()
                return
            with self._preparing():
                self._run([work])
                captured.append(self._capture(work))

        return call

    @contextmanager
    def _preparing(self) -> Iterator[None]:
        """Runs and captures work inside the block with the same settings in every process."""
        with gpu_faults(self.device), _PREPARING, growing_segments(), _any_algorithm():
            _free_cublas_workspaces()
            try:
                yield
            finally:
                _free_cublas_workspaces()

    def _run(self, works: Sequence[Work]) -> None:
        """Runs work without a graph, then frees its memory: graphs have a pool of their own."""
        with self.turn():
            for work in works:
                work()
        self.stream.synchronize()
        _free_cublas_workspaces()
        torch.cuda.empty_cache()

    @property
    def working_bytes(self) -> int:
        """Bytes of the memory pool that the captured graphs of all sessions share."""
        return sum(
            segment["total_size"]
            for segment in torch.cuda.memory_snapshot()
            if tuple(segment["segment_pool_id"]) == self._pool
        )

    def _capture(self, work: Work) -> Work:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(
            graph, pool=self._pool, stream=self.stream, capture_error_mode="thread_local"
        ):
            work()
        return graph.replay

    @contextmanager
    def turn(self, after_caller: bool = True) -> Iterator[None]:
        """Makes the runner's stream the current one."""
        with gpu_faults(self.device):
            if after_caller:
                self.stream.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(self.stream):
                yield

    def follow(self, other: Runner) -> None:
        """Waits, on the device, for all work queued on the other runner."""
        assert isinstance(other, GraphRunner)
        self.stream.wait_stream(other.stream)

    def hand_out(self, tensor: Tensor) -> Tensor:
        """Makes the caller's stream wait for the tensor, and keeps its memory while used there."""
        caller = torch.cuda.current_stream(self.device)
        caller.wait_stream(self.stream)
        tensor.record_stream(caller)
        return tensor

    def fetch(self, tensor: Tensor) -> Callable[[], Tensor]:
        """Copies to pinned memory that only the caller uses; the callable waits for the copy."""
        with self.turn(after_caller=False):
            copy = torch.empty_like(tensor, device="cpu", pin_memory=True)
            copy.copy_(tensor, non_blocking=True)
            # The thread sleeps until the event instead of polling.
            done = torch.cuda.Event(blocking=True)
            done.record()

        def wait() -> Tensor:
            with gpu_faults(self.device):
                done.synchronize()
            return copy

        return wait


@contextmanager
def _any_algorithm() -> Iterator[None]:
    """Turns torch's deterministic mode, a setting of the process, off inside the block.

    With it, torch would refuse cuBLAS unless ``CUBLAS_WORKSPACE_CONFIG`` is set, and fill each new
    tensor, so the captured kernels would differ.
    """
    mode = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("default")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)


def _free_cublas_workspaces() -> None:
    """Makes torch forget the workspaces that it keeps for each stream and cuBLAS handle.

    A workspace of the warm-up would outlive the bundle. One that a capture allocates lies in the
    graphs' pool, and must not be used outside it.
    """
    torch._C._cuda_clearCublasWorkspaces()


class Runners:
    """The runners of one bundle by name, shared by its sessions.

    Args:
        make: makes a runner; called at the first use of a name.
    """

    def __init__(self, make: Callable[[], Runner]) -> None:
        self._make = make
        self._made: dict[str, Runner] = {}

    @classmethod
    def on(cls, device: torch.device, captured: bool) -> Self:
        """Returns runners for a device; ``captured`` means its engines can be captured."""
        if device.type != "cuda":
            return cls(Runner)
        if captured:
            return cls(partial(GraphRunner, device))
        warm = WarmRunner(device)
        return cls(lambda: warm)

    def __getitem__(self, name: str) -> Runner:
        if name not in self._made:
            self._made[name] = self._make()
        return self._made[name]

    @property
    def working_bytes(self) -> int:
        """Bytes of device memory that all runners keep as workspace."""
        return sum(runner.working_bytes for runner in [*self._made.values()])

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Orders work inside the block after all queued work and before all later work."""
        with ExitStack() as stack:
            if self._made:
                first, *others = self._made.values()
                for other in others:
                    first.follow(other)
                    stack.callback(other.follow, first)
                stack.enter_context(first.turn())
            yield


DIRECT = Runners(Runner)
"""Calls engines directly, on the current stream."""
