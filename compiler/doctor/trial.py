"""Trial of a bundle: loads it in a process of its own, which damaged native code may crash."""

from pathlib import Path

from vidc.compiler.doctor.probes import Finding, Status
from vidc.compiler.store.workers import alone
from vidc.plugins.errors import BuildError, VidcError


def try_bundle(bundle: Path) -> Finding:
    """Loads a bundle and opens a session in another process; returns the finding."""
    try:
        engines = alone("trial", _load, bundle)
    except BuildError:
        return Finding(
            "bundle",
            Status.BROKEN,
            f"loading {bundle} ended its process",
            "build the bundle again with the versions that are installed; do not load this one",
        )
    except VidcError as error:
        return Finding("bundle", Status.BROKEN, error.message, error.hint)
    return Finding("bundle", Status.GOOD, f"{bundle} loads: {engines} engines")


def _load(bundle: Path) -> int:
    from vidc.runtime.bundle import load

    with load(bundle) as loaded, loaded.session():
        return len(loaded.engines)
