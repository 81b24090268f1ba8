"""Engines, each of which runs one component. One module per loader, imported on demand."""

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Protocol, cast

import torch
from torch import Tensor

from vidc.plugins.errors import UnavailableError
from vidc.plugins.signature import Signature
from vidc.runtime import manifest
from vidc.runtime.files import Files
from vidc.runtime.states import Buffers, States
from vidc.runtime.weights import Weights


class Engine(Protocol):
    """One loaded component."""

    @property
    def signature(self) -> Signature:
        """Its tensors, and the states that it writes in place."""

    def run(self, buffers: Buffers, states: States) -> None:
        """Reads inputs and states, writes outputs and new states.

        A state that the engine cannot write in place has its new value in a spare buffer first.
        After the call, ``states`` has the new value.
        """

    def weight(self, name: str) -> Tensor:
        """Returns a weight of the engine by name, such as the scale of an 8-bit state.

        Raises:
            KeyError: the engine reads no weight of that name.
        """


class Wrapper:
    """Base class for engines that wrap another engine."""

    def __init__(self, engine: Engine) -> None:
        self.signature: Signature = engine.signature
        self._engine = engine

    def weight(self, name: str) -> Tensor:
        """Returns a weight of the wrapped engine."""
        return self._engine.weight(name)


class Loader(Protocol):
    """The function ``load`` of a module ``vidc.runtime.engines.<name>``.

    The module also has ``CAPTURABLE``: True if its engines, on a GPU, only enqueue work on the
    current stream, so that a CUDA graph can capture them. Its ``VERSION`` is that of the installed
    tool that runs the engines; None if ``load`` itself refuses engines of other versions.
    """

    def __call__(
        self, files: Files, entry: manifest.Engine, weights: Weights, device: torch.device
    ) -> Engine:
        """Loads the engine of ``entry`` from a bundle's files."""


def loader(name: str) -> Loader:
    """Returns the loader of this name.

    Raises:
        UnavailableError: ``VIDC-ENGINE-LOADER``, this vidc has no such loader.
    """
    return cast(Loader, _module(name).load)


def capturable(name: str) -> bool:
    """Returns True if CUDA graphs can capture this loader's engines; raises as ``loader``."""
    return bool(_module(name).CAPTURABLE)


def version(name: str) -> str | None:
    """Returns the version of the tool that runs this loader's engines; raises as ``loader``."""
    return cast(str | None, _module(name).VERSION)


def _module(name: str) -> ModuleType:
    module = f"{__name__}.{name}"
    spec = find_spec(module)
    if spec is None or not hasattr(loaded := import_module(module), "CAPTURABLE"):
        raise UnavailableError(
            "VIDC-ENGINE-LOADER",
            f"the bundle needs an engine loader {name!r}, which this vidc does not have",
            "install the vidc that built the bundle",
        )
    return loaded
