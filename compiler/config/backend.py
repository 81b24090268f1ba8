"""Backend of a build: the named one, or the first that supports the target."""

from collections.abc import Callable
from typing import Protocol

from vidc.compiler.config.layers import Setting
from vidc.compiler.config.targets import AUTO, Target
from vidc.plugins.errors import UnavailableError, UsageError, nearest

DEFAULT = "default"
PREFERENCE = {
    "cpu": ("onnxruntime", "aoti", "tensorrt", "torch_tensorrt"),
    "cuda": ("aoti", "tensorrt", "onnxruntime", "torch_tensorrt"),
}
"""Backends by device type, in order of preference.

``onnxruntime`` comes first on a CPU because it needs no compiler, ``aoti`` on a GPU because its
engines are the ones measured there.
"""


class Builder(Protocol):
    """The part of a backend that settings are checked against."""

    def precisions(self, target: Target) -> frozenset[str]:
        """Returns the precisions it builds for a target; none if it builds nothing for it."""

    def unavailable(self, target: Target) -> str | None:
        """Returns why it cannot build for a target on this machine, or None if it can."""


BUILDERS: dict[str, Callable[[], Builder]] = {}
"""Backends by name, registered by ``vidc.compiler.backends``; calling a value imports it."""


def choose_backend(asked: Setting | None) -> Setting:
    """Returns the named backend, or a CPU's default, without regard to a target.

    Raises:
        UsageError: ``VIDC-CONFIG-BACKEND`` for an unknown name.
    """
    if asked is None:
        return Setting(PREFERENCE["cpu"][0], DEFAULT)
    if asked.value not in BUILDERS:
        raise UsageError(
            "VIDC-CONFIG-BACKEND",
            f"no backend {asked.value!r} ({asked.origin})",
            nearest(str(asked.value), BUILDERS),
        )
    return asked


def choose_builder(asked: Setting | None, target: Target, gpu: Setting) -> Setting:
    """Returns the named backend, or the first that supports a target.

    Args:
        asked: setting ``backend``, if any.
        target: target of the engines.
        gpu: setting that chose the target, for the message.

    Raises:
        UsageError: ``VIDC-CONFIG-BACKEND`` for an unknown name.
        UnavailableError: ``VIDC-BACKEND-TARGET``, the named backend, or every backend, builds
            nothing for the target.
    """
    backend = None if asked is None else choose_backend(asked)
    if backend is not None and BUILDERS[backend.value]().precisions(target):
        return backend
    preferred = PREFERENCE[target.device_type]
    first = next((name for name in preferred if BUILDERS[name]().precisions(target)), None)
    where = "this machine's GPU" if gpu.value == AUTO else gpu.origin
    if first is None:
        raise UnavailableError(
            "VIDC-BACKEND-TARGET",
            f"no backend of this version builds for {target.name} yet ({where})",
            "pass --gpu cpu; `vidc export` needs no backend",
        )
    if backend is not None:
        reason = BUILDERS[backend.value]().unavailable(target)
        raise UnavailableError(
            "VIDC-BACKEND-TARGET",
            f"backend {backend.value} ({backend.origin}) builds nothing for {target.name} "
            f"({where}): {reason}",
            f"pass --backend {first}",
        )
    return Setting(first, DEFAULT)
