"""Streams to measure: the bundle's and the baselines', behind one interface."""

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from vidc.compiler.bench.metrics import Decoding
from vidc.compiler.config.tables import model_from_json
from vidc.compiler.validate.reference import EagerEngine, eager_engines
from vidc.plugins.errors import UnavailableError, UsageError, nearest
from vidc.plugins.installation import install_extra
from vidc.runtime import Bundle, load
from vidc.runtime.integrity import VerifyMode
from vidc.runtime.manifest import Manifest, read_manifest
from vidc.runtime.program import program
from vidc.runtime.programs.base import Resources
from vidc.runtime.programs.spec import ProgramSpec

OURS = "vidc"
BASELINES = {"eager": None, "compile": "inductor"}
"""Baselines of ``vidc bench --against`` and the ``torch.compile`` backend of each."""


class Stream(Protocol):
    """One live stream, as the bundle's program describes these calls."""

    def prompt(self, prompt: Tensor, /) -> None:
        """Sets the prompt the stream starts with."""

    def switch_prompt(self, prompt: Tensor, /) -> None:
        """Sets a new prompt between two blocks."""

    def condition(self, **given: Tensor) -> None:
        """Sets the tensors, such as an image or actions, that later blocks are generated from."""

    def step(self, noise: Tensor | None = None) -> Tensor:
        """Generates the next block and returns its frames."""

    def generate(self, *, noise: Tensor | None = None) -> Tensor:
        """Generates the next block and returns its clean latent."""

    def flush(self) -> None:
        """Runs the work that the newest block left for the next one."""

    def decode(self, latent: Tensor, /) -> Tensor:
        """Decodes the next block and returns its frames."""


@dataclass(frozen=True)
class Contestant:
    """Source of streams that share weights and engines.

    Attributes:
        open: opens a new stream.
        spec: sizes of the streams.
        decoding: names of their decoder.
    """

    open: Callable[[], Stream]
    spec: ProgramSpec
    decoding: Decoding


def read_bundle(folder: Path, decoder: str | None) -> Manifest:
    """Returns a bundle's manifest as if it had one decoder, by default its first.

    Raises:
        UsageError: ``VIDC-SESSION-DECODER``, there is no decoder of this name.
        VidcError: as ``read_manifest``.
    """
    manifest = read_manifest(folder)
    return replace(manifest, spec=manifest.spec.with_decoder(decoder))


def load_bundle(folder: Path, decoder: str | None, verify: VerifyMode = "full") -> Bundle:
    """Loads a bundle as if it had one decoder, by default its first; raises as ``load``."""
    loaded = load(folder, verify)
    resources = replace(loaded.resources, spec=loaded.spec.with_decoder(decoder))
    return Bundle(loaded.program, resources, loaded.notes)


def of_bundle(bundle: Bundle, seed: int) -> Contestant:
    """Returns a contestant whose streams are sessions of a loaded bundle."""
    decoding = Decoding(*bundle.program.decoder_names)
    return Contestant(lambda: bundle.session(seed=seed), bundle.spec, decoding)


def of_baselines(
    names: tuple[str, ...], folder: Path, manifest: Manifest, device: torch.device, seed: int
) -> dict[str, Contestant]:
    """Returns baselines that run PyTorch components on one copy of the bundle's weights.

    Under ``torch.compile`` each component is compiled whole, when it first runs.

    Raises:
        UsageError: ``VIDC-BENCH-AGAINST``, there is no baseline of that name.
        UnavailableError: ``VIDC-ENV-BUILD``, a package that builds a network is not installed.
    """
    require_baselines(names)
    if not names:
        return {}
    config = model_from_json(manifest.config)
    in_stream = {n: g for n, g in config.components.items() if n in manifest.spec.components}
    weights = {group: folder / manifest.weights[group].path for group in {*in_stream.values()}}
    try:
        eager = eager_engines(config, weights, manifest.config["precision"], device)
    except ModuleNotFoundError as error:
        raise UnavailableError(
            "VIDC-ENV-BUILD",
            f"PyTorch components cannot be made here: {error}",
            f"{install_extra('build')}, or leave out --against",
        ) from error
    engines = {name: eager[name] for name in in_stream}
    return {name: _baseline(engines, BASELINES[name], manifest, device, seed) for name in names}


def require_baselines(names: tuple[str, ...]) -> None:
    """Refuses unknown baseline names; raises as ``of_baselines``."""
    for name in names:
        if name not in BASELINES:
            raise UsageError(
                "VIDC-BENCH-AGAINST", f"there is no baseline {name!r}", nearest(name, BASELINES)
            )


def _baseline(
    engines: Mapping[str, EagerEngine],
    backend: str | None,
    manifest: Manifest,
    device: torch.device,
    seed: int,
) -> Contestant:
    if backend is not None:
        engines = {name: _compiled(engine, backend) for name, engine in engines.items()}
    resources = Resources(manifest.spec, engines, device)
    session = program(manifest.program)
    decoding = Decoding(*session.decoder_names)
    return Contestant(lambda: session(resources, seed), manifest.spec, decoding)


def _compiled(engine: EagerEngine, backend: str) -> EagerEngine:
    """Returns a compiled engine over the same weights, with static shapes."""
    compiled = copy(engine)
    under = torch.compile(engine.module, backend=backend, dynamic=False)
    compiled.module = cast(nn.Module, under)
    return compiled
