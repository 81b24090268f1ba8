"""Log of a builder, and the layers of a built plan from that log or the engine inspector."""

import gc
from typing import Any

from vidc.compiler.backends.tensorrt.engine_layers import (
    EngineLayers,
    is_layer_message,
    layers_from_json,
    layers_from_log,
)
from vidc.compiler.backends.tensorrt.product import Product
from vidc.plugins.errors import GateError, UnavailableError


class Log:
    """Logger that collects errors and the builder's description of the engine's layers."""

    def __init__(self, module: Any) -> None:
        errors: list[str] = []
        engine: list[str] = []
        severe = (module.ILogger.ERROR, module.ILogger.INTERNAL_ERROR)

        class Logger(module.ILogger):  # type: ignore[misc]  # known at run time alone
            def __init__(self) -> None:
                module.ILogger.__init__(self)

            def log(self, severity: Any, text: str) -> None:
                if severity in severe:
                    errors.append(text)
                elif is_layer_message(text):
                    engine.append(text)

        self.logger = Logger()
        self.errors = errors
        """Error messages in their order."""
        self.engine = engine
        """Messages that ``layers_from_log`` reads."""


def new_builder(module: Any, log: Log) -> Any:
    """Returns a builder, made with Python's garbage collection off.

    TensorRT holds a lock while it logs the new builder. If the collector freed an older builder
    inside the logger, that would wait for the lock forever.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return module.Builder(log.logger)
    finally:
        if collects:
            gc.enable()


def built_layers(plan: bytes, log: Log, product: Product) -> EngineLayers | None:
    """Returns the layers of a plan that was just built, or None if they are unknown.

    They come from the inspector if the product builds on the GPU, else from the builder's log,
    which is the same on every machine.
    """
    if not product.cross_compiles:
        try:
            return inspected_layers(plan, product)
        except (GateError, UnavailableError):
            pass  # The description is optional.
    return layers_from_log(log.engine)


def inspected_layers(plan: bytes, product: Product) -> EngineLayers:
    """Loads a plan on this machine's GPU and returns the engine inspector's layers.

    Raises:
        UnavailableError: ``VIDC-ENV-TENSORRT``, the product is not installed;
            ``VIDC-ENGINE-LOAD``, there is no GPU, or the plan does not load.
        GateError: ``VIDC-BUNDLE-MALFORMED``, the description has an unknown format.
    """
    require_gpu(product)
    module = product.module()
    log = Log(module)
    engine = module.Runtime(log.logger).deserialize_cuda_engine(plan)
    if engine is None:
        reason = log.errors[0][:200] if log.errors else "it is for another GPU or version"
        raise _not_loaded(product, reason)
    inspector = engine.create_engine_inspector()
    text: Any = inspector.get_engine_information(module.LayerInformationFormat.JSON)
    return layers_from_json(text, {"activation": engine.device_memory_size_v2})


def require_gpu(product: Product) -> None:
    """Refuses to load a plan where there is no GPU.

    Raises:
        UnavailableError: ``VIDC-ENGINE-LOAD``.
    """
    import torch

    if not torch.cuda.is_available():
        raise _not_loaded(product, "torch finds no CUDA device here")


def _not_loaded(product: Product, reason: str) -> UnavailableError:
    return UnavailableError(
        "VIDC-ENGINE-LOAD",
        f"{product.title} does not load the plan: {reason}",
        "inspect it on the GPU that it was built for, in the version that built it",
    )
