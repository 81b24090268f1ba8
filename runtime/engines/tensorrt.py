"""TensorRT and TensorRT-RTX engines: plans over shared weights and static buffers."""

from dataclasses import dataclass, field
from typing import Any

import torch
from packaging.version import InvalidVersion, Version
from torch import Tensor

from vidc.plugins import loading
from vidc.plugins.errors import GateError, UnavailableError
from vidc.plugins.installation import install_packages
from vidc.plugins.signature import Role, Signature, state_output
from vidc.plugins.tensorrt_import import import_tensorrt
from vidc.runtime import manifest
from vidc.runtime.faults import engine_error
from vidc.runtime.files import Files
from vidc.runtime.states import Buffers, States, argument
from vidc.runtime.strict import read
from vidc.runtime.weights import Weights

CAPTURABLE = True
VERSION = None
_NUMBERS = 3
"""Version parts that must be equal: major, minor and patch."""
_TITLES = {"tensorrt": "TensorRT", "tensorrt_rtx": "TensorRT-RTX"}
_INSTALL = {
    "tensorrt": ("tensorrt", ("--extra-index-url", "https://pypi.nvidia.com")),
    "tensorrt_rtx": ("tensorrt-rtx", ()),
}


@dataclass(frozen=True)
class Options:
    """Options of an engine in a manifest.

    Attributes:
        product: the Python module that loads the plan: ``tensorrt`` or ``tensorrt_rtx``.
        names: bundle names of the plan's tensors where the two differ.
        plugins: names of the plugins of ``libvidc_plugins.so`` that the plan calls.
        version_compatible: True if the plan contains the runtime of the version that built it, so
            that later versions load it and run that code.
    """

    product: str
    names: dict[str, str] = field(default_factory=dict)
    plugins: tuple[str, ...] = ()
    version_compatible: bool = False

    def __post_init__(self) -> None:
        if self.product not in _TITLES:
            raise ValueError(f"product = {self.product[:64]!r} is none of {', '.join(_TITLES)}")
        if self.version_compatible and self.product != "tensorrt":
            raise ValueError(f"version_compatible: {self.product} has no such plans")


class TensorRtEngine:
    """A plan's execution context, and the weights that it reads.

    Args:
        file: path of the plan in the bundle.
        engine: TensorRT's engine; the context only points to it.
        context: execution context without memory of its own.
        signature: signature of the engine.
        weights: weights by name; the context only points to them.
        names: plan names of the bundle's tensors.
        device: device of the plan and its tensors.
    """

    def __init__(
        self,
        file: str,
        engine: Any,
        context: Any,
        signature: Signature,
        weights: dict[str, Tensor],
        names: dict[str, str],
        device: torch.device,
    ) -> None:
        self.signature = signature
        self._names = names
        self._device = device
        self._file = file
        self._engine = engine
        self._context = context
        self._weights = weights
        self._read = [spec for spec in signature.arguments if spec.reads]
        self._written = [state for state in signature.states if state.writes]
        for name, tensor in weights.items():
            self._bind(name, tensor)

    def run(self, buffers: Buffers, states: States) -> None:
        """Enqueues the plan over these buffers.

        A state that the plan cannot write in place is copied back, since CUDA graphs fix addresses.
        """
        for spec in self._read:
            self._bind(spec.name, argument(spec, buffers, states))
        for spec in self.signature.outputs:
            self._bind(spec.name, buffers[spec.name])
        for spec in self._written:
            tensor = states[spec.name] if spec.in_place else states.spare(spec.name)
            self._bind(state_output(spec.name), tensor)
        # The workspace comes from torch's allocator, so engines in a CUDA graph share it.
        size = max(self._engine.device_memory_size_v2, 1)
        memory = torch.empty(size, dtype=torch.uint8, device=self._device)
        self._context.set_device_memory(memory.data_ptr(), size)
        if not self._context.execute_async_v3(_stream(self._device)):
            raise engine_error(self._file, "TensorRT cannot enqueue it")
        for spec in self._written:
            if not spec.in_place:
                states[spec.name].copy_(states.spare(spec.name))

    def weight(self, name: str) -> Tensor:
        """Returns a weight of the plan."""
        return self._weights[name]

    def _bind(self, name: str, tensor: Tensor) -> None:
        self._context.set_tensor_address(self._names[name], tensor.data_ptr())


def load(
    files: Files, entry: manifest.Engine, weights: Weights, device: torch.device
) -> TensorRtEngine:
    """Loads ``entry``'s plan.

    Raises:
        UnavailableError: ``VIDC-ENV-TENSORRT``, the product is not installed;
            ``VIDC-ENGINE-VERSION``, another version is installed; ``VIDC-ENGINE-LOAD``, the plan
            does not load; ``VIDC-KERNEL-LIBRARY`` or ``VIDC-KERNEL-ABI``, the plugin library is
            missing, lacks a plugin of the plan or has another ABI.
        GateError: ``VIDC-BUNDLE-FIELD``, its options are not ``Options``;
            ``VIDC-ENGINE-SIGNATURE``, the plan's tensors are not those of the manifest.
    """
    file, signature = entry.files[0], entry.signature
    options: Options = read(entry.options, Options, f"options of {file}")
    module = _module(options, entry)
    if options.plugins:
        loading.register_tensorrt_plugins(module, options.plugins)
    runtime = module.Runtime(module.Logger(module.Logger.ERROR))
    if options.version_compatible:
        runtime.engine_host_code_allowed = True
    engine = runtime.deserialize_cuda_engine(files.read(file))
    if engine is None:
        raise _not_loaded(entry, options.product, "it is not for this GPU or this version")
    strategy = module.ExecutionContextAllocationStrategy.USER_MANAGED
    context = engine.create_execution_context(strategy)
    if context is None:
        raise _not_loaded(entry, options.product, "there is no memory for its context")
    called = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    names = {options.names.get(name, name): name for name in called}
    if len(names) != len(called):
        raise _other_signature(file, "two of them have one name")
    found = {name: _tensor(module, engine, other) for name, other in names.items()}
    expected = _expected(signature)
    outside = {name for name in found.keys() - expected.keys() if found[name][0] == "in"}
    named = {name: tensor for name, tensor in found.items() if name not in outside}
    if named != expected:
        other = sorted(
            name for name in named.keys() | expected if named.get(name) != expected.get(name)
        )
        raise _other_signature(file, f"{other[0]} is {named.get(other[0], 'missing')}")
    taken = {name: _weight(file, name, weights) for name in sorted(outside)}
    for name, tensor in taken.items():
        shape, dtype = found[name][1:]
        if (tuple(tensor.shape), tensor.dtype) != (shape, dtype):
            raise _other_signature(file, f"weight {name} is {dtype}{list(shape)}")
    return TensorRtEngine(file, engine, context, signature, taken, names, device)


def _module(options: Options, entry: manifest.Engine) -> Any:
    product = options.product
    title = _TITLES[product]
    package, pip_options = _INSTALL[product]
    try:
        module = import_tensorrt(product)
    except (ImportError, OSError) as error:
        raise UnavailableError(
            "VIDC-ENV-TENSORRT",
            f"{entry.files[0]} needs {title} {entry.version}, which cannot be imported: "
            f"{str(error)[:200]}",
            install_packages(f"{package}=={entry.version}", options=pip_options),
        ) from error
    later = options.version_compatible and _later_version(entry.version, module.__version__)
    if not later and not _same_version(entry.version, module.__version__):
        load = "this one loads in no older version, and in no later one than the next major's"
        if not options.version_compatible:
            load = "plans load in the version that built them"
        raise UnavailableError(
            "VIDC-ENGINE-VERSION",
            f"{entry.files[0]} was built by {title} {entry.version}, and {module.__version__} is "
            f"installed: {load}",
            f"install {title} {entry.version}, or build the bundle again",
        )
    return module


def _later_version(built: str, here: str) -> bool:
    """Returns True if a version loads an older version's compatible plans: 11 loads those of 10."""
    try:
        first, second = Version(built), Version(here)
    except InvalidVersion:
        return False
    return first <= second and second.major <= first.major + 1


def _same_version(built: str, here: str) -> bool:
    """Returns True if two versions are of the same libraries.

    A package and its module may shorten it: ``10.13.3.9.post1``, ``10.13.3.9`` and ``10.13.3`` are
    one version.
    """
    try:
        first, second = Version(built), Version(here)
    except InvalidVersion:
        return built == here
    told = min(len(first.release), len(second.release))
    if told < _NUMBERS and first.release != second.release:
        return False
    return (first.release[:told], first.pre, first.dev) == (
        second.release[:told],
        second.pre,
        second.dev,
    )


_Tensor = tuple[str, tuple[int, ...], torch.dtype | None]
"""Direction (``in`` or ``out``), shape and dtype; None for a dtype that engines do not use."""


def _tensor(module: Any, engine: Any, name: str) -> _Tensor:
    dtypes = {
        module.float32: torch.float32,
        module.float16: torch.float16,
        module.bfloat16: torch.bfloat16,
        module.int64: torch.int64,
        module.fp8: torch.float8_e4m3fn,
        module.int8: torch.int8,
    }
    goes_in = engine.get_tensor_mode(name) == module.TensorIOMode.INPUT
    dtype = dtypes.get(engine.get_tensor_dtype(name))
    return "in" if goes_in else "out", tuple(engine.get_tensor_shape(name)), dtype


def _expected(signature: Signature) -> dict[str, _Tensor]:
    found: dict[str, _Tensor] = {}
    for spec in signature:
        if spec.reads:
            found[spec.name] = ("in", spec.shape, spec.torch_dtype)
        if spec.writes:
            name = spec.name if spec.role is Role.OUTPUT else state_output(spec.name)
            found[name] = ("out", spec.shape, spec.torch_dtype)
    return found


def _weight(file: str, name: str, weights: Weights) -> Tensor:
    try:
        return weights[name]
    except KeyError as error:
        raise _other_signature(file, f"weight {name} is not in the bundle") from error


def _stream(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


def _other_signature(file: str, why: str) -> GateError:
    return GateError(
        "VIDC-ENGINE-SIGNATURE",
        f"{file}: its tensors are not those of the manifest: {why}",
        "build the bundle again",
    )


def _not_loaded(entry: manifest.Engine, product: str, reason: str) -> UnavailableError:
    return UnavailableError(
        "VIDC-ENGINE-LOAD",
        f"{_TITLES[product]} {entry.version} cannot load {entry.files[0]}: {reason}",
        "build the bundle again on or for this GPU",
    )
