"""The two products with TensorRT's API, and the choice between them by target."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vidc.compiler.config.targets import Target
from vidc.compiler.store.sources import installed
from vidc.plugins.errors import UnavailableError
from vidc.plugins.installation import install_extra, install_packages
from vidc.plugins.tensorrt_import import import_tensorrt

if TYPE_CHECKING:
    from vidc.exporters.onnx.constructs import Parser  # Needs what the base install lacks.
    from vidc.exporters.onnx.functional import Operators

NVIDIA_INDEX = ("--extra-index-url", "https://pypi.nvidia.com")
"""Options of pip for what is not on PyPI."""


@dataclass(frozen=True)
class Product:
    """Product with TensorRT's API.

    Attributes:
        name: name of its Python module and of its ONNX parser.
        title: NVIDIA's name for it.
        distribution: package that installs the module.
        install: hint that says how to install the package.
        capabilities: compute capabilities that its engines run on.
        cross_compiles: True if it builds without a GPU; else it builds for the GPU at hand.
        int8_convolutions: compute capabilities on which it is known to compute convolutions between
            Q/DQ in INT8 although their weights are inputs of the network.
    """

    name: "Parser"
    title: str
    distribution: str
    install: str
    capabilities: frozenset[str]
    cross_compiles: bool
    int8_convolutions: frozenset[str] = frozenset()

    def version(self) -> str | None:
        """Returns the installed version or None."""
        return installed(self.distribution)

    def module(self) -> Any:
        """Imports and returns its Python module.

        Raises:
            UnavailableError: ``VIDC-ENV-TENSORRT``, it is not installed or does not load.
        """
        try:
            return import_tensorrt(self.name)
        except (ImportError, OSError) as error:
            raise UnavailableError(
                "VIDC-ENV-TENSORRT",
                f"{self.title} cannot be imported: {str(error)[:200]}",
                self.install,
            ) from error


_RTX = Product(
    name="tensorrt_rtx",
    title="TensorRT-RTX",
    distribution="tensorrt-rtx",
    install=f"{install_extra('rtx')}, which takes tensorrt-rtx from PyPI",
    capabilities=frozenset({"7.5", "8.0", "8.6", "8.9", "12.0", "12.1"}),
    cross_compiles=True,
    # On 7.5, convolutions between Q/DQ run in float16, and matmuls in INT8.
    int8_convolutions=frozenset({"8.0", "8.6", "8.9", "12.0", "12.1"}),
)
_ENTERPRISE = Product(
    name="tensorrt",
    title="TensorRT",
    distribution="tensorrt",
    install=f"{install_packages('tensorrt', options=NVIDIA_INDEX)}: its libraries are on NVIDIA's "
    "own index, not on PyPI",
    capabilities=frozenset({"7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0", "12.1"}),
    cross_compiles=False,
    # Unknown for any GPU: its builder has not run here.
)
PRODUCTS: Mapping[str, Product] = {product.name: product for product in (_RTX, _ENTERPRISE)}


def convolution_form(
    product: Product, target: Target, capabilities: Collection[str]
) -> "Operators":
    """Returns how quantized convolutions are exported, so that a product computes them in INT8.

    They stay convolutions between Q/DQ where it is known to do so, else they become matmuls.

    Args:
        product: the product.
        target: the target to build for.
        capabilities: compute capabilities to build for; empty for the target's alone.
    """
    from vidc.exporters.onnx.quantized import convolution_as_matmul, convolution_for_tensorrt
    from vidc.plugins.ops.quantized_conv2d import quantized_conv2d

    native = product.int8_convolutions.issuperset(capabilities or {target.compute_capability})
    return {quantized_conv2d: convolution_for_tensorrt if native else convolution_as_matmul}


def product_for(target: Target) -> Product | None:
    """Returns the product that a target names, or None if it does not support the target."""
    if target.tensorrt is None or target.compute_capability is None:
        return None
    product = PRODUCTS[target.tensorrt]
    return product if target.compute_capability in product.capabilities else None


def unsupported_reason(target: Target) -> str:
    """Returns why ``product_for`` a target is None."""
    if target.tensorrt is None or target.compute_capability is None:
        return "it builds for GPUs only"
    product = PRODUCTS[target.tensorrt]
    served = ", ".join(sorted(product.capabilities, key=numbers))
    return (
        f"{product.title} supports GPUs of compute capability {served}, and {target.name} has "
        f"{target.compute_capability}"
    )


def numbers(capability: str) -> tuple[int, ...]:
    """Returns a compute capability as a tuple, which sorts by version."""
    return tuple(int(number) for number in capability.split("."))
