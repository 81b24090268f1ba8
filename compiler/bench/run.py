"""Runs a benchmark: cold starts in separate processes, then streams side by side."""

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from vidc.compiler.bench.fingerprint import fingerprint, gpu_state
from vidc.compiler.bench.measure import Protocol, measure
from vidc.compiler.bench.metrics import Decoding
from vidc.compiler.bench.processes import Start, samples, start
from vidc.compiler.bench.profile import profile
from vidc.compiler.bench.record import Result, Stored, against_baselines, against_stored
from vidc.compiler.bench.streams import (
    OURS,
    load_bundle,
    of_baselines,
    of_bundle,
    read_bundle,
)
from vidc.compiler.bench.sweep import Base, Dimension, sweep, variant_settings
from vidc.compiler.bench.usage import Disturbance
from vidc.compiler.config.environment import cache_root
from vidc.compiler.store.run import Progress
from vidc.compiler.store.store import Store
from vidc.compiler.validate.golden import read_prompts
from vidc.plugins.errors import GateError
from vidc.runtime.faults import gpu_faults
from vidc.runtime.files import Files
from vidc.runtime.manifest import Manifest
from vidc.runtime.programs.spec import ProgramSpec
from vidc.runtime.record import compare_record


@dataclass(frozen=True)
class Request:
    """Request for a benchmark.

    Attributes:
        bundle: folder of the bundle.
        against: names of baselines.
        stored: a result to compare with.
        protocol: numbers of rounds and samples.
        cold_starts: processes that start our stream; each baseline has at most one.
        profile: True to profile components and kernels.
        sweep: a setting to vary.
        decoder: one of the bundle's decoders; None for its first.
    """

    bundle: Path
    against: tuple[str, ...]
    stored: Stored | None
    protocol: Protocol
    cold_starts: int
    profile: bool = False
    sweep: Dimension | None = None
    decoder: str | None = None

    def rounds(self, spec: ProgramSpec) -> int:
        """Returns the rounds of the bundle and of each swept value, for a progress bar."""
        values = 0 if self.sweep is None else len(self.sweep.values)
        return self.protocol.rounds(spec) * (1 + values)


def bench(request: Request, progress: Progress, tick: Callable[[], None]) -> Result:
    """Runs a benchmark.

    Args:
        request: what to measure.
        progress: shows what is being done.
        tick: called after each of ``request.rounds``.

    Raises:
        UnavailableError: ``VIDC-GPU-MEMORY``, ``VIDC-GPU-LOST``.
        VidcError: as ``load``, ``start`` and ``measure``.
    """
    folder, protocol, note = request.bundle, request.protocol, progress.note
    manifest = read_bundle(folder, request.decoder)
    prompts, wanted = _prompts(folder, manifest.spec), {}
    if request.sweep is not None:
        key, values = request.sweep.key, request.sweep.values
        with Files(folder, manifest.files) as files:
            compare_record(files, manifest)  # Variants are resolved from the manifest's fields.
        wanted = {value: variant_settings(manifest, key, value) for value in values}
    # Cold starts run before this process uses the device.
    starts = _starts(request, note)
    note("loading engines")
    bundle = load_bundle(folder, request.decoder)
    device = bundle.device
    profiled = swept = None
    with gpu_faults(device):
        contestants = {OURS: of_bundle(bundle, protocol.seed)}
        contestants |= of_baselines(request.against, folder, manifest, device, protocol.seed)
        note(f"measuring {', '.join(contestants)}")
        disturbance = Disturbance()
        measured = measure(contestants, device, prompts, protocol, tick)
        disturbed, state = disturbance.share(), gpu_state(device)
        # The next measurements need the whole device and its memory.
        contestants.clear()
        if request.profile:
            note("profiling")
            profiled = profile(manifest, bundle, prompts, protocol.seed)
        if request.sweep is not None:
            base = Base(folder, manifest, bundle, request.decoder)
            swept = sweep(base, request.sweep.key, wanted, protocol, progress, tick)
    notes = [*bundle.notes]
    built = build_seconds(manifest)
    if built is None:
        notes.append("build time: the build cache of this machine does not have this build")
    else:
        measured[OURS]["build_s"] = [built]
    decoding, streams = Decoding(*bundle.program.decoder_names), {}
    for name, own in measured.items():
        found = samples(starts[name]) | own
        streams[name] = {metric: found[metric] for metric in decoding.metrics if metric in found}
    result = Result(
        bundle=manifest.name,
        decoding=decoding,
        workload=workload(manifest),
        protocol={**asdict(protocol), "cold_starts": request.cold_starts},
        fingerprint=fingerprint(device, folder),
        streams=streams,
        judgments=tuple(against_baselines(streams, decoding.metrics)),
        steps=tuple(each.seconds for each in starts[OURS]),
        disturbance=disturbed,
        gpu_state=state,
        profile=profiled,
        sweep=swept,
        notes=tuple(notes),
    )
    return result if request.stored is None else against_stored(result, request.stored)


def workload(manifest: Manifest) -> dict[str, Any]:
    """Returns the workload of a bundle as plain JSON values."""
    engines = manifest.engines.values()
    return {
        "preset": manifest.preset,
        "target": manifest.target.name,
        **manifest.spec.workload,
        "precision": sorted({engine.precision for engine in engines}),
        "backend": sorted({engine.backend for engine in engines}),
    }


def build_seconds(manifest: Manifest) -> float | None:
    """Returns the sum of the seconds of a build's stages; None if the cache lacks one.

    The build itself took less, because stages run in parallel. Packaging is not included.
    """
    store = Store(cache_root(os.environ))
    # Packaging is not a stage of the store.
    keys = {stage: key for stage, key in manifest.stages.items() if stage != "package"}
    found = [store.lookup(stage, key, sizes_only=True) for stage, key in keys.items()]
    seconds = [entry.record.seconds for entry in found if entry is not None]
    return sum(seconds) if seconds and len(seconds) == len(found) else None


def _prompts(folder: Path, spec: ProgramSpec) -> torch.Tensor:
    prompts = read_prompts(folder)
    if spec.prompt_shape and not prompts.numel():
        raise GateError(
            "VIDC-VALIDATE-GOLDEN",
            f"{folder} holds no golden data, whose prompts the measurement is made with",
            "build the bundle again",
        )
    return prompts


def _starts(request: Request, note: Callable[[str], None]) -> dict[str, list[Start]]:
    starts = {}
    for name in (OURS, *request.against):
        times = request.cold_starts if name == OURS else min(request.cold_starts, 1)
        if times:
            note(f"starting {name} in a process of its own, {times}x")
        seed, decoder = request.protocol.seed, request.decoder
        starts[name] = [start(request.bundle, name, seed, decoder) for _ in range(times)]
    return starts
