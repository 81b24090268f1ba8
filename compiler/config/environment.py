"""Environment variables that vidc reads."""

import re
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
KNOWN = (*SETTINGS, CACHE, "VIDC_CUDA", "VIDC_TENSORRT_INCLUDE")
"""Known variables. Only the build of the package itself, with its kernels, reads the last two."""
_KUBERNETES = re.compile(
    r"VIDC_([A-Z0-9_]+_)?"
    r"(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
"""Variables that Kubernetes sets in every container next to a service named ``vidc...``."""


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
        UsageError: ``VIDC-CONFIG-ENVIRONMENT`` for an unknown ``VIDC_`` variable, or for a folder
            in the home of a user who has none.
    """
    _require_known(environ)
    chosen, user = environ.get(CACHE), environ.get("XDG_CACHE_HOME")
    folder = chosen or str(Path(user or "~/.cache") / "vidc")
    try:
        return Path(folder).expanduser()
    except RuntimeError as error:
        raise UsageError(
            "VIDC-CONFIG-ENVIRONMENT",
            f"the build cache would be {folder}, and this user has no home folder",
            f"set {CACHE} to a folder that can be written, such as {CACHE}=/var/tmp/vidc",
        ) from error


def _require_known(environ: Mapping[str, str]) -> None:
    for variable in environ:
        if (
            variable.startswith("VIDC_")
            and variable not in KNOWN
            and not _KUBERNETES.fullmatch(variable)
        ):
            raise UsageError(
                "VIDC-CONFIG-ENVIRONMENT",
                f"unknown environment variable {variable}",
                nearest(variable, KNOWN),
            )
