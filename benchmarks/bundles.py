"""Measures bundles in turns in one process, optionally beside the loop of LongLive's public code.

    python benchmarks/bundles.py out/bf16 out/fp8 > out/bf16-and-fp8.json
    python benchmarks/bundles.py out/bf16 out/fp8 --public eager compile --cold-starts 2

``against first`` has the speedup over the first bundle, by medians, with its interval and verdict.
The public loop takes steps and window from the first bundle, and its weights unless ``--weights``
names another one in bf16, which is necessary if the first is in 8 bits. It ends at 1024 latent
frames: after 20 rounds of warm-up, ``--samples`` may be 148 at most. Two bundles of LongLive's size
fit a GPU of 80 GB together. Cold starts come first and in turns, each in a process of its own,
which also measures the memory that a bundle takes alone.
"""

import argparse
import json
import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from public_loop import loop

from vidc.compiler.bench.fingerprint import fingerprint, gpu_state
from vidc.compiler.bench.measure import Protocol, measure
from vidc.compiler.bench.metrics import Metric, Samples
from vidc.compiler.bench.processes import Start, samples, start
from vidc.compiler.bench.run import workload
from vidc.compiler.bench.statistics import Summary
from vidc.compiler.bench.streams import BASELINES, OURS, Contestant, of_bundle
from vidc.compiler.bench.verdict import judge
from vidc.compiler.config.tables import model_from_json
from vidc.compiler.validate.golden import read_prompts
from vidc.exporters.families.causal_video import CausalVideo
from vidc.exporters.families.family import Family
from vidc.plugins.signature import Role
from vidc.runtime.bundle import Bundle, load
from vidc.runtime.manifest import Manifest, read_manifest
from vidc.runtime.strict import plain


def bytes_of(folder: Path, manifest: Manifest) -> dict[str, int]:
    """Bytes of a bundle's weights on disk, and of all engines' states, an encoder's included."""
    files = [path for path in (folder / "weights").rglob("*") if path.is_file()]
    states = {
        spec.name: math.prod(spec.shape) * spec.torch_dtype.itemsize
        for engine in manifest.engines.values()
        for spec in engine.signature.tensors
        if spec.role is Role.STATE
    }
    return {
        "weights": sum(path.stat().st_size for path in files),
        "states": sum(states.values()),
    }


def compared(
    found: Mapping[str, Samples], metrics: Mapping[str, Metric], first: str
) -> dict[str, Any]:
    """Each stream's summary, samples and, for judged metrics, the verdict against the first."""
    return {
        name: {
            metric: {
                **plain(Summary.of(values)),
                **(
                    {"against first": judge(values, found[first][metric]).to_json()}
                    if metrics[metric].judged and metric in found[first]
                    else {}
                ),
                "samples": values,
            }
            for metric, values in own.items()
        }
        for name, own in found.items()
    }


def public_loops(
    options: argparse.Namespace, model: Family, folder: Path, device: torch.device
) -> dict[str, loop.PublicLoop]:
    """The public loops asked for, of a model and the weights of ``--weights`` or of a bundle."""
    if not options.public:
        return {}
    assert isinstance(model, CausalVideo)
    backends = {f"public_{name}": BASELINES[name] for name in options.public}
    return loop.of_bundle(model, options.weights or folder, device, backends)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundles", type=Path, nargs="+")
    parser.add_argument("--samples", type=int, default=Protocol.samples)
    parser.add_argument("--warmup", type=int, default=Protocol.warmup)
    parser.add_argument("--seed", type=int, default=Protocol.seed)
    parser.add_argument("--public", choices=BASELINES, nargs="+", default=[])
    parser.add_argument(
        "--weights",
        type=Path,
        help="bf16 bundle whose weights the public loop has (default: the first)",
    )
    parser.add_argument("--cold-starts", type=int, default=0)
    options = parser.parse_args()
    folders = {folder.name: folder for folder in options.bundles}
    if len(folders) < len(options.bundles):
        parser.error("bundles must have different names")
    manifests = {name: read_manifest(folder) for name, folder in folders.items()}
    models = {name: model_from_json(manifest.config) for name, manifest in manifests.items()}
    if options.weights is not None and not options.public:
        parser.error("--weights needs --public")
    if options.public and not isinstance(models[next(iter(models))], CausalVideo):
        parser.error("--public needs a causal video model as its first bundle")
    started: dict[str, list[Start]] = {name: [] for name in folders}
    for _ in range(options.cold_starts):
        for name, folder in folders.items():
            started[name].append(start(folder, OURS, options.seed))
    loaded: dict[str, Bundle] = {name: load(folder) for name, folder in folders.items()}
    first = next(iter(loaded))
    device = loaded[first].device
    prompts = read_prompts(folders[first])
    protocol = Protocol(options.warmup, options.samples, options.seed)
    contestants = {name: of_bundle(bundle, options.seed) for name, bundle in loaded.items()}
    metrics, spec = contestants[first].decoding.metrics, loaded[first].spec
    for name, public in public_loops(options, models[first], folders[first], device).items():
        opened = partial(public.session, options.seed)
        contestants[name] = Contestant(opened, spec, contestants[first].decoding)
    found = measure(contestants, device, prompts, protocol, lambda: None)
    document = {
        "schema": 1,
        "workloads": {name: workload(manifest) for name, manifest in manifests.items()},
        "bytes": {name: bytes_of(folders[name], manifests[name]) for name in folders},
        "protocol": vars(protocol),
        "gpu_state": gpu_state(device),
        "fingerprint": fingerprint(device, folders[first]),
        "streams": compared(
            {name: samples(started.get(name, [])) | own for name, own in found.items()},
            metrics,
            first,
        ),
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
