"""The backend of a build: the one asked for, or the first that builds for the target."""

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
"""Every backend for a device of each type, the first to be tried by default first.

``onnxruntime`` comes first on a CPU because it needs no compiler, ``aoti`` on a GPU because what it
builds is measured there.
"""


class Builder(Protocol):
    """Facts about a backend that settings check."""

    def precisions(self, target: Target) -> frozenset[str]:
        """Returns the precisions it builds for a target; none if it builds nothing for it."""

    def unavailable(self, target: Target) -> str | None:
        """Returns why it cannot build for a target on this machine, or None if it can."""


BUILDERS: dict[str, Callable[[], Builder]] = {}
"""Backends by name, which ``vidc.compiler.backends`` registers; a call imports one."""


def choose_backend(asked: Setting | None) -> Setting:
    """The backend asked for, or the one that any machine has.

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
    """The backend asked for, or the first that builds for a target.

    Args:
        asked: the setting ``backend``, if there is one.
        target: what the engines are for.
        gpu: the setting that chose the target, for the message.

    Raises:
        UsageError: ``VIDC-CONFIG-BACKEND`` for an unknown name.
        UnavailableError: ``VIDC-BACKEND-TARGET``, it or every backend builds nothing for the
            target.
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
