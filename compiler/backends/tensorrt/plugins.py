"""Whether a component's ring is in vidc's own plugins for TensorRT."""

from vidc.compiler.backends.tensorrt.product import Product
from vidc.exporters.onnx.plugin_ring import refusal
from vidc.plugins import loading
from vidc.plugins.signature import Signature


def plugin_ring(
    signature: Signature, aligned: bool, product: Product, version_compatible: bool = False
) -> tuple[bool, tuple[str, ...]]:
    """Whether the ring is in plugins, and why it is copied where they might have had it.

    Where no block straddles the ring's wrap, TensorRT's own layers write it in place; elsewhere
    plugins do, where the product takes any, and their library is installed and has the ring's
    sizes.

    Args:
        signature: of the component.
        aligned: whether no block straddles the wrap.
        product: that builds.
        version_compatible: whether later versions of it shall load the plan.
    """
    if aligned or not any(state.name.startswith("ring.") for state in signature.states):
        return False, ()
    if not product.plugins:
        reason = f"{product.title} takes no plugins, and blocks straddle its wrap"
    elif version_compatible:
        # The runtime that such a plan brings along would have to be given the library.
        reason = f"a plan for later versions of {product.title} calls no plugins"
    elif (fault := loading.tensorrt_library_error()) is not None:
        reason = f"{fault.message}; {fault.hint}"
    elif (refused := refusal(signature)) is not None:
        reason = refused
    else:
        return True, ()
    return False, (f"the ring is copied in every pass: {reason}",)
