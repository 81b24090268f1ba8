"""The layers of a plan: those of an engine that is loaded for it, or those its builder said."""

from typing import Any

from vidc.compiler.backends.tensorrt.engine_layers import (
    EngineLayers,
    layers_from_json,
    layers_from_log,
)
from vidc.compiler.backends.tensorrt.log import Log
from vidc.compiler.backends.tensorrt.product import Product
from vidc.plugins.errors import GateError, UnavailableError


def built_layers(plan: bytes, log: Log, product: Product) -> EngineLayers | None:
    """The layers of a plan that was built just now; None where nobody says them.

    A product that builds on the GPU has its inspector asked there. Any other is taken at the word
    of its builder, which is the same on every machine.
    """
    if not product.anywhere:
        try:
            return inspected_layers(plan, product)
        except (GateError, UnavailableError):
            pass  # The engine is as good without.
    return layers_from_log(log.engine)


def inspected_layers(plan: bytes, product: Product) -> EngineLayers:
    """What the product's engine inspector says of a plan, which it loads on this machine's GPU.

    Raises:
        UnavailableError: ``VIDC-ENV-TENSORRT``, the product is not installed;
            ``VIDC-ENGINE-LOAD``, there is no GPU, or it does not load the plan.
        GateError: ``VIDC-BUNDLE-MALFORMED``, it describes no layers.
    """
    import torch

    if not torch.cuda.is_available():
        raise _not_loaded(product, "torch finds no CUDA device here")
    module = product.module()
    log = Log(module)
    engine = module.Runtime(log.logger).deserialize_cuda_engine(plan)
    if engine is None:
        reason = log.errors[0][:200] if log.errors else "it is for another GPU or version"
        raise _not_loaded(product, reason)
    inspector = engine.create_engine_inspector()
    text: Any = inspector.get_engine_information(module.LayerInformationFormat.JSON)
    return layers_from_json(text, {"activation": engine.device_memory_size_v2})


def _not_loaded(product: Product, reason: str) -> UnavailableError:
    return UnavailableError(
        "VIDC-ENGINE-LOAD",
        f"{product.title} does not load the plan: {reason}",
        "inspect it on the GPU that it was built for, in the version that built it",
    )
