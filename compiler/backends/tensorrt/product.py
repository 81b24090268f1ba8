"""The two products that share TensorRT's API, and which of them builds for a target."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from vidc.compiler.config.targets import Target
from vidc.plugins.errors import UnavailableError

if TYPE_CHECKING:
    from vidc.exporters.onnx.constructs import Parser  # Needs what the base install lacks.


@dataclass(frozen=True)
class Product:
    """A product.

    Attributes:
        name: of its Python module, and of its parser of ONNX.
        title: as NVIDIA calls it.
        distribution: what installs the module.
        install: the command for that.
        capabilities: compute capabilities that its engines run on.
        anywhere: whether it builds without a GPU. One that does not builds for the GPU it runs on.
        plugins: whether its networks may hold plugins.
    """

    name: "Parser"
    title: str
    distribution: str
    install: str
    capabilities: frozenset[str]
    anywhere: bool
    plugins: bool

    def version(self) -> str | None:
        """The installed version, None where there is none."""
        try:
            return version(self.distribution)
        except PackageNotFoundError:
            return None

    def module(self) -> Any:
        """Its Python module, imported now.

        Raises:
            UnavailableError: ``VIDC-ENV-TENSORRT``, it is not installed, or does not load.
        """
        try:
            return import_module(self.name)
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
    install="pip install 'vidc[rtx]', which takes tensorrt-rtx from PyPI",
    capabilities=frozenset({"7.5", "8.0", "8.6", "8.9", "12.0", "12.1"}),
    anywhere=True,
    plugins=False,
)
_ENTERPRISE = Product(
    name="tensorrt",
    title="TensorRT",
    distribution="tensorrt",
    install="pip install tensorrt --extra-index-url https://pypi.nvidia.com: its libraries are on "
    "NVIDIA's own index, not on PyPI",
    capabilities=frozenset({"7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0", "12.1"}),
    anywhere=False,
    plugins=True,
)
PRODUCTS: Mapping[str, Product] = {product.name: product for product in (_RTX, _ENTERPRISE)}


def product_for(target: Target) -> Product | None:
    """The product that a target names, which is the same on every machine.

    None for a CPU, and for a GPU that the product does not serve: ``unserved`` says so.
    """
    if target.tensorrt is None or target.compute_capability is None:
        return None
    product = PRODUCTS[target.tensorrt]
    return product if target.compute_capability in product.capabilities else None


def unserved(target: Target) -> str:
    """Why no product builds for a target of which ``product_for`` is None."""
    if target.tensorrt is None or target.compute_capability is None:
        return "it is built for GPUs alone"
    product = PRODUCTS[target.tensorrt]
    served = ", ".join(sorted(product.capabilities, key=numbers))
    return (
        f"{product.title} serves GPUs of compute capability {served}, and {target.name} has "
        f"{target.compute_capability}"
    )


def numbers(capability: str) -> tuple[int, ...]:
    """A compute capability as what orders it."""
    return tuple(int(number) for number in capability.split("."))
