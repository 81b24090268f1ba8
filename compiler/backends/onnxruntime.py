"""Backend ``onnxruntime``: the portable ONNX graph, run by ONNX Runtime on a CPU."""

import shutil
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from vidc.compiler.backends import CompiledEngine
from vidc.compiler.quantise.form import GRAPH
from vidc.compiler.settings.targets import Target
from vidc.compiler.versions import versions
from vidc.exporters.artifact import ExportedComponent

NAME = "onnxruntime"


class OnnxRuntimeBackend:
    """ONNX Runtime compiles when it loads, so what is built here is a checked graph."""

    form = GRAPH

    def precisions(self, target: Target) -> frozenset[str]:
        """fp32, fp16 and int8 on a CPU; its bf16 attention fails."""
        return frozenset() if target.is_gpu else frozenset({"fp32", "fp16", "int8"})

    def kernels(self, target: Target) -> tuple[str, ...]:
        """None: its graphs are of standard operators."""
        return ()

    def tools(self, target: Target) -> Mapping[str, str]:
        """Versions of ONNX Runtime and of what reads the graph."""
        return versions(NAME, "onnx-ir")

    def anywhere(self, target: Target) -> bool:
        """No: it compiles when it loads."""
        return False

    def unavailable(self, target: Target) -> str | None:
        """None: it is part of the base install."""
        return "it is built for CPUs alone" if target.is_gpu else None

    def compile(
        self,
        component: ExportedComponent,
        target: Target,
        kernels: Mapping[str, Path],
        output: Path,
    ) -> CompiledEngine:
        """Checks the graph, copies it, and finds the states it can write in place."""
        import onnx_ir

        from vidc.exporters.onnx.lint import require_clean
        from vidc.exporters.onnx.quantize import unsigned_inputs
        from vidc.exporters.onnx.states import aliasable_states

        model = onnx_ir.load(component.onnx)
        require_clean(model, "onnxruntime")
        if unsigned_inputs(model):
            onnx_ir.save(model, output / component.onnx.name)
        else:
            shutil.copyfile(component.onnx, output / component.onnx.name)
        return CompiledEngine(
            loader=NAME,
            version=version(NAME),
            files=(component.onnx.name,),
            signature=component.signature.with_in_place(
                aliasable_states(model, component.signature)
            ),
            options={"graph_optimization_level": "ORT_ENABLE_ALL", "disable_prepacking": True},
        )


backend = OnnxRuntimeBackend()
