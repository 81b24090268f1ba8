"""Choice between vidc's ring plugins and TensorRT's own layers."""

from vidc.compiler.backends.tensorrt.product import Product
from vidc.exporters.onnx.plugin_ring import refusal
from vidc.plugins import loading
from vidc.plugins.signature import Signature


def plugin_ring(
    signature: Signature, aligned: bool, product: Product, version_compatible: bool = False
) -> tuple[bool, tuple[str, ...]]:
    """Returns True if plugins update the ring, and notes about a ring that is copied instead.

    If no block straddles the ring's wrap, TensorRT's own layers update it in place. Otherwise
    plugins do, if the product takes plugins and the installed library supports the ring's sizes.

    Args:
        signature: the component's signature.
        aligned: True if no block straddles the wrap.
        product: the product that builds.
        version_compatible: True if later versions of the product must load the plan.
    """
    if aligned or not any(state.name.startswith("ring.") for state in signature.states):
        return False, ()
    if not product.plugins:
        reason = f"{product.title} takes no plugins, and blocks straddle its wrap"
    elif version_compatible:
        # The runtime embedded in such a plan does not load the library.
        reason = f"a plan for later versions of {product.title} calls no plugins"
    elif (fault := loading.tensorrt_library_error()) is not None:
        reason = f"{fault.message}; {fault.hint}"
    elif (refused := refusal(signature)) is not None:
        reason = refused
    else:
        return True, ()
    return False, (f"the ring is copied in every pass: {reason}",)
