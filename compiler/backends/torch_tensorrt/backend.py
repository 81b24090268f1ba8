"""Backend ``torch_tensorrt``: plans that Torch-TensorRT converts from a program, without ONNX."""

from collections.abc import Mapping
from pathlib import Path

from vidc.compiler.backends import DEFAULT_OPTIONS, Backend, CompiledEngine, CompileOptions
from vidc.compiler.backends.tensorrt.product import unsupported_reason
from vidc.compiler.backends.torch_tensorrt.package import Package, package_for
from vidc.compiler.config.targets import Target, gpu_unavailable
from vidc.compiler.quantize.support import TENSORRT, QuantizationSupport
from vidc.compiler.store.sources import versions
from vidc.exporters.artifact import ExportedComponent
from vidc.runtime.manifest import PORTABLE

FOLDER = "engines/torch_tensorrt"


class TorchTensorRtBackend(Backend):
    """Builds plans of the same products as ``tensorrt``, for the same loader.

    It does not cross-compile: Torch-TensorRT needs a GPU to import, and loads the built plans.
    """

    def quantization(self, target: Target) -> QuantizationSupport:
        """Returns the support of ``tensorrt``; ``precisions`` has no 8-bit format."""
        return TENSORRT

    def precisions(self, target: Target) -> frozenset[str]:
        """Returns fp32 and fp16, plus bf16 if the GPU supports it."""
        found = {"fp32", "fp16", "bf16"} if package_for(target) is not None else set()
        return frozenset(found) & frozenset(target.precisions)

    def tools(self, target: Target) -> Mapping[str, str]:
        """Returns Torch-TensorRT, its product, and torch."""
        package = _package(target)
        return versions("torch") | {
            package.distribution: package.version() or "none",
            package.product.name: package.product.version() or "none",
        }

    def unavailable(self, target: Target) -> str | None:
        """Returns None if a package that works, the target's product and the GPU are here."""
        package = package_for(target)
        if package is None:
            return unsupported_reason(target)
        if package.version() is None:
            return f"{package.distribution} is not installed: {package.install}"
        if package.product.version() is None:
            return f"{package.product.title} is not installed: {package.product.install}"
        return package.too_old() or gpu_unavailable(target)

    def compile(
        self,
        component: ExportedComponent,
        target: Target,
        kernels: Mapping[str, Path],
        output: Path,
        options: CompileOptions = DEFAULT_OPTIONS,
    ) -> CompiledEngine:
        """Converts the component's program.

        Raises:
            UnavailableError: ``VIDC-ENV-TORCH-TENSORRT``, ``VIDC-ENV-TENSORRT``.
            BuildError: ``VIDC-TORCH-TENSORRT-CONVERT``, ``VIDC-TENSORRT-MEMORY``.
        """
        from vidc.compiler.backends.torch_tensorrt.convert import convert

        package = _package(target)
        converted = convert(component, package, options)
        file = output / FOLDER / f"{component.name}.plan"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(converted.plan)
        return CompiledEngine(
            loader="tensorrt",
            version=package.product.version() or "",
            files=(file.relative_to(output).as_posix(),),
            signature=converted.signature,
            options={"product": package.product.name, "names": dict(converted.names)},
            requires=PORTABLE,
        )


def _package(target: Target) -> Package:
    package = package_for(target)
    if package is None:
        raise ValueError(f"no product of TensorRT's builds for {target.name}")
    return package


backend = TorchTensorRtBackend()
