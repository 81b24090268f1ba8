"""A stand-in for TensorRT's runtime whose plans are ONNX graphs, run by ONNX Runtime on a CPU.

It reads and writes the addresses that it is given, as the product does, and knows no more than they
say; it writes an output only after all inputs were read.
"""

import ctypes
from enum import Enum
from types import ModuleType
from typing import Any

import numpy as np
import onnxruntime

_TYPES = {
    "tensor(float)": ("float32", np.float32, 1),
    "tensor(float16)": ("float16", np.float16, 10),
    "tensor(int64)": ("int64", np.int64, 7),
    "tensor(int8)": ("int8", np.int8, 3),
    "tensor(float8e4m3fn)": ("fp8", np.uint8, 17),
}
"""TensorRT's name, one of numpy's types as large, and ONNX's number of each of ONNX Runtime's."""


class DataType(Enum):
    float32 = "float32"
    float16 = "float16"
    bfloat16 = "bfloat16"
    int64 = "int64"
    fp8 = "fp8"
    int8 = "int8"


class TensorIOMode(Enum):
    INPUT = 0
    OUTPUT = 1


class ExecutionContextAllocationStrategy(Enum):
    STATIC = 0
    USER_MANAGED = 1


class Logger:
    ERROR = 0

    def __init__(self, severity: int) -> None:
        assert severity == self.ERROR


class Runtime:
    last: "Runtime"
    """The one that was made last."""

    def __init__(self, logger: Logger) -> None:
        self.logger = logger
        self.engine_host_code_allowed = False
        Runtime.last = self

    def deserialize_cuda_engine(self, plan: bytes) -> "Engine | None":
        options = onnxruntime.SessionOptions()
        # With more of them it looks for kernels of FP8 on a CPU, and finds none.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        try:
            return Engine(
                onnxruntime.InferenceSession(plan, options, providers=["CPUExecutionProvider"])
            )
        except Exception:  # noqa: BLE001  ONNX Runtime's errors have no base
            return None


class Engine:
    device_memory_size_v2 = 64
    name = "fake"

    def __init__(self, session: Any) -> None:
        self.session = session
        self.inputs = {node.name: node for node in session.get_inputs()}
        self.outputs = {node.name: node for node in session.get_outputs()}
        self.tensors = self.inputs | self.outputs
        self.num_io_tensors = len(self.tensors)

    def get_tensor_name(self, index: int) -> str:
        return list(self.tensors)[index]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return TensorIOMode.INPUT if name in self.inputs else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> DataType:
        return DataType(_TYPES[self.tensors[name].type][0])

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.tensors[name].shape)

    def create_execution_context(self, strategy: ExecutionContextAllocationStrategy) -> "Context":
        assert strategy is ExecutionContextAllocationStrategy.USER_MANAGED
        return Context(self)


class Context:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.addresses: dict[str, int] = {}
        self.memory = 0

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        return True

    def set_device_memory(self, address: int, size: int) -> None:
        assert size == max(self.engine.device_memory_size_v2, 1)
        ctypes.memset(address, 0xFF, size)
        self.memory = address

    def execute_async_v3(self, stream: int) -> bool:
        if self.addresses.keys() != self.engine.tensors.keys() or not self.memory:
            return False
        given = {name: self._at(name).copy() for name in self.engine.inputs}
        results = {name: np.empty_like(self._at(name)) for name in self.engine.outputs}
        binding = self.engine.session.io_binding()
        for bind, arrays in ((binding.bind_input, given), (binding.bind_output, results)):
            for name, array in arrays.items():
                element = _TYPES[self.engine.tensors[name].type][2]
                bind(name, "cpu", 0, element, array.shape, array.ctypes.data)
        self.engine.session.run_with_iobinding(binding)
        for name, value in results.items():
            self._at(name)[...] = value
        self.memory = 0
        return True

    def _at(self, name: str) -> np.ndarray:
        node = self.engine.tensors[name]
        dtype = np.dtype(_TYPES[node.type][1])
        size = int(np.prod(node.shape)) * dtype.itemsize
        raw = (ctypes.c_char * size).from_address(self.addresses[name])
        return np.frombuffer(raw, dtype).reshape(node.shape)


def module(name: str, version: str) -> ModuleType:
    """The stand-in as a module of this name and version."""
    fake = ModuleType(name)
    fake.__version__ = version
    for item in (Logger, Runtime, TensorIOMode, ExecutionContextAllocationStrategy):
        setattr(fake, item.__name__, item)
    for dtype in DataType:
        setattr(fake, dtype.name, dtype)
    return fake
