"""A stand-in for ONNX Runtime with CUDA, which computes on a CPU.

It captures as ONNX Runtime does: a run under a number that is new computes more than once, and each
later one reads and writes the addresses of the first, so that other addresses are an error.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import onnxruntime

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
REFUSAL = (
    "[ONNXRuntimeError] : 1 : FAIL : This session cannot use the graph capture feature as "
    "requested by the user as all the graph nodes have not been assigned to CUDAExecutionProvider"
)


class Module:
    """Stands in for ``onnxruntime`` in the loader.

    Args:
        capturable: whether every node has a kernel on the GPU.
        loads: whether CUDA's libraries are there.
        fails: what a run raises.
    """

    GraphOptimizationLevel = onnxruntime.GraphOptimizationLevel
    SessionOptions = onnxruntime.SessionOptions
    RunOptions = onnxruntime.RunOptions
    __version__ = onnxruntime.__version__

    def __init__(
        self, capturable: bool = True, loads: bool = True, fails: Exception | None = None
    ) -> None:
        self.capturable = capturable
        self.loads = loads
        self.fails = fails
        self.sessions: list[Session] = []

    def get_available_providers(self) -> list[str]:
        return [CUDA, CPU]

    def InferenceSession(  # noqa: N802
        self, graph: bytes, options: Any = None, **given: Any
    ) -> Any:
        (name, cuda), *others = given["providers"]
        if options is None:
            real = onnxruntime.InferenceSession(graph, options, providers=[CPU])
            return SimpleNamespace(get_providers=lambda: [CUDA, CPU][not self.loads :], real=real)
        assert (name, others, given["enable_fallback"]) == (CUDA, [CPU], 0)
        assert all(isinstance(value, str) for value in cuda.values())
        if cuda["enable_cuda_graph"] == "1" and not self.capturable:
            raise ValueError(REFUSAL)
        session = onnxruntime.InferenceSession(graph, options, providers=[CPU])
        self.sessions.append(Session(session, cuda, options.enable_mem_pattern, self))
        return self.sessions[-1]


class Session:
    def __init__(self, session: Any, cuda: dict[str, str], pattern: bool, module: Module) -> None:
        self._session = session
        self._module = module
        self.cuda = cuda
        self.pattern = pattern
        self.captured: dict[str, dict[str, int]] = {}
        self.replays = 0

    def get_inputs(self) -> Any:
        return self._session.get_inputs()

    def get_outputs(self) -> Any:
        return self._session.get_outputs()

    def io_binding(self) -> "Binding":
        return Binding(self._session.io_binding())

    def run_with_iobinding(self, binding: "Binding", options: Any) -> None:
        if self._module.fails is not None:
            raise self._module.fails
        runs = 1
        if self.cuda["enable_cuda_graph"] == "1":
            number = options.get_run_config_entry("gpu_graph_id")
            runs = 1 if number in self.captured else 3
            assert self.captured.setdefault(number, dict(binding.addresses)) == binding.addresses
            self.replays += runs == 1
        for _ in range(runs):
            self._session.run_with_iobinding(binding.bound)


class Binding:
    def __init__(self, bound: Any) -> None:
        self.bound = bound
        self.addresses: dict[str, int] = {}

    def bind_input(self, name: str, *described: Any) -> None:
        self.addresses[name] = described[-1]
        self.bound.bind_input(name, *described)

    def bind_output(self, name: str, *described: Any) -> None:
        self.addresses[name] = described[-1]
        self.bound.bind_output(name, *described)


def stream(device: Any) -> SimpleNamespace:
    """Stands in for torch's current stream."""
    assert device.type == "cuda"
    return SimpleNamespace(
        synchronize=lambda: None, record_event=lambda: None, wait_event=lambda event: None
    )


@contextmanager
def nothing() -> Iterator[None]:
    """Stands in for what asks a GPU."""
    yield
