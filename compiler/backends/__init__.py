"""Backends: each builds engines of one kind. A module here is a backend, by its own name.

Importing this package registers all of them with the settings and imports none of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, Protocol, Self, cast

from vidc.compiler.config.backend import BUILDERS
from vidc.compiler.config.targets import Target
from vidc.plugins.errors import BuildError, UsageError, nearest

if TYPE_CHECKING:  # The command line imports this package before it knows that torch is needed.
    from vidc.compiler.quantize.form import Form
    from vidc.exporters.artifact import ExportedComponent
    from vidc.plugins.signature import Signature
    from vidc.runtime.manifest import Requirements


@dataclass(frozen=True)
class CompiledEngine:
    """An engine as a backend leaves it in its output folder.

    Attributes:
        loader: the module of ``vidc.runtime.engines`` that loads it.
        version: of the tool that built it.
        files: relative to the output folder and, unchanged, to the bundle; the one to open first.
        signature: the component's, with the states that this engine writes in place.
        options: what the loader needs besides, plain JSON.
        requires: what the machine that runs it must have.
        notes: what the user should know of how it was built, a line each.
    """

    loader: str
    version: str
    files: tuple[str, ...]
    signature: "Signature"
    options: Mapping[str, Any]
    requires: "Requirements"
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Means:
    """What a backend may use while it compiles, beside its inputs.

    Attributes:
        workspace_bytes: of the GPU's memory that a layer may work in; None is all that there is.
        capabilities: compute capabilities that engines shall run on; none for the target's alone.
        version_compatible: whether later versions of the tool shall load them.
        kept: a folder for what makes later builds faster and is no part of engines; None where
            there is none.
        note: shows a line of progress.
    """

    workspace_bytes: int | None = None
    capabilities: tuple[str, ...] = ()
    version_compatible: bool = False
    kept: Path | None = None
    note: Callable[[str], None] = print


WITHOUT_LIMITS = Means()


class GraphError(BuildError):
    """A backend refuses a value of a component's graph.

    Args:
        component: whose graph it is.
        values: its name there and those that are computed from it, the nearest first: the first
            that PyTorch's program has as well says from which line of Python it comes.
    """

    def __init__(
        self, code: str, message: str, hint: str, component: str, values: tuple[str, ...]
    ) -> None:
        super().__init__(code, message, hint)
        self.component = component
        self.values = values

    def __reduce__(self) -> tuple[type[Self], tuple[Any, ...]]:
        # Stages run in processes of their own.
        return type(self), (self.code, self.message, self.hint, self.component, self.values)


class Backend(Protocol):
    """What a module ``vidc.compiler.backends.<name>`` provides as ``backend``."""

    def form(self, target: Target) -> "Form":
        """How it takes quantized components for a target."""

    def precisions(self, target: Target) -> frozenset[str]:
        """Precisions it can build for a target; empty where it cannot build at all."""

    def kernels(self, target: Target) -> tuple[str, ...]:
        """Names of the modules of ``vidc.compiler.backends.aoti.kernels`` that it compiles."""

    def tools(self, target: Target) -> Mapping[str, str]:
        """Versions of the tools it uses, by name: part of a stage's key."""

    def anywhere(self, target: Target) -> bool:
        """Whether it compiles for a GPU on a machine without one."""

    def unavailable(self, target: Target) -> str | None:
        """Why it cannot compile for a target on this machine, or None if it can."""

    def compile(
        self,
        component: "ExportedComponent",
        target: Target,
        kernels: Mapping[str, Path],
        output: Path,
        means: Means = WITHOUT_LIMITS,
    ) -> CompiledEngine:
        """Builds the engine of one component into the folder ``output``.

        Args:
            component: its graphs.
            target: what the engine is for.
            kernels: the folder of each of ``kernels`` that the component may call.
            output: an empty folder.
            means: what it may use.
        """


def names() -> tuple[str, ...]:
    """Every backend's name."""
    return tuple(sorted(module.name for module in iter_modules(__path__) if module.ispkg))


def backend(name: str) -> Backend:
    """The backend of this name, imported now.

    Raises:
        UsageError: ``VIDC-CONFIG-BACKEND``.
    """
    if name not in names():
        raise UsageError("VIDC-CONFIG-BACKEND", f"no backend {name!r}", nearest(name, names()))
    return cast(Backend, import_module(f"{__name__}.{name}.backend").backend)


BUILDERS.update({name: partial(backend, name) for name in names()})
