"""Families: kinds of models that vidc builds, found by name.

Another package adds its own through an entry point of group ``vidc.families`` whose name is the
family's and whose object is a subclass of ``Family``. A name alone never imports a module that
nobody installed, since names come from manifests, too.
"""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from vidc.exporters.families.family import Family
from vidc.plugins.errors import UsageError, nearest

GROUP = "vidc.families"
_SHIPPED = {
    "causal_video": "vidc.exporters.families.causal_video:CausalVideo",
    "latent_world": "vidc.exporters.families.latent_world:LatentWorld",
    "svd": "vidc.exporters.families.svd:Svd",
    "world": "vidc.exporters.families.world:World",
    "oasis": "vidc.exporters.families.oasis:Oasis",
}


def family_names() -> tuple[str, ...]:
    """Names of all families, those that ship with vidc first."""
    return tuple(dict.fromkeys((*_SHIPPED, *_installed())))


@cache
def find_family(name: str) -> type[Family]:
    """Imports the family of this name.

    Raises:
        UsageError: ``VIDC-CONFIG-FAMILY``, there is none, with the nearest name.
    """
    if name in _SHIPPED:
        module, _, kind = _SHIPPED[name].partition(":")
        found: object = getattr(import_module(module), kind)
    elif name in _installed():
        found = _installed()[name].load()
    else:
        raise UsageError("VIDC-CONFIG-FAMILY", f"no family {name!r}", nearest(name, family_names()))
    assert isinstance(found, type)
    assert issubclass(found, Family)
    return found


def _installed() -> Mapping[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}
