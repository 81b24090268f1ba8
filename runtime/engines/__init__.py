"""Engines: what replays one component. One module a loader, imported when a bundle names it."""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Protocol, cast

import torch
from torch import Tensor

from vidc.plugins.errors import UnavailableError
from vidc.plugins.signature import Signature
from vidc.runtime import manifest
from vidc.runtime.states import Buffers, States
from vidc.runtime.weights import Weights


class Engine(Protocol):
    """One loaded component."""

    @property
    def signature(self) -> Signature:
        """Its tensors, and which states it writes in place."""

    def run(self, buffers: Buffers, states: States) -> None:
        """Reads the inputs and states, writes the outputs and states; flips what it must."""

    def weight(self, name: str) -> Tensor:
        """A weight that it reads, by its name, such as the scale of a state in 8 bits.

        Raises:
            KeyError: it reads none of that name.
        """


class Wrapper:
    """What an engine around another one has of it: all but how it runs."""

    def __init__(self, engine: Engine) -> None:
        self.signature: Signature = engine.signature
        self._engine = engine

    def weight(self, name: str) -> Tensor:
        """A weight that the engine reads."""
        return self._engine.weight(name)


class Loader(Protocol):
    """What a module ``vidc.runtime.engines.<name>`` provides as ``load``.

    Beside it, ``CAPTURABLE`` says whether on a GPU its engines only enqueue work on the current
    stream, so that a captured graph can hold it.
    """

    def __call__(
        self, folder: Path, entry: manifest.Engine, weights: Weights, device: torch.device
    ) -> Engine:
        """Loads the engine of ``entry`` from the bundle in ``folder``."""


def loader(name: str) -> Loader:
    """The loader of this name.

    Raises:
        UnavailableError: ``VIDC-ENGINE-LOADER``, this vidc has none of that name.
    """
    return cast(Loader, _module(name).load)


def capturable(name: str) -> bool:
    """Whether engines of this loader can be captured; raises as ``loader``."""
    return bool(_module(name).CAPTURABLE)


def _module(name: str) -> ModuleType:
    module = f"{__name__}.{name}"
    if find_spec(module) is None:
        raise UnavailableError(
            "VIDC-ENGINE-LOADER",
            f"the bundle needs an engine loader {name!r}, which this vidc does not have",
            "install the vidc that built the bundle",
        )
    return import_module(module)
