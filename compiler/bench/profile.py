"""Profile of a bundle: times of components and kernels against the device's peaks."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vidc.compiler.bench.clock import MILLISECONDS, Clock, copy_gbps, matmul_tflops
from vidc.compiler.bench.kernels import Kernel, kernels
from vidc.compiler.bench.statistics import Summary
from vidc.compiler.bench.work import Kind, Work, component_work
from vidc.compiler.config.targets import targets
from vidc.exporters.models import PRECISIONS
from vidc.runtime.bundle import Bundle
from vidc.runtime.manifest import Manifest
from vidc.runtime.programs.base import LATENTS
from vidc.runtime.programs.spec import ProgramSpec
from vidc.runtime.states import Buffers, States

WARMUP = 5
SAMPLES = 20
WATCHED = 3
"""Number of profiled blocks, decodings and switches."""
_TERA, _GIGA = 1e12, 1e9
_ROUNDING = 1.02


@dataclass(frozen=True)
class Rate:
    """Rate and its share of the measured peak.

    ``share`` is None if the peak is unknown or exceeded. A share above 100 % means that the count,
    the clock or the peak is wrong, so none is shown.
    """

    value: float
    share: float | None

    @classmethod
    def of(cls, value: float, peak: float | None) -> "Rate":
        """Returns a rate in the unit of its peak."""
        return cls(value, value / peak if peak and value <= peak else None)


@dataclass(frozen=True)
class ComponentRow:
    """Time and rates of one component.

    Attributes:
        component: name of the component.
        calls: number of calls for a block and its decoding; 0 if only a prompt switch calls it.
        ms: time of one call.
        tflop: TFLOP of one call.
        gigabytes: minimal memory traffic of one call in GB.
        tflops: rate in TFLOP/s.
        gbps: traffic in GB/s.
    """

    component: str
    calls: int
    ms: Summary
    tflop: float
    gigabytes: float
    tflops: Rate
    gbps: Rate


@dataclass(frozen=True)
class KindRow:
    """All kernels of one kind in a phase, such as a block.

    Attributes:
        phase: name of the phase.
        kind: kind of the kernels.
        ms: total time of the kernels in one run of the phase.
        tflop: TFLOP of one run; None for a kind whose operations are not counted.
        tflops: rate in TFLOP/s, or None.
    """

    phase: str
    kind: Kind
    ms: float
    tflop: float | None
    tflops: Rate | None


@dataclass(frozen=True)
class Profile:
    """A finished profile.

    Attributes:
        peaks: peaks measured on this machine: TFLOP/s of matmuls by precision, and GB/s of copies
            as ``memory``.
        specified: the same peaks in the target's file; unknown ones are left out.
        components: components of a block and of a switch.
        kinds: kernel kinds by phase.
        kernels: kernels by phase, longest first.
        notes: remarks for the reader.
    """

    peaks: Mapping[str, float]
    specified: Mapping[str, float]
    components: tuple[ComponentRow, ...]
    kinds: tuple[KindRow, ...]
    kernels: Mapping[str, tuple[Kernel, ...]]
    notes: tuple[str, ...]


def profile(manifest: Manifest, bundle: Bundle, prompts: Tensor, seed: int) -> Profile:
    """Times every component of a loaded bundle by itself and watches the kernels of a stream.

    Args:
        manifest: manifest of the bundle.
        bundle: loaded bundle; nothing else may run on its device.
        prompts: embeddings before and after a switch, if the program takes prompts.
        seed: seed of the stream.
    """
    device, spec = bundle.device, bundle.spec
    used = sorted({manifest.engines[name].precision for name in spec.components})
    peaks = {name: matmul_tflops(PRECISIONS[name], device) for name in used if name in PRECISIONS}
    peaks["memory"] = copy_gbps(device)
    specified = _specified(manifest, peaks)
    work = component_work(manifest)
    calls = {**spec.calls["block"], **spec.calls[bundle.program.decoder_names[0]]}
    rows = [
        _component(name, time, calls.get(name, 0), manifest, work[name], peaks)
        for name, time in _times(bundle).items()
        if name in work
    ]
    watched = _watch(bundle, prompts.to(device), seed)
    phases = {phase: _sum(work, calls) for phase, calls in spec.calls.items()}
    peak = {phase: peaks.get(_precision(bundle, manifest, phase)) for phase in phases}
    kinds = [
        row
        for phase, found in watched.items()
        for row in _kinds(phase, found, phases[phase], peak[phase])
    ]
    return Profile(
        peaks, specified, tuple(rows), tuple(kinds),
        {phase: tuple(found) for phase, found in watched.items()},
        tuple(_notes(manifest, peaks, specified, rows)),
    )  # fmt: skip


def _times(bundle: Bundle) -> dict[str, Summary]:
    """Times each component alone, as a session with a full window runs it."""
    spec, device, runner = bundle.spec, bundle.device, bundle.runners[LATENTS]
    engines = {name: bundle.engines[name] for name in spec.components}
    states = States((engine.signature for engine in engines.values()), device)
    _fill(states, engines, device)
    clock, found = Clock(device), {}
    for name in spec.components:
        buffers = Buffers(engines[name].signature, device)
        _set(buffers, spec, device)
        (run,) = runner.prepare([partial(engines[name].run, buffers, states)])

        def once(run: Any = run) -> None:
            with runner.turn():
                run()

        times = [clock.time(once)[1] for _ in range(WARMUP + SAMPLES)]
        found[name] = Summary.of(times[WARMUP:])
    return found


def _fill(states: States, engines: Mapping[str, Any], device: torch.device) -> None:
    """Fills buffers with random values, since zeros draw less power than real data."""
    generator = torch.Generator(device).manual_seed(0)
    for engine in engines.values():
        for spec in engine.signature.states:
            state = states[spec.name]
            if state.is_floating_point():
                # Drawn in float32: PyTorch draws nothing in FP8.
                drawn = torch.empty(state.shape, device=device)
                state.copy_(drawn.normal_(0, 0.1, generator=generator))


def _set(buffers: Buffers, spec: ProgramSpec, device: torch.device) -> None:
    generator = torch.Generator(device).manual_seed(0)
    for name, tensor in buffers.inputs.items():
        if name in spec.full_inputs:
            tensor.fill_(spec.full_inputs[name])
        elif tensor.is_floating_point():
            tensor.normal_(0, 1, generator=generator)


def _component(
    name: str,
    time: Summary,
    calls: int,
    manifest: Manifest,
    work: Work,
    peaks: Mapping[str, float],
) -> ComponentRow:
    seconds = time.median / MILLISECONDS
    tflop, gigabytes = work.total / _TERA, work.bytes / _GIGA
    return ComponentRow(
        component=name,
        calls=calls,
        ms=time,
        tflop=tflop,
        gigabytes=gigabytes,
        tflops=Rate.of(tflop / seconds, peaks.get(manifest.engines[name].precision)),
        gbps=Rate.of(gigabytes / seconds, peaks["memory"]),
    )


def _watch(bundle: Bundle, prompts: Tensor, seed: int) -> dict[str, list[Kernel]]:
    session, spec, device = bundle.session(seed=seed), bundle.spec, bundle.device
    if spec.prompt_shape:
        session.prompt(prompts[0])
    if spec.condition_shapes:
        session.condition(**spec.draw_conditions(seed=0))
    for _ in range(spec.filling):
        session.step()
    latent = session.generate()
    session.decode(latent)
    watched = {
        "block": kernels(session.generate, device, WATCHED),
        bundle.program.decoder_names[0]: kernels(lambda: session.decode(latent), device, WATCHED),
    }
    if spec.prompt_shape:
        switch = partial(session.switch_prompt, prompts[1])
        watched["switch"] = kernels(switch, device, WATCHED)
    return watched


def _precision(bundle: Bundle, manifest: Manifest, phase: str) -> str:
    """Returns the precision of the component that takes most of a phase."""
    program = bundle.program
    decoder = bundle.spec.decode_components[-1]
    main = decoder if phase == program.decoder_names[0] else program.teacher_forced[0][0]
    return manifest.engines[main].precision


def _kinds(phase: str, found: list[Kernel], work: Work, peak: float | None) -> list[KindRow]:
    rows = []
    for kind in Kind:
        ms = sum(kernel.ms for kernel in found if kernel.kind is kind)
        if ms == 0:
            continue
        flops = work.flops.get(kind)
        tflop = None if flops is None else flops / _TERA
        rate = None if tflop is None else Rate.of(tflop * MILLISECONDS / ms, peak)
        rows.append(KindRow(phase, kind, ms, tflop, rate))
    return sorted(rows, key=lambda row: -row.ms)


def _sum(work: Mapping[str, Work], calls: Mapping[str, int]) -> Work:
    flops: dict[Kind, int] = {}
    for name, count in calls.items():
        for kind, own in work[name].flops.items():
            flops[kind] = flops.get(kind, 0) + count * own
    return Work(flops, sum(count * work[name].bytes for name, count in calls.items()))


def _specified(manifest: Manifest, peaks: Mapping[str, float]) -> dict[str, float]:
    target = targets().get(manifest.target.name)
    known = {} if target is None else vars(target.peaks)
    return {name: known[name] for name in peaks if known.get(name) is not None}


def _notes(
    manifest: Manifest,
    peaks: Mapping[str, float],
    specified: Mapping[str, float],
    rows: list[ComponentRow],
) -> list[str]:
    notes = [
        f"the measured peak of {name}, {peaks[name]:.0f}, is above the {specified[name]:.0f} that "
        f"{manifest.target.name} is specified with: neither is to be trusted"
        for name in specified
        if peaks[name] > specified[name] * _ROUNDING
    ]
    for row in rows:
        precision = manifest.engines[row.component].precision
        peak = {"TFLOP/s": (row.tflops, peaks.get(precision)),
                "GB/s": (row.gbps, peaks["memory"])}  # fmt: skip
        notes += [
            f"{row.component} reaches {rate.value:.3g} {unit}, more than the measured peak of "
            f"{most:.3g}"
            for unit, (rate, most) in peak.items()
            if most is not None and rate.share is None
        ]
    if manifest.target.device_type == "cpu":
        notes.append("of a CPU's kernels only torch's own are seen, not those within an engine")
    return notes
