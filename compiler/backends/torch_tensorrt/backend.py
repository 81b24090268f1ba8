"""Backend ``torch_tensorrt``: plans that Torch-TensorRT makes of a program, without ONNX."""

from collections.abc import Mapping
from pathlib import Path

from vidc.compiler.backends import WITHOUT_LIMITS, CompiledEngine, Means
from vidc.compiler.backends.tensorrt.product import unserved
from vidc.compiler.backends.torch_tensorrt.package import Package, package_for
from vidc.compiler.config.gpu import absent
from vidc.compiler.config.targets import Target
from vidc.compiler.quantize.form import NETWORK, Form
from vidc.compiler.store.versions import versions
from vidc.exporters.artifact import ExportedComponent
from vidc.runtime.manifest import PORTABLE

FOLDER = "engines/torch_tensorrt"


class TorchTensorRtBackend:
    """Over the same products as ``tensorrt``, whose loader runs its plans."""

    def form(self, target: Target) -> Form:
        """Programs, as ``tensorrt``; none are quantized, as it has no precision of 8 bits."""
        return NETWORK

    def precisions(self, target: Target) -> frozenset[str]:
        """fp32 and fp16; bf16 where the GPU has it. Nothing in 8 bits."""
        found = {"fp32", "fp16", "bf16"} if package_for(target) is not None else set()
        return frozenset(found) & frozenset(target.precisions)

    def kernels(self, target: Target) -> tuple[str, ...]:
        """None: its attention is TensorRT's."""
        return ()

    def tools(self, target: Target) -> Mapping[str, str]:
        """Torch-TensorRT, the product beneath it, and torch."""
        package = _package(target)
        return versions("torch") | {
            package.distribution: package.version() or "none",
            package.product.name: package.product.version() or "none",
        }

    def anywhere(self, target: Target) -> bool:
        """No: Torch-TensorRT imports where there is a GPU, and loads the plans that it builds."""
        return False

    def unavailable(self, target: Target) -> str | None:
        """Needs the package for the target's product, that product, and the GPU."""
        package = package_for(target)
        if package is None:
            return unserved(target)
        if package.version() is None:
            return f"{package.distribution} is not installed: {package.install}"
        if package.product.version() is None:
            return f"{package.product.title} is not installed: {package.product.install}"
        return absent(target)

    def compile(
        self,
        component: ExportedComponent,
        target: Target,
        kernels: Mapping[str, Path],
        output: Path,
        means: Means = WITHOUT_LIMITS,
    ) -> CompiledEngine:
        """Converts the component's program.

        Raises:
            UnavailableError: ``VIDC-ENV-TORCH-TENSORRT``, ``VIDC-ENV-TENSORRT``.
            BuildError: ``VIDC-TORCH-TENSORRT-CONVERT``, ``VIDC-TENSORRT-MEMORY``.
        """
        from vidc.compiler.backends.torch_tensorrt.convert import convert

        package = _package(target)
        converted = convert(component, package, means)
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
