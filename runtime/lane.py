"""Where a stream's work runs in order: a CUDA stream with captured graphs, or the CPU itself."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from vidc.runtime.allocator import growing_segments
from vidc.runtime.faults import gpu_faults

Work = Callable[[], object]
"""Reads and writes static buffers alone; on a GPU it does not wait for the device."""


class Lane(Protocol):
    """One order of work on a device."""

    @property
    def working_bytes(self) -> int:
        """Device memory that prepared work keeps to work in."""

    def prepare(self, works: Sequence[Work]) -> list[Work]:
        """What do the same as ``works``, as fast as the lane can; may run them."""

    @contextmanager
    def turn(self, after_caller: bool = True) -> Iterator[None]:
        """What is done inside is put on the lane.

        Args:
            after_caller: it comes after what the caller has given the device, too.
        """
        yield

    def follow(self, other: "Lane") -> None:
        """What is put on the lane from now on comes after what is on the other one now."""

    def hand_out(self, tensor: Tensor) -> Tensor:
        """A tensor that was made in a turn, for the caller to use."""

    def fetch(self, tensor: Tensor) -> Callable[[], Tensor]:
        """Starts to copy a tensor that was handed out to the host; gives it when it is there."""


class DirectLane:
    """Work is done when it is called for."""

    working_bytes = 0

    def prepare(self, works: Sequence[Work]) -> list[Work]:
        """The works themselves."""
        return list(works)

    @contextmanager
    def turn(self, after_caller: bool = True) -> Iterator[None]:
        """Does nothing."""
        yield

    def follow(self, other: Lane) -> None:
        """Does nothing."""

    def hand_out(self, tensor: Tensor) -> Tensor:
        """The tensor itself."""
        return tensor

    def fetch(self, tensor: Tensor) -> Callable[[], Tensor]:
        """Gives the tensor itself."""
        return lambda: tensor


class WarmLane(DirectLane):
    """Work on a GPU that waits for the device itself, and is done when it is called for.

    Args:
        device: a GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def prepare(self, works: Sequence[Work]) -> list[Work]:
        """Runs works twice, for what first use does.

        Of a state with two buffers, each is then the current one once.
        """
        with self.turn():
            for work in (*works, *works):
                work()
        return list(works)

    @contextmanager
    def turn(self, after_caller: bool = True) -> Iterator[None]:
        """Gives names to what the GPU refuses."""
        with gpu_faults(self.device):
            yield

    def fetch(self, tensor: Tensor) -> Callable[[], Tensor]:
        """Copies to the host when it is asked for."""

        def copied() -> Tensor:
            with gpu_faults(self.device):
                return tensor.cpu()

        return copied


class GraphLane:
    """Work is captured once and replayed on a stream of its own.

    All sessions of a bundle put their work on the same lanes. Graphs of a lane never run at the
    same time, so they share the memory they work in.

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
        """Captures works; the lane's first are run before, which sets up what first use does."""
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
        """Device memory that the captured graphs keep to work in, of all sessions together."""
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
        """Makes the lane's stream the current one."""
        with gpu_faults(self.device):
            if after_caller:
                self.stream.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(self.stream):
                yield

    def follow(self, other: Lane) -> None:
        """Waits, on the device, for all that is on the other lane."""
        assert isinstance(other, GraphLane)
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
