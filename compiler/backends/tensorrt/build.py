"""Build of a plan from a network."""

from typing import Any

from vidc.compiler.backends import DEFAULT_OPTIONS, CompileOptions
from vidc.compiler.backends.tensorrt.network import Network
from vidc.compiler.backends.tensorrt.product import Product
from vidc.compiler.backends.tensorrt.timings import Timings
from vidc.compiler.config.targets import Target
from vidc.compiler.store.disk import byte_size
from vidc.plugins.errors import BuildError

OUT_OF_MEMORY = ("out of memory", "outofmemory", "bad_alloc")
"""Parts of a builder's messages that tell of too little memory."""
_OVER_LIMIT = ("workspace limit", "workspace memory")
"""Parts of a builder's messages that tell of too small a workspace."""


def build_plan(
    component: str,
    network: Network,
    product: Product,
    target: Target,
    options: CompileOptions = DEFAULT_OPTIONS,
) -> bytes:
    """Builds the plan of a network, with detailed layer names.

    Raises:
        BuildError: ``VIDC-TENSORRT-BUILD``, with the component and the builder's reason;
            ``VIDC-TENSORRT-MEMORY``, memory ran out, or no kernel fits in the workspace.
    """
    module = product.module()
    config = network.builder.create_builder_config()
    config.profiling_verbosity = module.ProfilingVerbosity.DETAILED
    # Full float32, and no allocation, because engines run in captured graphs.
    config.clear_flag(module.BuilderFlag.TF32)
    if hasattr(module.BuilderFlag, "REQUIRE_USER_ALLOCATION"):
        config.set_flag(module.BuilderFlag.REQUIRE_USER_ALLOCATION)
    if product.cross_compiles:
        build_for(module, config, options.capabilities or (target.compute_capability or "",))
    elif options.capabilities:
        config.hardware_compatibility_level = module.HardwareCompatibilityLevel.AMPERE_PLUS
    if network.plugins:  # They update rings in place.
        config.set_preview_feature(module.PreviewFeature.ALIASED_PLUGIN_IO_10_03, True)
    if options.version_compatible:
        # The plan embeds the runtime that loads it.
        config.set_flag(module.BuilderFlag.VERSION_COMPATIBLE)
    limit = _workspace_bytes(product, target, options)
    if limit is not None:
        config.set_memory_pool_limit(module.MemoryPoolType.WORKSPACE, limit)
    timings = _timings(product, target, options)
    if timings is not None:
        timings.load(config)
    try:
        plan = network.builder.build_serialized_network(network.definition, config)
    except MemoryError as error:
        raise _no_memory(component, product, options, str(error)) from error
    if plan is None:
        for logged in network.log.errors:
            if limit is not None and any(word in logged.lower() for word in _OVER_LIMIT):
                raise _no_workspace(component, product, limit, logged)
            if any(word in logged.lower() for word in OUT_OF_MEMORY):
                raise _no_memory(component, product, options, logged)
        reason = network.log.errors[0] if network.log.errors else "it gave no reason"
        raise BuildError(
            "VIDC-TENSORRT-BUILD",
            f"{component}: {product.title} {product.version()} cannot build its network for "
            f"{target.name}: {reason[:300]}",
            "try another precision, or another backend",
        )
    if timings is not None:
        timings.save(config)
    return bytes(plan)


def build_for(module: Any, config: Any, capabilities: tuple[str, ...]) -> None:
    """Sets the compute capabilities that TensorRT-RTX builds for; by default the GPU's at hand."""
    config.num_compute_capabilities = len(capabilities)
    for index, capability in enumerate(capabilities):
        name = f"SM{capability.replace('.', '')}"
        config.set_compute_capability(getattr(module.ComputeCapability, name), index)


def _timings(product: Product, target: Target, options: CompileOptions) -> Timings | None:
    """Returns the timing cache of a product that builds on the GPU; others measure nothing."""
    if product.cross_compiles or options.cache_folder is None:
        return None
    name = f"{product.name}-{product.version()}-{target.name}.timings"
    return Timings(options.cache_folder / name, options.note)


def _workspace_bytes(product: Product, target: Target, options: CompileOptions) -> int | None:
    """Returns the workspace limit; None for all memory of the GPU at hand."""
    if (
        options.workspace_bytes is not None
        or not product.cross_compiles
        or target.memory_gb is None
    ):
        return options.workspace_bytes
    # Without a GPU the product assumes 64 GiB.
    return target.memory_gb * 10**9


def _no_workspace(component: str, product: Product, limit: int, reason: str) -> BuildError:
    return BuildError(
        "VIDC-TENSORRT-MEMORY",
        f"{component}: {product.title} has no kernel of a layer that fits in {byte_size(limit)}: "
        f"{reason[:200]}",
        "raise tensorrt.workspace_gb, or leave it out; finished components are reused",
    )


def _no_memory(
    component: str, product: Product, options: CompileOptions, reason: str
) -> BuildError:
    limit = "" if options.workspace_bytes is None else ", or raise tensorrt.workspace_gb"
    return BuildError(
        "VIDC-TENSORRT-MEMORY",
        f"{component}: {product.title} ran out of memory while building: {reason[:200]}",
        f"free memory, or build with a smaller stream{limit}; finished components are reused",
    )
