"""Choice between vidc's plugins and TensorRT's own layers, and the check of a graph's plugins."""

from typing import Any

import onnx_ir as ir

from vidc.compiler.backends import CompileOptions, GraphError
from vidc.compiler.backends.graph_values import values_of
from vidc.compiler.backends.native_graph import Graph
from vidc.compiler.backends.plugin_calls import PORTABLE, PluginUse
from vidc.compiler.backends.tensorrt.product import Product
from vidc.compiler.config.schema import PLUGINS_ALL, PLUGINS_NONE
from vidc.exporters.onnx.plugin_nodes import DOMAIN, refusal
from vidc.plugins import loading
from vidc.plugins.errors import UnavailableError
from vidc.plugins.signature import Signature
from vidc.plugins.tensorrt_import import finds_its_library

CODE = "VIDC-TENSORRT-PLUGIN"
_FIELDS = {
    ir.AttributeType.INT: ("INT32", "INT64"),
    ir.AttributeType.FLOAT: ("FLOAT32",),
    ir.AttributeType.STRING: ("CHAR",),
}
"""Types of plugin attributes that a parser fills from each type of ONNX's."""


def choose_plugins(
    component: str,
    signature: Signature,
    aligned: bool,
    product: Product,
    options: CompileOptions,
) -> PluginUse:
    """Returns what vidc's plugins compute in a component.

    By default they run the rings that TensorRT's own layers do not update in place: 8-bit rings,
    and rings whose wrap a block straddles. The setting ``tensorrt.plugins`` changes that.

    Args:
        component: its name.
        signature: its signature.
        aligned: True if no block straddles the ring's wrap.
        product: the product that builds.
        options: the options of the build.

    Raises:
        UnavailableError: plugins are asked for, or an 8-bit ring needs them, and cannot be called:
            ``VIDC-TENSORRT-PLUGIN``, ``VIDC-KERNEL-LIBRARY`` or ``VIDC-KERNEL-ABI``.
    """
    rings = [s for s in signature.states if s.name.startswith("ring.")]
    narrow = any(ring.torch_dtype.itemsize == 1 for ring in rings)
    every = options.plugins == PLUGINS_ALL
    needed = bool(rings) and (narrow or not aligned)
    if not needed and not every:
        return PORTABLE
    fault = _fault(component, product, options)
    if fault is not None:
        if narrow or every:
            raise fault
        return PluginUse(notes=(_copied(f"{fault.message}; {fault.hint}"),))
    # An 8-bit ring that no kernel supports is refused by ``call_plugins``.
    refused = refusal(signature) if rings and not narrow else None
    if refused is None:
        return PluginUse(rings=bool(rings), activations=every)
    note = f"the ring runs in TensorRT's own layers: {refused}" if aligned else _copied(refused)
    return PluginUse(activations=every, notes=(note,))


def require_plugins(component: str, graph: Graph, product: Product) -> None:
    """Registers the plugins of a graph and checks its nodes, before a parser sees them.

    Raises:
        UnavailableError: ``VIDC-KERNEL-LIBRARY``, the library of plugins is missing or lacks one;
            ``VIDC-KERNEL-ABI``; ``VIDC-ENV-TENSORRT``, the parser would abort the process.
        GraphError: ``VIDC-TENSORRT-PLUGIN``, a node's attributes are not those of its plugin.
    """
    module = product.module()
    loading.register_tensorrt_plugins(module, graph.plugins.values())
    if not finds_its_library(product.name):
        raise UnavailableError(
            "VIDC-ENV-TENSORRT",
            f"{product.name} was imported before vidc: its parser would not find "
            "libtensorrt_rtx.so when it adds a plugin, and would end the process",
            "import vidc.plugins.tensorrt_import.import_tensorrt first, or put a link of that name "
            "to libtensorrt_rtx.so.1 into a folder of LD_LIBRARY_PATH",
        )
    registry, model = module.get_plugin_registry(), ir.load(graph.path)
    for node in model.graph.all_nodes():
        if node.domain == DOMAIN:
            creator = registry.get_creator(node.op_type, loading.VERSION, loading.NAMESPACE)
            _require_attributes(component, node, creator, model)


def _require_attributes(component: str, node: ir.Node, creator: Any, model: ir.Model) -> None:
    wanted = {field.name: field.type.name for field in creator.field_names}
    given = {n: a for n, a in node.attributes.items() if not n.startswith("plugin_")}
    for name in sorted(wanted.keys() | given.keys()):
        attribute = given.get(name)
        found = "none" if attribute is None else attribute.type.name
        if (
            name not in wanted
            or attribute is None
            or wanted[name] not in _FIELDS.get(attribute.type, ())
        ):
            raise GraphError(
                CODE,
                f"{component}: node {node.name!r} calls plugin {node.op_type} with attribute "
                f"{name} of type {found}, and the plugin takes {wanted.get(name, 'no such one')}",
                "build the library of plugins from the same sources as this vidc",
                component,
                values_of(model, node.name or ""),
            )


def _fault(component: str, product: Product, options: CompileOptions) -> UnavailableError | None:
    """Returns why a component's network cannot call plugins, or None."""
    if options.plugins == PLUGINS_NONE:
        return UnavailableError(
            CODE, f"{component} needs plugins, and tensorrt.plugins is none", "leave it out"
        )
    if options.version_compatible:
        # The runtime embedded in such a plan does not load the library.
        return UnavailableError(
            CODE,
            f"{component} needs plugins, which a plan for later versions of {product.title} cannot "
            "call",
            "leave out tensorrt.version_compatible",
        )
    return loading.tensorrt_library_error()


def _copied(reason: str) -> str:
    return f"the ring is copied in every pass: {reason}"
