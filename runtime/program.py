"""Programs: the session class over a bundle's engines. One module each, imported on demand."""

from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from vidc.plugins.errors import UnavailableError

PROGRAMS = {
    "causal_video": "vidc.runtime.programs.causal_video:CausalVideo",
    "clip": "vidc.runtime.programs.clip:Clip",
    "latent_world": "vidc.runtime.programs.latent_world:LatentWorld",
    "world": "vidc.runtime.programs.world:World",
    "ring_world": "vidc.runtime.programs.ring_world:RingWorld",
}
"""The session class of each program, as ``module:class``."""
SPECS = {
    "causal_video": "vidc.runtime.programs.stream:StreamSpec",
    "clip": "vidc.runtime.programs.clip_spec:ClipSpec",
    "latent_world": "vidc.runtime.programs.latent_world_spec:LatentWorldSpec",
    "world": "vidc.runtime.programs.world_spec:WorldSpec",
    "ring_world": "vidc.runtime.programs.ring_world_spec:RingWorldSpec",
}
"""The class ``Spec`` of each of these programs, to read a manifest without its session class."""
GROUP = "vidc.programs"
"""Entry point group for programs of other packages."""


def program(name: str) -> Any:
    """Returns the session class of a program, a subclass of ``base.Session``.

    Raises:
        UnavailableError: ``VIDC-BUNDLE-PROGRAM``, no installed package has it.
    """
    where = PROGRAMS.get(name) or _installed(name)
    if where is None:
        raise UnavailableError(
            "VIDC-BUNDLE-PROGRAM",
            f"the bundle runs program {name[:64]!r}, which this vidc does not have",
            f"install the vidc that built the bundle, or the package that provides it ({GROUP})",
        )
    return _imported(where)


def spec_class(name: str) -> Any:
    """Returns the class of a program's parameters; raises as ``program``."""
    return _imported(SPECS[name]) if name in SPECS else program(name).Spec


def _imported(where: str) -> Any:
    module, _, attribute = where.partition(":")
    return getattr(import_module(module), attribute)


def _installed(name: str) -> str | None:
    return next((point.value for point in entry_points(group=GROUP, name=name)), None)
