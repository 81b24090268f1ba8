"""What is measured: the bundle's own stream and those of the baselines, behind one interface."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from vidc.plugins.errors import UsageError, nearest
from vidc.runtime import Bundle
from vidc.runtime.manifest import Manifest
from vidc.runtime.stream import StreamSpec

if TYPE_CHECKING:
    from vidc.compiler.bench.baseline.stream import BaselineSession

OURS = "vidc"


class Stream(Protocol):
    """One live stream, as ``vidc.runtime.Session`` describes these calls."""

    def prompt(self, prompt: Tensor, /) -> None:
        """Sets the prompt the stream starts with."""

    def switch_prompt(self, prompt: Tensor, /) -> None:
        """Sets a new prompt between two blocks."""

    def step(self, noise: Tensor | None = None) -> Tensor:
        """Generates the next block: its frames."""

    def generate(self, noise: Tensor | None = None) -> Tensor:
        """Generates the next block: its clean latent."""

    def decode(self, latent: Tensor, /) -> Tensor:
        """The frames of the next block to be decoded."""


@dataclass(frozen=True)
class Contestant:
    """Something that opens streams, which share its weights and engines.

    Attributes:
        open: opens one.
        spec: their sizes.
    """

    open: Callable[[], Stream]
    spec: StreamSpec


class BaselineStream:
    """A baseline's session, whose blocks are made by the two calls of the public code."""

    def __init__(self, session: "BaselineSession") -> None:
        self._session = session
        self.prompt = session.prompt
        self.switch_prompt = session.switch_prompt
        self.step = session.step
        self.decode = session.decode

    def generate(self, noise: Tensor | None = None) -> Tensor:
        """Denoises a block and runs the clean pass over it."""
        latent = self._session.denoise(noise)
        self._session.remember(latent)
        return latent


def of_bundle(bundle: Bundle, seed: int) -> Contestant:
    """Sessions of a loaded bundle."""
    return Contestant(lambda: bundle.session(seed=seed), bundle.stream)


def of_baselines(
    names: tuple[str, ...], folder: Path, manifest: Manifest, device: torch.device, seed: int
) -> dict[str, Contestant]:
    """Streams of the baselines of these names, on one copy of the bundle's weights.

    Raises:
        UsageError: ``VIDC-BENCH-AGAINST``, there is no baseline of that name.
    """
    if not names:
        return {}
    from vidc.compiler.bench.baseline.baseline import FORMS, Baseline

    require_baselines(names)
    baseline = Baseline.from_bundle(folder, manifest, device)

    def contestant(name: str) -> Contestant:
        return Contestant(
            lambda: BaselineStream(baseline.session(seed, FORMS[name])), manifest.stream
        )

    return {name: contestant(name) for name in names}


def require_baselines(names: tuple[str, ...]) -> None:
    """Refuses a name of no baseline; raises as ``of_baselines``."""
    from vidc.compiler.bench.baseline.baseline import FORMS

    for name in names:
        if name not in FORMS:
            raise UsageError(
                "VIDC-BENCH-AGAINST", f"there is no baseline {name!r}", nearest(name, FORMS)
            )
