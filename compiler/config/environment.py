"""Environment variables that vidc reads."""

from collections.abc import Mapping
from pathlib import Path

from vidc.compiler.config.layers import Setting
from vidc.plugins.errors import UsageError, nearest

SETTINGS = {
    "VIDC_GPU": "gpu",
    "VIDC_PRECISION": "precision.default",
    "VIDC_BACKEND": "backend",
}
CACHE = "VIDC_CACHE"
KNOWN = (*SETTINGS, CACHE, "VIDC_CUDA")
"""``VIDC_CUDA`` is read by the package's own build."""


def environment_layer(environ: Mapping[str, str]) -> dict[str, Setting]:
    """Returns the settings of the environment; empty variables are ignored.

    Raises:
        UsageError: ``VIDC-CONFIG-ENVIRONMENT`` for an unknown ``VIDC_`` variable.
    """
    _require_known(environ)
    return {
        setting: Setting(environ[variable], variable)
        for variable, setting in SETTINGS.items()
        if environ.get(variable)
    }


def cache_root(environ: Mapping[str, str]) -> Path:
    """Returns the build cache folder: ``VIDC_CACHE``, or ``vidc`` in the user's cache folder.

    Raises:
        UsageError: ``VIDC-CONFIG-ENVIRONMENT`` for an unknown ``VIDC_`` variable.
    """
    _require_known(environ)
    if chosen := environ.get(CACHE):
        return Path(chosen).expanduser()
    user = environ.get("XDG_CACHE_HOME")
    return (Path(user) if user else Path.home() / ".cache") / "vidc"


def _require_known(environ: Mapping[str, str]) -> None:
    for variable in environ:
        if variable.startswith("VIDC_") and variable not in KNOWN:
            raise UsageError(
                "VIDC-CONFIG-ENVIRONMENT",
                f"unknown environment variable {variable}",
                nearest(variable, KNOWN),
            )
