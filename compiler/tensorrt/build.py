"""Builds a network into a plan."""

from typing import Any

from vidc.compiler.settings.targets import Target
from vidc.compiler.tensorrt.network import Network
from vidc.compiler.tensorrt.product import Product
from vidc.plugins.errors import BuildError

_OUT_OF_MEMORY = ("out of memory", "outofmemory", "bad_alloc")


def build_plan(component: str, network: Network, product: Product, target: Target) -> bytes:
    """The plan of a network, with the names of its layers kept.

    Raises:
        BuildError: ``VIDC-TENSORRT-BUILD``, with the component and the builder's reason;
            ``VIDC-TENSORRT-MEMORY``, there was too little memory to build it.
    """
    module = product.module()
    config = network.builder.create_builder_config()
    config.profiling_verbosity = module.ProfilingVerbosity.DETAILED
    # float32 is float32, as everywhere; and engines run in captured graphs, where nothing may be
    # allocated.
    config.clear_flag(module.BuilderFlag.TF32)
    if hasattr(module.BuilderFlag, "REQUIRE_USER_ALLOCATION"):
        config.set_flag(module.BuilderFlag.REQUIRE_USER_ALLOCATION)
    if product.anywhere:
        _build_for(module, config, target)
    try:
        plan = network.builder.build_serialized_network(network.definition, config)
    except MemoryError as error:
        raise _no_memory(component, product, str(error)) from error
    if plan is None:
        for logged in network.log.errors:
            if any(word in logged.lower() for word in _OUT_OF_MEMORY):
                raise _no_memory(component, product, logged)
        reason = network.log.errors[0] if network.log.errors else "it gave no reason"
        raise BuildError(
            "VIDC-TENSORRT-BUILD",
            f"{component}: {product.title} {product.version()} cannot build its network for "
            f"{target.name}: {reason[:300]}",
            "try another precision, or another backend",
        )
    return bytes(plan)


def _build_for(module: Any, config: Any, target: Target) -> None:
    capability = (target.compute_capability or "").replace(".", "")
    config.num_compute_capabilities = 1
    config.set_compute_capability(getattr(module.ComputeCapability, f"SM{capability}"), 0)


def _no_memory(component: str, product: Product, reason: str) -> BuildError:
    return BuildError(
        "VIDC-TENSORRT-MEMORY",
        f"{component}: {product.title} ran out of memory while building: {reason[:200]}",
        "free memory, or build with a smaller stream; what other components gave is kept",
    )
