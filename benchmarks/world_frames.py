"""Measures frames of world models beside a plain-PyTorch world, eager and under torch.compile.

    PYTHONPATH=tests/support python benchmarks/world_frames.py out/diamond-csgo out/world-860m \
        > result.json

The other implementation is the tests' oracle at the same sizes, channels last, in the bundle's
precision on the device, with random weights of its own: plain PyTorch for DIAMOND, diffusers'
networks and scheduler for GameNGen. For Oasis it recomputes the window of past frames at every
step, as the public code does.

``first_frames_ms`` is the time from given noise to finished pixels of one frame. ``block_ms`` is
the same without a decoder, if the world has one: of a bundle on a GPU one graph replay. ``vae_ms``
is that decoder alone. ``stream_ms`` is the time from frame to frame with the stream's own noise,
where a decoder may overlap the next frame.

Compiling the other implementation takes minutes the first time. A call with ``--samples 1`` fills
``TORCHINDUCTOR_CACHE_DIR``, and later calls with the same folder load from it. ``--against``
without a name measures the bundle alone, ``--against eager`` without the compiled one.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import diamond_oracle as oracle
import torch
from diamond_models import net_of, steps_of
from latent_world_plain import plain_latent_world
from torch import Tensor
from world_recomputed import recomputed_worlds

from vidc.compiler.bench.fingerprint import fingerprint, gpu_state
from vidc.compiler.bench.measure import Protocol, measure
from vidc.compiler.bench.metrics import Samples
from vidc.compiler.bench.run import workload
from vidc.compiler.bench.statistics import Summary
from vidc.compiler.bench.streams import OURS, Contestant, of_bundle
from vidc.compiler.bench.verdict import judge
from vidc.compiler.config.tables import model_from_json
from vidc.exporters.families.latent_world import LatentWorld
from vidc.exporters.families.oasis import Oasis
from vidc.exporters.families.world import World
from vidc.exporters.models import PRECISIONS
from vidc.runtime.bundle import load
from vidc.runtime.manifest import Manifest, read_manifest
from vidc.runtime.strict import plain

METRICS = ("block_ms", "vae_ms", "first_frames_ms", "stream_ms")
FIGURES = {
    "diamond-csgo": ("world_fast_ms", "block_ms"),
    "world-652m": ("world_652m_ms", "block_ms"),
    "oasis-500m": ("oasis_frame_ms", "first_frames_ms"),
    "world-860m": ("world_860m_ms", "first_frames_ms"),
}
"""Names of presets' medians in the results, and their metrics."""
Call = Callable[..., Tensor]


class Plain(oracle.World):
    """The oracle, whose networks are called as ``calls`` has them and read sigma on the device."""

    def __init__(self, calls: dict[str, Call], dtype: torch.dtype, **state: Any) -> None:
        super().__init__(**state)
        self.calls, self.dtype = calls, dtype

    def call(self, network: Any, x: Tensor, sigma: Tensor, *others: Any) -> Tensor:
        name = "denoiser" if network is self.agent.denoiser else "upsampler"
        level = sigma.to(x.device, non_blocking=True)
        exact = self.calls[name](x, level, *others)
        return oracle.truncate(exact).to(self.dtype)


class PlainStream:
    """Frames of the oracle, as ``measure`` takes them."""

    def __init__(
        self, model: World, agent: Any, calls: dict[str, Call], dtype: torch.dtype
    ) -> None:
        parameter = next(agent.parameters())
        self.device, self.dtype = parameter.device, dtype
        zeros = partial(torch.zeros, device=self.device, dtype=dtype)
        h, w, factor = model.frames.height, model.frames.width, model.upsampler.factor
        self.action = zeros(model.denoiser.actions)
        self.world = Plain(
            calls, dtype, agent=agent, factor=factor,
            steps=(steps_of(model.denoise), steps_of(model.upsample)),
            low=zeros(model.denoiser.past, 3, h, w), full=zeros(1, 3, factor * h, factor * w),
            actions=zeros(model.denoiser.past, model.denoiser.actions),
        )  # fmt: skip

    def prompt(self, prompt: Tensor) -> None:
        raise NotImplementedError

    switch_prompt = prompt

    def condition(self, action: Tensor) -> None:
        self.action.copy_(action)

    def step(self, noise: Tensor | None = None) -> Tensor:
        return self.decode(self.generate(noise=noise))

    def generate(self, *, noise: Tensor | None = None) -> Tensor:
        if noise is None:
            self.world.draw = partial(torch.randn, device=self.device, dtype=self.dtype)
        else:
            self.world.draw = Pieces(noise.flatten().to(self.dtype))
        frame: Tensor = self.world.step(self.action)
        return frame

    def flush(self) -> None:
        """Does nothing: a frame leaves nothing for the next one."""

    def decode(self, latent: Tensor) -> Tensor:
        return latent.add(1).mul(127.5).round().clamp(0, 255).permute(0, 2, 3, 1).to(torch.uint8)


class Pieces:
    """Hands out given values, one shape after another."""

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self.used = 0

    def __call__(self, shape: tuple[int, ...]) -> Tensor:
        size = torch.Size(shape).numel()
        self.used += size
        return self.values[self.used - size : self.used].view(shape)


def plain_world(
    model: World, manifest: Manifest, ours: Contestant, device: torch.device, mode: str
) -> dict[str, Contestant]:
    """The oracle eager and compiled, over one copy of random weights."""
    (precision,) = {engine.precision for engine in manifest.engines.values()}
    dtype = PRECISIONS[precision]
    upsampler = net_of(model.upsampler) if model.upsampler.factor > 1 else None
    with torch.device(device):
        agent = oracle.agent(net_of(model.denoiser), upsampler, model.denoiser.actions)
    agent = agent.to(dtype).to(memory_format=torch.channels_last)
    eager = {name: network.before_truncation for name, network in agent.named_children()}
    compiled = {name: torch.compile(call, mode=mode, dynamic=False) for name, call in eager.items()}
    return {
        name: Contestant(partial(PlainStream, model, agent, calls, dtype), ours.spec, ours.decoding)
        for name, calls in (("eager", eager), ("compiled", compiled))
    }


def frames_of(
    folder: Path, protocol: Protocol, mode: str, against: Sequence[str] | None
) -> dict[str, Any]:
    """Figures of one bundle and of other implementations at its sizes; None for all of them."""
    manifest, bundle = read_manifest(folder), load(folder)
    model, device = model_from_json(manifest.config), bundle.device
    ours = of_bundle(bundle, protocol.seed)
    if isinstance(model, Oasis):
        others = recomputed_worlds(model, manifest, ours, device, mode)
    elif isinstance(model, LatentWorld):
        others = plain_latent_world(model, manifest, ours, device, mode)
    else:
        assert isinstance(model, World)
        others = plain_world(model, manifest, ours, device, mode)
    chosen = others if against is None else {name: others[name] for name in against}
    contestants = {OURS: ours, **chosen}
    with torch.no_grad():
        found = measure(contestants, device, torch.zeros(0), protocol, lambda: None)
    result = {
        "workload": workload(manifest),
        "fingerprint": fingerprint(device, folder),
        "streams": {name: figures(samples, found[OURS]) for name, samples in found.items()},
    }
    bundle.close()
    return result


def figures(samples: Samples, ours: Samples) -> dict[str, Any]:
    """Summaries, raw samples and our verdicts of a contestant."""
    return {
        metric: {
            **plain(Summary.of(samples[metric])),
            "ours against it": judge(ours[metric], samples[metric]).to_json(),
            "samples": samples[metric],
        }
        for metric in METRICS
        if metric in ours
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundles", type=Path, nargs="+")
    parser.add_argument("--samples", type=int, default=Protocol.samples)
    parser.add_argument("--warmup", type=int, default=Protocol.warmup)
    parser.add_argument("--mode", default="reduce-overhead", help="of torch.compile")
    parser.add_argument("--against", choices=("eager", "compiled"), nargs="*", help="default: both")
    options = parser.parse_args()
    protocol = Protocol(options.warmup, options.samples)
    bundles = {}
    for folder in options.bundles:
        bundles[folder.name] = frames_of(folder, protocol, options.mode, options.against)
    presets = {name: found["workload"]["preset"] for name, found in bundles.items()}
    document = {
        "schema": 1,
        **{
            figure: bundles[name]["streams"][OURS][metric]["median"]
            for name, preset in presets.items()
            if preset in FIGURES
            for figure, metric in (FIGURES[preset],)
        },
        "protocol": vars(protocol),
        "bundles": bundles,
        "gpu_state": gpu_state(torch.device("cuda" if torch.cuda.is_available() else "cpu")),
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
