"""Registry of backends: each subpackage builds engines of one kind and has the backend's name.

Importing this package registers the backends with the settings without importing any of them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, Self, cast

from vidc.compiler.config.backend import BUILDERS
from vidc.compiler.config.schema import PLUGINS_AUTO
from vidc.compiler.config.targets import Target
from vidc.plugins.errors import BuildError, UsageError, nearest

if TYPE_CHECKING:  # The command line imports this package before it knows that torch is needed.
    from vidc.compiler.quantize.support import QuantizationSupport
    from vidc.exporters.artifact import ExportedComponent
    from vidc.plugins.signature import Signature
    from vidc.runtime.manifest import Requirements


@dataclass(frozen=True)
class CompiledEngine:
    """Engine that a backend built in its output folder.

    Attributes:
        loader: module of ``vidc.runtime.engines`` that loads it.
        version: version of the tool that built it.
        files: paths relative to the output folder and to the bundle; the loader opens the first.
        signature: the component's signature, with the states that this engine writes in place.
        options: other arguments of the loader, plain JSON.
        requires: requirements on the machine that runs it.
        notes: remarks for the user about the build, a line each.
    """

    loader: str
    version: str
    files: tuple[str, ...]
    signature: "Signature"
    options: Mapping[str, Any]
    requires: "Requirements"
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class CompileOptions:
    """Options of a compilation that are the same for all components.

    Attributes:
        workspace_bytes: GPU memory limit of a layer's workspace; None for no limit.
        capabilities: compute capabilities to build for; empty for the target's alone.
        version_compatible: True if later versions of the tool must load the engine.
        plugins: what vidc's plugins compute, a value of ``tensorrt.plugins``.
        measure: True to measure which form of a convolution is the fastest, on the target's GPU.
        cache_folder: folder of files that speed up later builds, such as timing caches; None to
            keep none.
        note: displays a line of progress.
    """

    workspace_bytes: int | None = None
    capabilities: tuple[str, ...] = ()
    version_compatible: bool = False
    plugins: str = PLUGINS_AUTO
    measure: bool = True
    cache_folder: Path | None = None
    note: Callable[[str], None] = print


DEFAULT_OPTIONS = CompileOptions()


class GraphError(BuildError):
    """Error about a value of a component's graph.

    Args:
        component: name of the component.
        values: name of the value and of values computed from it, the nearest first. The first that
            the exported program has too leads to the line of Python.
    """

    def __init__(
        self, code: str, message: str, hint: str, component: str, values: tuple[str, ...]
    ) -> None:
        super().__init__(code, message, hint)
        self.component = component
        self.values = values

    def __reduce__(self) -> tuple[type[Self], tuple[Any, ...]]:
        # Stages run in other processes.
        return type(self), (self.code, self.message, self.hint, self.component, self.values)


class Backend(ABC):
    """Base class of the object ``vidc.compiler.backends.<name>.backend.backend``."""

    @abstractmethod
    def quantization(self, target: Target) -> "QuantizationSupport":
        """Returns the quantization that its engines for a target support."""

    @abstractmethod
    def precisions(self, target: Target) -> frozenset[str]:
        """Returns the precisions it builds for a target; empty if the target is unsupported."""

    def kernels(self, target: Target) -> tuple[str, ...]:
        """Returns the modules of ``vidc.compiler.backends.aoti.kernels`` that its engines need."""
        return ()

    @abstractmethod
    def tools(self, target: Target) -> Mapping[str, str]:
        """Returns the versions of its tools by name, which are part of a stage's key."""

    def cross_compiles(self, target: Target) -> bool:
        """Returns True if it compiles for the target's GPU on a machine without it."""
        return False

    @abstractmethod
    def unavailable(self, target: Target) -> str | None:
        """Returns why it cannot compile for a target on this machine, or None if it can."""

    @abstractmethod
    def compile(
        self,
        component: "ExportedComponent",
        target: Target,
        kernels: Mapping[str, Path],
        output: Path,
        options: CompileOptions = DEFAULT_OPTIONS,
    ) -> CompiledEngine:
        """Builds the engine of one component into the folder ``output``.

        Args:
            component: the exported component.
            target: the target to build for.
            kernels: folders of the compiled ``kernels``, by name.
            output: an empty folder.
            options: the options.
        """


def names() -> tuple[str, ...]:
    """Returns the names of all backends, sorted."""
    return tuple(sorted(module.name for module in iter_modules(__path__) if module.ispkg))


def backend(name: str) -> Backend:
    """Imports and returns the backend of this name.

    Raises:
        UsageError: ``VIDC-CONFIG-BACKEND``.
    """
    if name not in names():
        raise UsageError("VIDC-CONFIG-BACKEND", f"no backend {name!r}", nearest(name, names()))
    return cast(Backend, import_module(f"{__name__}.{name}.backend").backend)


BUILDERS.update({name: partial(backend, name) for name in names()})
