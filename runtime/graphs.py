"""Graph runners: work is captured as CUDA graphs and replayed, or called where it is no GPU's."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Protocol, Self

import torch
from torch import Tensor

from vidc.runtime.allocator import growing_segments
from vidc.runtime.faults import gpu_faults

Work = Callable[[], object]
"""Reads and writes static buffers alone; on a GPU it does not wait for the device."""


class Runner(Protocol):
    """Runs work on a device, one after the other."""

    @property
    def working_bytes(self) -> int:
        """Device memory that prepared work keeps to work in."""

    def prepare(self, works: Sequence[Work]) -> list[Work]:
        """Returns callables that do the same as ``works``, faster where it can; may run them."""

    @contextmanager
    def turn(self, after_caller: bool = True) -> Iterator[None]:
        """Runs what is done inside on this runner.

        Args:
            after_caller: waits for what the caller's current stream has queued, too.
        """
        yield

    def follow(self, other: "Runner") -> None:
        """Lets later work here wait for what the other runner has queued by now."""

    def hand_out(self, tensor: Tensor) -> Tensor:
        """Returns a tensor that was made in a turn, for the caller's stream to use."""

    def fetch(self, tensor: Tensor) -> Callable[[], Tensor]:
        """Starts to copy a tensor that was handed out to the host; returns what waits for it."""


class DirectRunner:
    """Does work when it is called for."""

    working_bytes = 0

    def prepare(self, works: Sequence[Work]) -> list[Work]:
        """Returns the works themselves."""
        return list(works)

    @contextmanager
    def turn(self, after_caller: bool = True) -> Iterator[None]:
        """Does nothing."""
        yield

    def follow(self, other: Runner) -> None:
        """Does nothing."""

    def hand_out(self, tensor: Tensor) -> Tensor:
        """Returns the tensor itself."""
        return tensor

    def fetch(self, tensor: Tensor) -> Callable[[], Tensor]:
        """Returns the tensor itself when it is asked for."""
        return lambda: tensor


class WarmRunner(DirectRunner):
    """Does work on a GPU when it is called for; engines wait for the device themselves.

    Args:
        device: a GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def prepare(self, works: Sequence[Work]) -> list[Work]:
        """Runs works twice, for what first use sets up.

        A state with two buffers has then had each of them as the current one.
        """
        with self.turn():
            for work in (*works, *works):
                work()
        return list(works)

    @contextmanager
    def turn(self, after_caller: bool = True) -> Iterator[None]:
        """Turns what the GPU refuses into coded errors."""
        with gpu_faults(self.device):
            yield

    def fetch(self, tensor: Tensor) -> Callable[[], Tensor]:
        """Copies to the host when it is asked for."""

        def copied() -> Tensor:
            with gpu_faults(self.device):
                return tensor.cpu()

        return copied


class GraphRunner:
    """Captures work once and replays it on a stream of its own.

    Graphs of a runner never run at the same time, so they share the memory they work in.

    Args:
        device: a GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._is_set_up = False
        self._keeper: Work | None = None
        """Outlives all sessions: torch does not capture in a pool whose last graph is gone."""

    def prepare(self, works: Sequence[Work]) -> list[Work]:
        """Captures each of ``works`` as a CUDA graph and returns the replays.

        The runner's first works run once before, for what first use sets up.
        """
        with gpu_faults(self.device), growing_segments():
            if not self._is_set_up:
                with self.turn():
                    for work in works:
                        work()
                self.stream.synchronize()
                # Graphs have memory of their own; what the runs took is not needed again.
                torch.cuda.empty_cache()
                self._keeper = self._capture(partial(torch.zeros, 1, device=self.device))
                self._is_set_up = True
            return [self._capture(work) for work in works]

    @property
    def working_bytes(self) -> int:
        """Device memory that the captured graphs of all sessions keep to work in."""
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
        """Waits, on the device, for all that the other runner has queued."""
        assert isinstance(other, GraphRunner)
        self.stream.wait_stream(other.stream)

    def hand_out(self, tensor: Tensor) -> Tensor:
        """Makes the caller's stream wait for the tensor, and its memory for the caller."""
        caller = torch.cuda.current_stream(self.device)
        caller.wait_stream(self.stream)
        tensor.record_stream(caller)
        return tensor

    def fetch(self, tensor: Tensor) -> Callable[[], Tensor]:
        """Copies to pinned memory, which is the caller's alone; waits for no more than that."""
        with self.turn(after_caller=False):
            copy = torch.empty_like(tensor, device="cpu", pin_memory=True)
            copy.copy_(tensor, non_blocking=True)
            # The thread sleeps until the event, instead of asking for it again and again.
            done = torch.cuda.Event(blocking=True)
            done.record()

        def wait() -> Tensor:
            with gpu_faults(self.device):
                done.synchronize()
            return copy

        return wait


class Runners:
    """The runners of one bundle by name, which all its sessions share.

    Args:
        make: makes a runner; called when a name is first asked for.
    """

    def __init__(self, make: Callable[[], Runner]) -> None:
        self._make = make
        self._made: dict[str, Runner] = {}

    @classmethod
    def on(cls, device: torch.device, captured: bool) -> Self:
        """Returns runners for a device, of CUDA graphs where its engines can be captured."""
        if device.type != "cuda":
            return cls(DirectRunner)
        return cls(partial(GraphRunner if captured else WarmRunner, device))

    def __getitem__(self, name: str) -> Runner:
        if name not in self._made:
            self._made[name] = self._make()
        return self._made[name]

    @property
    def working_bytes(self) -> int:
        """Device memory that prepared work of all runners keeps to work in."""
        return sum(runner.working_bytes for runner in [*self._made.values()])

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Runs what is done inside after all that is queued, and before all that comes."""
        with ExitStack() as stack:
            if self._made:
                first, *others = self._made.values()
                for other in others:
                    first.follow(other)
                    stack.callback(other.follow, first)
                stack.enter_context(first.turn())
            yield


DIRECT = Runners(DirectRunner)
"""Calls engines directly, on whatever stream is the current one."""
