"""Backend ``onnxruntime``: ONNX graphs for a CPU or a GPU."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vidc.compiler.backends import DEFAULT_OPTIONS, Backend, CompiledEngine, CompileOptions
from vidc.compiler.config.targets import Target, gpu_unavailable
from vidc.compiler.quantize.support import ONNX, QuantizationSupport
from vidc.compiler.store.sources import versions
from vidc.runtime.manifest import PORTABLE
from vidc.runtime.ort import onnxruntime

if TYPE_CHECKING:
    from vidc.exporters.artifact import ExportedComponent

NAME = "onnxruntime"
FOLDER = "engines/onnxruntime"
_LEVEL = "ORT_ENABLE_ALL"


class OnnxRuntimeBackend(Backend):
    """Builds checked graphs, which ONNX Runtime compiles when it loads them.

    A CPU runs the portable graph with external weights; a GPU runs a graph whose weights are
    inputs and whose ring is updated in place.
    """

    def quantization(self, target: Target) -> QuantizationSupport:
        """Returns the support of Q/DQ graphs; for a GPU ``precisions`` has no 8-bit format."""
        return ONNX

    def precisions(self, target: Target) -> frozenset[str]:
        """Returns fp32 and fp16, plus int8 for a CPU.

        Not int8 for a GPU: the CUDA provider has no INT8 convolution, neither ``QLinearConv`` nor
        ``ConvInteger`` (onnxruntime issues 5127 and 24807).
        Not bf16: the CPU provider has no bf16 attention, and on an H200 errors of LongLive-1.3B
        were up to 1.5 times PyTorch's (docs/evidence/quality.md).
        """
        return frozenset({"fp32", "fp16"} if target.is_gpu else {"fp32", "fp16", "int8"})

    def tools(self, target: Target) -> Mapping[str, str]:
        """Returns the versions of ONNX Runtime and of the packages that write and read graphs."""
        found = {NAME: onnxruntime.__version__}
        if target.is_gpu:
            return found | versions("torch", "onnx", "onnxscript", "onnx-ir")
        return found | versions("onnx-ir")

    def cross_compiles(self, target: Target) -> bool:
        """Returns True for a GPU: writing its graph needs no GPU."""
        return target.is_gpu

    def unavailable(self, target: Target) -> str | None:
        """Returns why a machine with the GPU cannot run the graph: a package without CUDA.

        The CPU package is part of the base install.
        """
        if not target.is_gpu or gpu_unavailable(target) is not None:
            return None
        from vidc.runtime.engines.onnxruntime import CUDA, install_with_cuda

        if CUDA not in onnxruntime.get_available_providers():
            return f"onnxruntime {onnxruntime.__version__} has no CUDA: {install_with_cuda()}"
        return None

    def compile(
        self,
        component: "ExportedComponent",
        target: Target,
        kernels: Mapping[str, Path],
        output: Path,
        options: CompileOptions = DEFAULT_OPTIONS,
    ) -> CompiledEngine:
        """Writes the checked graph for a CPU, rewritten to run faster, or a graph for a GPU."""
        return _for_gpu(component, output) if target.is_gpu else _for_cpu(component, output)


def _for_cpu(component: "ExportedComponent", output: Path) -> CompiledEngine:
    import onnx_ir
    from onnx_ir.passes.common import LiftConstantsToInitializersPass

    from vidc.compiler.backends.graph_values import require_clean_graph
    from vidc.compiler.backends.onnxruntime.heads import use_packed_heads
    from vidc.compiler.backends.onnxruntime.phases import use_phases
    from vidc.exporters.onnx.states import aliasable_states

    model = onnx_ir.load(component.onnx)
    require_clean_graph(component.name, model, "onnxruntime")
    in_place = aliasable_states(model, component.signature)
    if use_phases(model) + use_packed_heads(model):
        LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
        onnx_ir.save(model, output / component.onnx.name)
    else:
        shutil.copyfile(component.onnx, output / component.onnx.name)
    return CompiledEngine(
        loader=NAME,
        version=onnxruntime.__version__,
        files=(component.onnx.name,),
        signature=component.signature.with_in_place(in_place),
        options={"graph_optimization_level": _LEVEL, "disable_prepacking": True},
        requires=PORTABLE,
    )


def _for_gpu(component: "ExportedComponent", output: Path) -> CompiledEngine:
    from vidc.compiler.backends.native_graph import write_graph

    folder = output / FOLDER
    folder.mkdir(parents=True)
    graph = write_graph(component, "onnxruntime_cuda", folder)
    return CompiledEngine(
        loader=NAME,
        version=onnxruntime.__version__,
        files=(graph.path.relative_to(output).as_posix(),),
        signature=graph.signature,
        options={
            "graph_optimization_level": _LEVEL,
            "disable_prepacking": True,
            "weights_given": True,
            # A convolution allocates memory during capture, which CUDA refuses.
            "cuda_graph": "Conv" not in graph.operators,
        },
        requires=PORTABLE,
    )


backend = OnnxRuntimeBackend()
