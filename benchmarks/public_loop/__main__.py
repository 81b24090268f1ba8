"""Measures a bundle beside the public code's loop, eager and under torch.compile, in turns.

    PYTHONPATH=benchmarks python -m public_loop out/full --samples 30 > result.json

A verdict's speedup is the loop's median over the bundle's, so that that of ``public_compile`` and
``block_ms`` says how many times faster a block is. A stream of the loop ends at 1024 latent frames,
which are 148 samples after 20 rounds of warm-up.
"""

import argparse
import json
from functools import partial
from pathlib import Path

from public_loop import loop
from vidc.compiler.bench.fingerprint import fingerprint, gpu_state
from vidc.compiler.bench.measure import Protocol, measure
from vidc.compiler.bench.record import Result, against_baselines
from vidc.compiler.bench.run import workload
from vidc.compiler.bench.streams import BASELINES, OURS, Contestant, of_bundle
from vidc.compiler.validate.golden import read_prompts
from vidc.runtime.bundle import load
from vidc.runtime.manifest import read_manifest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--samples", type=int, default=Protocol.samples)
    parser.add_argument("--warmup", type=int, default=Protocol.warmup)
    parser.add_argument("--seed", type=int, default=Protocol.seed)
    options = parser.parse_args()
    folder, manifest = options.bundle, read_manifest(options.bundle)
    bundle = load(folder)
    backends = {f"public_{name}": backend for name, backend in BASELINES.items()}
    contestants = {OURS: of_bundle(bundle, options.seed)}
    decoding = contestants[OURS].decoding
    for name, public in loop.of_bundle(folder, manifest, bundle.device, backends).items():
        contestants[name] = Contestant(partial(public.session, options.seed), bundle.spec, decoding)
    prompts = read_prompts(folder)
    protocol = Protocol(options.warmup, options.samples, options.seed)
    streams = measure(contestants, bundle.device, prompts, protocol, lambda: None)
    result = Result(
        bundle=manifest.name,
        decoding=decoding,
        workload=workload(manifest),
        protocol=vars(protocol),
        fingerprint=fingerprint(bundle.device, folder),
        streams=streams,
        judgments=tuple(against_baselines(streams, decoding.metrics)),
        gpu_state=gpu_state(bundle.device),
    )
    print(json.dumps(result.to_json(), indent=1))


if __name__ == "__main__":
    main()
