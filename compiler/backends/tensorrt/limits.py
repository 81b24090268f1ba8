"""What TensorRT's builder must keep to, of a build's settings."""

from vidc.compiler.backends.tensorrt.compatible import compatible
from vidc.compiler.config.resolve import Settings
from vidc.compiler.store.digest import Json


def limits(settings: Settings) -> dict[str, Json]:
    """As stage ``compile`` takes it; empty for a backend that reads none of it.

    Raises:
        UnavailableError: ``VIDC-TENSORRT-COMPATIBLE``, it cannot.
    """
    asked = settings.tensorrt
    if settings.backend not in ("tensorrt", "torch_tensorrt"):
        return {}
    found: dict[str, Json] = {}
    if asked.workspace_bytes is not None:
        found["workspace_bytes"] = asked.workspace_bytes
    if asked.hardware_compatible or asked.version_compatible:
        wanted = compatible(settings)
        if wanted.capabilities:
            found["capabilities"] = list(wanted.capabilities)
        if wanted.version:
            found["version_compatible"] = True
    return found
