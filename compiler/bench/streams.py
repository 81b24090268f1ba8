"""What is measured: the bundle's own stream and those of the baselines, behind one interface."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from vidc.plugins.errors import UsageError, nearest
from vidc.runtime import Bundle
from vidc.runtime.manifest import Manifest

OURS = "vidc"


class Stream(Protocol):
    """One live stream, as ``vidc.runtime.Session`` describes these calls."""

    def prompt(self, prompt: Tensor, /) -> None:
        """Sets the prompt the stream starts with."""

    def switch_prompt(self, prompt: Tensor, /) -> None:
        """Sets a new prompt between two blocks."""

    def step(self, noise: Tensor | None = None) -> Tensor:
        """Generates the next block: its frames."""

    def denoise(self, noise: Tensor | None = None) -> Tensor:
        """The next block's clean latent."""

    def remember(self, latent: Tensor, /) -> None:
        """Takes a clean latent as the next block."""

    def decode(self, latent: Tensor, /) -> Tensor:
        """The frames of the next block to be decoded."""


Opener = Callable[[], Stream]
"""Opens a stream; those that one opener opens share their weights and engines."""


def of_bundle(bundle: Bundle, seed: int) -> Opener:
    """Sessions of a loaded bundle."""
    return lambda: bundle.session(seed=seed)


def of_baselines(
    names: tuple[str, ...], folder: Path, manifest: Manifest, device: torch.device, seed: int
) -> dict[str, Opener]:
    """Streams of the baselines of these names, on one copy of the bundle's weights.

    Raises:
        UsageError: ``VIDC-BENCH-AGAINST``, there is no baseline of that name.
    """
    if not names:
        return {}
    from vidc.compiler.bench.baseline.baseline import FORMS, Baseline

    require_baselines(names)
    baseline = Baseline.from_bundle(folder, manifest, device)
    return {name: _opener(baseline.session, seed, FORMS[name]) for name in names}


def require_baselines(names: tuple[str, ...]) -> None:
    """Refuses a name of no baseline; raises as ``of_baselines``."""
    from vidc.compiler.bench.baseline.baseline import FORMS

    for name in names:
        if name not in FORMS:
            raise UsageError(
                "VIDC-BENCH-AGAINST", f"there is no baseline {name!r}", nearest(name, FORMS)
            )


def _opener(session: Callable[[int, str | None], Stream], seed: int, form: str | None) -> Opener:
    return lambda: session(seed, form)
