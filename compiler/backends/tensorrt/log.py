"""What a product says while it parses, builds and loads."""

from typing import Any

from vidc.compiler.backends.tensorrt.engine_layers import says_layers


class Log:
    """What goes wrong while a product parses and builds, and what it says of the engine."""

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
                elif says_layers(text):
                    engine.append(text)

        self.logger = Logger()
        self.errors = errors
        """The first one first."""
        self.engine = engine
        """What ``layers_from_log`` reads."""
