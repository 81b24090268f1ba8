"""Builds a network into a plan."""

from typing import Any

from vidc.compiler.backends import WITHOUT_LIMITS, Means
from vidc.compiler.backends.tensorrt.network import Network
from vidc.compiler.backends.tensorrt.product import Product
from vidc.compiler.backends.tensorrt.timings import Timings
from vidc.compiler.config.targets import Target
from vidc.compiler.store.units import byte_size
from vidc.plugins.errors import BuildError

_OUT_OF_MEMORY = ("out of memory", "outofmemory", "bad_alloc")
_OVER_LIMIT = ("workspace limit", "workspace memory")
"""In what a builder says where no kernel of a layer fits in the workspace."""


def build_plan(
    component: str,
    network: Network,
    product: Product,
    target: Target,
    means: Means = WITHOUT_LIMITS,
) -> bytes:
    """The plan of a network, with the names of its layers kept.

    Raises:
        BuildError: ``VIDC-TENSORRT-BUILD``, with the component and the builder's reason;
            ``VIDC-TENSORRT-MEMORY``, there was too little memory to build it, or less workspace
            than any of its kernels takes.
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
        _build_for(module, config, means.capabilities or (target.compute_capability or "",))
    elif means.capabilities:
        config.hardware_compatibility_level = module.HardwareCompatibilityLevel.AMPERE_PLUS
    if network.plugins:  # Which write rings where they lie.
        config.set_preview_feature(module.PreviewFeature.ALIASED_PLUGIN_IO_10_03, True)
    if means.version_compatible:
        # With the runtime that loads it inside: without, that library has to be found elsewhere.
        config.set_flag(module.BuilderFlag.VERSION_COMPATIBLE)
    limit = _workspace_bytes(product, target, means)
    if limit is not None:
        config.set_memory_pool_limit(module.MemoryPoolType.WORKSPACE, limit)
    timings = _timings(product, target, means)
    if timings is not None:
        timings.give(config)
    try:
        plan = network.builder.build_serialized_network(network.definition, config)
    except MemoryError as error:
        raise _no_memory(component, product, means, str(error)) from error
    if plan is None:
        for logged in network.log.errors:
            if limit is not None and any(word in logged.lower() for word in _OVER_LIMIT):
                raise _no_workspace(component, product, limit, logged)
            if any(word in logged.lower() for word in _OUT_OF_MEMORY):
                raise _no_memory(component, product, means, logged)
        reason = network.log.errors[0] if network.log.errors else "it gave no reason"
        raise BuildError(
            "VIDC-TENSORRT-BUILD",
            f"{component}: {product.title} {product.version()} cannot build its network for "
            f"{target.name}: {reason[:300]}",
            "try another precision, or another backend",
        )
    if timings is not None:
        timings.keep(config)
    return bytes(plan)


def _build_for(module: Any, config: Any, capabilities: tuple[str, ...]) -> None:
    config.num_compute_capabilities = len(capabilities)
    for index, capability in enumerate(capabilities):
        name = f"SM{capability.replace('.', '')}"
        config.set_compute_capability(getattr(module.ComputeCapability, name), index)


def _timings(product: Product, target: Target, means: Means) -> Timings | None:
    """What a product that builds on the GPU has measured there; without one it measures nothing."""
    if product.anywhere or means.kept is None:
        return None
    name = f"{product.name}-{product.version()}-{target.name}.timings"
    return Timings(means.kept / name, means.note)


def _workspace_bytes(product: Product, target: Target, means: Means) -> int | None:
    """What a layer may work in; None is all that the GPU at hand has."""
    if means.workspace_bytes is not None or not product.anywhere or target.memory_gb is None:
        return means.workspace_bytes
    # Without a GPU the product takes 64 GiB to be there.
    return target.memory_gb * 10**9


def _no_workspace(component: str, product: Product, limit: int, reason: str) -> BuildError:
    return BuildError(
        "VIDC-TENSORRT-MEMORY",
        f"{component}: {product.title} has no kernel of a layer that works in {byte_size(limit)}: "
        f"{reason[:200]}",
        "raise tensorrt.workspace_gb, or leave it out; what other components gave is kept",
    )


def _no_memory(component: str, product: Product, means: Means, reason: str) -> BuildError:
    limit = "" if means.workspace_bytes is None else ", or raise tensorrt.workspace_gb"
    return BuildError(
        "VIDC-TENSORRT-MEMORY",
        f"{component}: {product.title} ran out of memory while building: {reason[:200]}",
        f"free memory, or build with a smaller stream{limit}; what other components gave is kept",
    )
