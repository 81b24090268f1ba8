"""Backend ``onnxruntime``: an ONNX graph, run by ONNX Runtime on a CPU or a GPU."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import onnxruntime

from vidc.compiler.backends import WITHOUT_LIMITS, CompiledEngine, Means
from vidc.compiler.config.gpu import absent
from vidc.compiler.config.targets import Target
from vidc.compiler.quantize.form import GRAPH, Form
from vidc.compiler.store.versions import versions
from vidc.exporters.artifact import ExportedComponent
from vidc.runtime.engines.onnxruntime import CUDA, INSTALL
from vidc.runtime.manifest import PORTABLE

NAME = "onnxruntime"
FOLDER = "engines/onnxruntime"
_LEVEL = "ORT_ENABLE_ALL"


class OnnxRuntimeBackend:
    """ONNX Runtime compiles when it loads, so what is built here is a checked graph.

    On a CPU that is the portable one, with its weights beside it; on a GPU one whose weights are
    given, and whose ring is written in place.
    """

    def form(self, target: Target) -> Form:
        """Graphs with Q and DQ; none for a GPU, for which it has no precision of 8 bits."""
        return GRAPH

    def precisions(self, target: Target) -> frozenset[str]:
        """fp32, fp16 and, on a CPU, int8; on a GPU bf16, in which attention fails on a CPU."""
        found = {"fp32", "fp16", "bf16"} if target.is_gpu else {"fp32", "fp16", "int8"}
        return frozenset(found) & frozenset(target.precisions)

    def kernels(self, target: Target) -> tuple[str, ...]:
        """None: its graphs are of standard operators."""
        return ()

    def tools(self, target: Target) -> Mapping[str, str]:
        """Versions of ONNX Runtime and of what writes and reads the graph."""
        found = {NAME: onnxruntime.__version__}
        if target.is_gpu:
            return found | versions("torch", "onnx", "onnxscript", "onnx-ir")
        return found | versions("onnx-ir")

    def anywhere(self, target: Target) -> bool:
        """A graph for a GPU is written without one."""
        return target.is_gpu

    def unavailable(self, target: Target) -> str | None:
        """On a CPU it is part of the base install; where the GPU is, another package runs it."""
        if not target.is_gpu or absent(target) is not None:
            return None
        if CUDA not in onnxruntime.get_available_providers():
            return f"onnxruntime {onnxruntime.__version__} has no CUDA: {INSTALL}"
        return None

    def compile(
        self,
        component: ExportedComponent,
        target: Target,
        kernels: Mapping[str, Path],
        output: Path,
        means: Means = WITHOUT_LIMITS,
    ) -> CompiledEngine:
        """Checks the graph, or writes one for a GPU, and finds what it can write in place."""
        return _for_gpu(component, output) if target.is_gpu else _for_cpu(component, output)


def _for_cpu(component: ExportedComponent, output: Path) -> CompiledEngine:
    import onnx_ir

    from vidc.compiler.backends.graph_values import require_clean_graph
    from vidc.exporters.onnx.quantize import unsigned_inputs
    from vidc.exporters.onnx.states import aliasable_states

    model = onnx_ir.load(component.onnx)
    require_clean_graph(component.name, model, "onnxruntime")
    if unsigned_inputs(model):
        onnx_ir.save(model, output / component.onnx.name)
    else:
        shutil.copyfile(component.onnx, output / component.onnx.name)
    return CompiledEngine(
        loader=NAME,
        version=onnxruntime.__version__,
        files=(component.onnx.name,),
        signature=component.signature.with_in_place(aliasable_states(model, component.signature)),
        options={"graph_optimization_level": _LEVEL, "disable_prepacking": True},
        requires=PORTABLE,
    )


def _for_gpu(component: ExportedComponent, output: Path) -> CompiledEngine:
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
            # A convolution asks for memory while it is captured, which CUDA refuses.
            "cuda_graph": "Conv" not in graph.operators,
        },
        requires=PORTABLE,
    )


backend = OnnxRuntimeBackend()
