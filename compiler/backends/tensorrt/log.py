"""Logger of a TensorRT product."""

from typing import Any

from vidc.compiler.backends.tensorrt.engine_layers import is_layer_message


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
