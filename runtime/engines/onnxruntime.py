"""ONNX Runtime engines: a functional graph that takes and returns its states."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from vidc.plugins.errors import GateError, UnavailableError
from vidc.plugins.installation import install_packages, installation
from vidc.plugins.signature import DTYPE_NAMES, Signature, TensorSpec, state_output
from vidc.runtime import manifest
from vidc.runtime.engines.integer_products import ask_exact_products
from vidc.runtime.engines.torch_memory import REFUSED, torch_memory
from vidc.runtime.faults import engine_error
from vidc.runtime.files import Files
from vidc.runtime.ort import onnxruntime
from vidc.runtime.states import Buffers, States, argument
from vidc.runtime.strict import read
from vidc.runtime.weights import Weights

CAPTURABLE = False
VERSION = onnxruntime.__version__
CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"

_NOT_CAPTURED = "cannot use the graph capture feature"
"""Part of ONNX Runtime's message when it cannot capture a graph."""
_IDENTITY = bytes.fromhex(
    "080a12003a370a100a017812017922084964656e746974791201675a0f0a0178120a0a0808011204"
    "0a020801620f0a0179120a0a08080112040a02080142040a001015"
)
"""An ONNX graph of one Identity."""
_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"
_NO_MEMORY = ("Failed to allocate memory", "out of memory", REFUSED)
_ELEMENT_TYPES = {
    "float32": 1,
    "int8": 3,
    "int64": 7,
    "float16": 10,
}
"""onnx.TensorProto.DataType of the dtypes that numpy lacks."""
_TYPE_NAMES = {
    "float32": "tensor(float)",
    "int8": "tensor(int8)",
    "int64": "tensor(int64)",
    "float16": "tensor(float16)",
}


@dataclass(frozen=True)
class Options:
    """Options of an engine in a manifest, under ONNX Runtime's names.

    Attributes:
        graph_optimization_level: a member of ``onnxruntime.GraphOptimizationLevel``.
        disable_prepacking: True to share the bundle's weights between sessions; with prepacking,
            each session has its own copy.
        weights_given: True if weights are graph inputs instead of initializers.
        cuda_graph: True to capture runs on a GPU, if every node has a CUDA kernel.
    """

    graph_optimization_level: str
    disable_prepacking: bool
    weights_given: bool = False
    cuda_graph: bool = False

    def __post_init__(self) -> None:
        known = onnxruntime.GraphOptimizationLevel.__members__
        if self.graph_optimization_level not in known:
            raise ValueError(
                f"graph_optimization_level = {self.graph_optimization_level[:64]!r} is none of "
                f"{', '.join(known)}"
            )

    def session_options(self) -> onnxruntime.SessionOptions:
        """Returns the options as an ONNX Runtime object."""
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        level = self.graph_optimization_level
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.__members__[level]
        options.add_session_config_entry(
            "session.disable_prepacking", str(int(self.disable_prepacking))
        )
        # Threads of one engine would otherwise take cores from the next one for about 20 ms.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        ask_exact_products(options)
        return options


class OnnxRuntimeEngine:
    """One inference session, bound to static buffers.

    Args:
        file: path of the graph in the bundle.
        session: inference session on the device of the buffers.
        signature: the engine's.
        given: weights that are graph inputs, by name; the session only points to them.
        weights: weights of the bundle.
        device: device of the buffers and the weights.
        captured: True if the session captures its runs as CUDA graphs.
    """

    def __init__(
        self,
        file: str,
        session: onnxruntime.InferenceSession,
        signature: Signature,
        given: Mapping[str, Tensor],
        weights: Weights,
        device: torch.device,
        captured: bool,
    ) -> None:
        self.signature = signature
        self.captured = captured
        """True if runs are captured as CUDA graphs and replayed."""
        self._file = file
        self._session = session
        self._device = device
        self._given = given
        self._weights = weights
        self._binding = session.io_binding()
        self._inputs = [s for s in signature.arguments if s.reads]
        self._written = [s for s in signature.states if s.writes]
        self._flipped = [s.name for s in self._written if not s.in_place]
        self._graphs: dict[tuple[int, ...], int] = {}
        """Graph number of each set of buffer addresses; a captured graph works on one set.

        Addresses keep no tensor alive. An entry stays when its session closes: ONNX Runtime's CUDA
        provider has no way to drop a captured graph, and ``release_captured_graph`` does nothing
        there. A later session at the same addresses replays it; at others, it adds a graph.
        """
        for name, tensor in given.items():
            self._binding.bind_input(name, *_described(tensor, DTYPE_NAMES[tensor.dtype]))

    def run(self, buffers: Buffers, states: States) -> None:
        """Runs the graph over these buffers; on a GPU, waits for it to finish.

        Capture runs the graph more than once. Results are the same: tensors written in place do not
        depend on their old values.
        """
        given = [(s.name, argument(s, buffers, states), s.dtype) for s in self._inputs]
        results = [(s.name, buffers[s.name], s.dtype) for s in self.signature.outputs]
        for spec in self._written:
            tensor = states[spec.name] if spec.in_place else states.spare(spec.name)
            results.append((state_output(spec.name), tensor, spec.dtype))
        for name, tensor, dtype in given:
            self._binding.bind_input(name, *_described(tensor, dtype))
        for name, tensor, dtype in results:
            self._binding.bind_output(name, *_described(tensor, dtype))
        options = None
        if self.captured:
            addresses = tuple(tensor.data_ptr() for _, tensor, _ in (*given, *results))
            options = onnxruntime.RunOptions()
            number = self._graphs.setdefault(addresses, len(self._graphs) + 1)
            options.add_run_config_entry("gpu_graph_id", str(number))
        if self._device.type == "cuda":
            # ONNX Runtime runs on its own stream and waits for it.
            torch.cuda.current_stream(self._device).synchronize()
        self._call(options)
        states.flip(self._flipped)

    def weight(self, name: str) -> Tensor:
        """Returns a weight of the bundle."""
        return self._weights[name]

    def _call(self, options: onnxruntime.RunOptions | None) -> None:
        try:
            self._session.run_with_iobinding(self._binding, options)
        except Exception as error:
            # ONNX Runtime's exceptions have no common base. gpu_faults handles OutOfMemoryError.
            if self._device.type == "cuda" and any(words in str(error) for words in _NO_MEMORY):
                raise torch.OutOfMemoryError(str(error)) from error
            raise engine_error(self._file, error) from error


def _described(tensor: Tensor, dtype: str) -> tuple[str, int, int, tuple[int, ...], int]:
    device = tensor.device
    return (
        device.type,
        device.index or 0,
        _ELEMENT_TYPES[dtype],
        tuple(tensor.shape),
        tensor.data_ptr(),
    )


def load(
    files: Files, entry: manifest.Engine, weights: Weights, device: torch.device
) -> OnnxRuntimeEngine:
    """Loads ``entry``'s graph; on a CPU, ONNX Runtime memory-maps the bundle's weights.

    It opens them by their names in the graph, below the bundle's folder alone.

    Raises:
        GateError: ``VIDC-BUNDLE-FIELD``, its options are not ``Options``;
            ``VIDC-ENGINE-SIGNATURE``, the graph's tensors are not those of the manifest.
        UnavailableError: ``VIDC-ENGINE-LOAD``, ONNX Runtime cannot load it;
            ``VIDC-ENV-ONNXRUNTIME``, it has no CUDA provider, or CUDA's libraries are missing.
    """
    file, signature = entry.files[0], entry.signature
    options: Options = read(entry.options, Options, f"options of {file}")
    session, captured = _session(files, entry, options, device)
    written = {state_output(state.name): state for state in signature.states if state.writes}
    inputs, given = session.get_inputs(), {}
    if options.weights_given:
        count = max(len(inputs) - sum(spec.reads for spec in signature), 0)
        given = {node.name: _weight(file, node, weights) for node in inputs[:count]}
        inputs = inputs[count:]
    _require(file, "inputs", inputs, {s.name: s for s in signature if s.reads})
    _require(
        file, "outputs", session.get_outputs(), {s.name: s for s in signature.outputs} | written
    )
    return OnnxRuntimeEngine(file, session, signature, given, weights, device, captured)


def _session(
    files: Files, entry: manifest.Engine, options: Options, device: torch.device
) -> tuple[onnxruntime.InferenceSession, bool]:
    """Returns a session on a device, and True if it captures its runs."""
    if device.type != "cuda":
        return _opened(files, entry, options.session_options(), [CPU]), False
    _require_cuda(entry, device)
    try:
        session = _opened(
            files, entry, _gpu_options(options), _gpu_providers(device, options.cuda_graph)
        )
    except UnavailableError as error:
        # The graph has control flow, or a node without a CUDA kernel runs on the CPU.
        if not options.cuda_graph or _NOT_CAPTURED not in error.message:
            raise
        options = replace(options, cuda_graph=False)
        session = _opened(
            files, entry, _gpu_options(options), _gpu_providers(device, captured=False)
        )
    return session, options.cuda_graph


def _require_cuda(entry: manifest.Engine, device: torch.device) -> None:
    """Refuses an ONNX Runtime without CUDA, which would silently run on the CPU."""
    if CUDA not in onnxruntime.get_available_providers():
        raise _no_cuda(entry, "has no CUDA")
    session = onnxruntime.InferenceSession(
        _IDENTITY, providers=_gpu_providers(device, captured=False)
    )
    if CUDA not in session.get_providers():
        raise _no_cuda(entry, "cannot load its CUDA provider")


def _gpu_options(options: Options) -> onnxruntime.SessionOptions:
    found = options.session_options()
    # A memory pattern is allocated in the second run, possibly during capture, and takes more
    # memory without a speedup: 67 GB instead of 43 GB for LongLive's decoder.
    found.enable_mem_pattern = False
    return found


def _gpu_providers(device: torch.device, captured: bool) -> list[Any]:
    cuda = {
        "device_id": str(device.index or 0),
        "enable_cuda_graph": str(int(captured)),
        # No TF32: it multiplies with a 10-bit mantissa.
        "use_tf32": "0",
        # A captured session has its own arena; power-of-two growth would waste memory.
        "arena_extend_strategy": "kSameAsRequested",
        # The default, an exhaustive search, takes minutes for a VAE.
        "cudnn_conv_algo_search": "HEURISTIC",
    }
    if not captured:
        cuda |= torch_memory(device)
    # Slot indices and shapes are computed on the CPU if CUDA has no kernel for them.
    return [(CUDA, cuda), CPU]


def _opened(
    files: Files,
    entry: manifest.Engine,
    options: onnxruntime.SessionOptions,
    providers: list[Any],
) -> onnxruntime.InferenceSession:
    options.add_session_config_entry(_WEIGHTS_FOLDER, files.folder)
    graph = files.read(entry.files[0])
    try:
        return onnxruntime.InferenceSession(graph, options, providers=providers, enable_fallback=0)
    except Exception as error:
        # ONNX Runtime's exceptions have no common base.
        raise UnavailableError(
            "VIDC-ENGINE-LOAD",
            f"ONNX Runtime {onnxruntime.__version__} cannot load {entry.files[0]}: "
            f"{str(error)[:300]}",
            f"run it with onnxruntime {entry.version}, which checked it, or build the bundle again",
        ) from error


def install_with_cuda() -> str:
    """Returns the commands that replace ONNX Runtime for CPUs by the one for GPUs."""
    return f"{installation().without('onnxruntime')}, then {install_packages('onnxruntime-gpu')}"


def _no_cuda(entry: manifest.Engine, why: str) -> UnavailableError:
    return UnavailableError(
        "VIDC-ENV-ONNXRUNTIME",
        f"{entry.files[0]} runs on a GPU, and the installed ONNX Runtime {onnxruntime.__version__} "
        f"{why}",
        f"{install_with_cuda()}; `vidc explain VIDC-ENV-ONNXRUNTIME` says which CUDA it takes",
    )


def _weight(file: str, node: Any, weights: Weights) -> Tensor:
    try:
        tensor = weights[node.name]
    except KeyError as error:
        raise _other_tensors(file, "weights") from error
    if (tuple(node.shape), node.type) != (
        tuple(tensor.shape),
        _TYPE_NAMES.get(DTYPE_NAMES[tensor.dtype]),
    ):
        raise _other_tensors(file, "weights")
    return tensor


def _require(file: str, kind: str, nodes: list[Any], specs: Mapping[str, TensorSpec]) -> None:
    found = [(node.name, tuple(node.shape), node.type) for node in nodes]
    expected = [(name, spec.shape, _TYPE_NAMES.get(spec.dtype)) for name, spec in specs.items()]
    if found != expected:
        raise _other_tensors(file, kind)


def _other_tensors(file: str, kind: str) -> GateError:
    return GateError(
        "VIDC-ENGINE-SIGNATURE",
        f"{file}: its {kind} are not those of the manifest",
        "build the bundle again",
    )
