"""The two packages that are imported as ``torch_tensorrt``, one for each TensorRT product."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from packaging.version import Version

from vidc.compiler.backends.tensorrt.product import (
    NVIDIA_INDEX,
    PRODUCTS,
    Product,
    product_for,
)
from vidc.compiler.config.targets import Target
from vidc.compiler.store.sources import installed
from vidc.plugins.errors import UnavailableError
from vidc.plugins.installation import install_packages

CODE = "VIDC-ENV-TORCH-TENSORRT"
_MODULE = "torch_tensorrt"


@dataclass(frozen=True)
class Package:
    """Torch-TensorRT package.

    Attributes:
        distribution: package that installs the module.
        product: product that it builds with.
        options: arguments of ``pip install`` before the package's name.
        remark: continues the sentence that gives the install command.
        packages: further packages that it needs and that pip does not install with it.
        oldest: oldest release that works with the product's version that vidc needs; None for any.
    """

    distribution: str
    product: Product
    options: Sequence[str]
    remark: str
    packages: Sequence[str] = ()
    oldest: str | None = None

    def version(self) -> str | None:
        """Returns the installed version or None."""
        return installed(self.distribution)

    @property
    def install(self) -> str:
        """The install command, for the release that matches torch."""
        release = ".".join(torch.__version__.split(".")[:2])
        wanted = (f"{self.distribution}=={release}.*", *self.packages)
        return f"{install_packages(*wanted, options=self.options)}{self.remark}"

    def too_old(self) -> str | None:
        """Returns a message if the installed release does not work with the product, or None."""
        found = self.version()
        if found is None or self.oldest is None or Version(found) >= Version(self.oldest):
            return None
        return (
            f"{self.distribution} {found} does not import beside {self.product.title} "
            f"{self.product.version()}: use torch {self.oldest} or later with the "
            f"{self.distribution} of the same release"
        )

    def module(self) -> Any:
        """Imports and returns ``torch_tensorrt``.

        Raises:
            UnavailableError: ``VIDC-ENV-TORCH-TENSORRT``, it is not installed, does not import, or
                is the package of the other product.
        """
        try:
            with redirect_stdout(sys.stderr):
                module = import_module(_MODULE)
        except Exception as error:
            # It raises AssertionError without a GPU and Exception without TensorRT.
            raise UnavailableError(
                CODE,
                f"{self.distribution} {self.version() or '(not installed)'} cannot be imported: "
                f"{type(error).__name__}: {str(error)[:200]}",
                f"{self.install}; it imports on a machine with a GPU alone",
            ) from error
        if module.tensorrt_package_name != self.product.name:
            raise UnavailableError(
                CODE,
                f"torch_tensorrt {module.__version__} builds with {module.tensorrt_package_name}, "
                f"and the target is built for with {self.product.name}",
                f"uninstall it, then {self.install}: two packages have this module",
            )
        return module


_RTX = Package(
    distribution="torch-tensorrt-rtx",
    product=PRODUCTS["tensorrt_rtx"],
    options=("--no-deps",),
    packages=("dllist", "psutil"),
    remark=", all on PyPI, beside vidc's extra rtx: it asks for an older TensorRT-RTX",
    oldest="2.13",
)
_ENTERPRISE = Package(
    distribution="torch-tensorrt",
    product=PRODUCTS["tensorrt"],
    options=NVIDIA_INDEX,
    remark=": it is on PyPI, the libraries of TensorRT that it needs on NVIDIA's own index",
)
PACKAGES: Mapping[str, Package] = {each.product.name: each for each in (_RTX, _ENTERPRISE)}


def package_for(target: Target) -> Package | None:
    """Returns the package for the product that a target names, or None."""
    product = product_for(target)
    return None if product is None else PACKAGES[product.name]
