"""Hardware and version compatibility of plans, and the other limits of a build."""

from collections.abc import Collection
from dataclasses import dataclass

from vidc.compiler.backends.tensorrt.product import Product, numbers, product_for
from vidc.compiler.config.resolve import Settings
from vidc.compiler.config.schema import PLUGINS_AUTO
from vidc.compiler.config.targets import Target
from vidc.compiler.store.digest import Json
from vidc.plugins.errors import UnavailableError

CODE = "VIDC-TENSORRT-COMPATIBLE"
SINCE = {"fp32": "8.0", "bf16": "8.0", "fp8": "8.9"}
"""First compute capability of each precision. TensorRT-RTX has no fp32 on 7.5."""
AMPERE = "8.0"
"""First compute capability of TensorRT's compatibility level ``AMPERE_PLUS``."""


@dataclass(frozen=True)
class Compatible:
    """Requested compatibility of a plan.

    Attributes:
        capabilities: compute capabilities that it runs on; empty for the target's alone.
        version: True if later versions load it.
    """

    capabilities: tuple[str, ...] = ()
    version: bool = False


def compatible(settings: Settings) -> Compatible:
    """Returns the compatibility that settings request, the same for all plans of a bundle.

    Raises:
        UnavailableError: ``VIDC-TENSORRT-COMPATIBLE``, unsupported by the backend, or by the
            product for this target in these precisions.
    """
    asked, target, product = settings.tensorrt, settings.target, product_for(settings.target)
    if settings.backend != "tensorrt" or product is None:
        name = "version" if asked.version_compatible else "hardware"
        raise UnavailableError(
            CODE,
            f"tensorrt.{name}_compatible: backend {settings.backend} does not support it",
            "pass --backend tensorrt, which builds for the same targets, or leave it out",
        )
    groups = settings.model.parts
    precisions = {settings.named_precision(group) for group in groups}
    precisions |= {settings.precision[group] for group in groups}
    if asked.version_compatible and product.cross_compiles:
        raise UnavailableError(
            CODE,
            f"tensorrt.version_compatible: plans of {product.title} load in the version that built "
            f"them alone, and it builds for {target.name}",
            "leave it out, and build again for another version",
        )
    found: tuple[str, ...] = ()
    if asked.hardware_compatible:
        found = _capabilities(product, target, precisions)
    return Compatible(found, asked.version_compatible)


def limits(settings: Settings) -> dict[str, Json]:
    """Returns the TensorRT settings that stage ``compile`` takes.

    Raises:
        UnavailableError: ``VIDC-TENSORRT-COMPATIBLE``.
    """
    asked = settings.tensorrt
    found: dict[str, Json] = {}
    if asked.workspace_bytes is not None:
        found["workspace_bytes"] = asked.workspace_bytes
    if asked.plugins != PLUGINS_AUTO:
        if settings.backend != "tensorrt":
            raise UnavailableError(
                CODE,
                f"tensorrt.plugins: backend {settings.backend} calls no plugins",
                "pass --backend tensorrt, which builds for the same targets, or leave it out",
            )
        found["plugins"] = asked.plugins
    if asked.hardware_compatible or asked.version_compatible:
        wanted = compatible(settings)
        if wanted.capabilities:
            found["capabilities"] = list(wanted.capabilities)
        if wanted.version:
            found["version_compatible"] = True
    return found


def _capabilities(product: Product, target: Target, precisions: Collection[str]) -> tuple[str, ...]:
    first = max((SINCE[p] for p in precisions if p in SINCE), key=numbers, default="0.0")
    if not product.cross_compiles:
        if numbers(target.compute_capability or "0.0") < numbers(AMPERE):
            raise UnavailableError(
                CODE,
                f"tensorrt.hardware_compatible: {product.title} has it for GPUs of compute "
                f"capability {AMPERE} and above, and {target.name} has {target.compute_capability}",
                "leave it out, or build on a newer GPU",
            )
        if numbers(first) > numbers(AMPERE):
            late = sorted(p for p in precisions if numbers(SINCE.get(p, AMPERE)) > numbers(AMPERE))
            raise UnavailableError(
                CODE,
                f"tensorrt.hardware_compatible: {product.title} has it for all GPUs of compute "
                f"capability {AMPERE} and above, of which those before {first} have no {late[0]}",
                "leave it out, or build in fp16, bf16 or int8",
            )
        first = AMPERE
    served = (each for each in product.capabilities if numbers(each) >= numbers(first))
    return tuple(sorted(served, key=numbers))
