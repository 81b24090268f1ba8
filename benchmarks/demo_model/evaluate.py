"""Judges a built bundle of the demo model by its videos, and writes what was found as JSON.

    vidc build demo --checkpoint configs/demo --set stream.batch=20 -o out/demo/bundle
    PYTHONPATH=benchmarks python -m demo_model.evaluate out/demo/bundle > demo.json

Weights are judged without a build too, by PyTorch in float32, which a bundle is held to by
``vidc validate``:

    PYTHONPATH=benchmarks python -m demo_model.evaluate configs/demo --eager --batch 20 > demo.json

Prompts, switches and clips are all held out: no training saw them, nor any that share an object's
color, shape and direction. Exits 1 where something that is asked is not reached.
"""

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from demo_model.evaluation import measures
from demo_model.evaluation.detail import details
from demo_model.evaluation.eager import eager_bundle
from demo_model.evaluation.measures import LATE, Counts
from demo_model.evaluation.switches import switches
from demo_model.train_few_step import subsets
from demo_model.training.networks import PRESET
from vidc.compiler.bench.fingerprint import fingerprint
from vidc.compiler.config.presets import load_preset
from vidc.compiler.store.digest import sha256_file
from vidc.exporters.families.causal_video import CausalVideo
from vidc.plugins.names import weights_path
from vidc.runtime import load
from vidc.runtime.bundle import Bundle

PARTS = ("vae", "detail", "steps", "switch", "long")


def evaluate(
    bundle: Bundle, counts: Counts, seed: int, late: int = LATE, only: str | None = None
) -> dict[str, Any]:
    """Everything that is asked, by name, or ``only`` one part of it."""
    found: dict[str, Any] = {}
    whole, *fewer = subsets(bundle.spec.sigmas)
    for name, measure in (
        ("vae", lambda: measures.vae(bundle, counts.clips)),
        ("detail", lambda: details(bundle, counts.clips, seed)),
        ("steps", lambda: measures.steps(bundle, [whole, *reversed(fewer)], counts, seed)),
        ("switch", lambda: switches(bundle, counts.switches, seed)),
        ("long", lambda: measures.long_runs(bundle, counts.runs, seed, late)),
    ):
        if only not in (None, name):
            continue
        started = time.perf_counter()
        found[name] = measure()
        found.setdefault("seconds", {})[name] = time.perf_counter() - started
        print(f"{name}: {json.dumps(found[name])}", file=sys.stderr, flush=True)
    if "steps" in found:
        # The bundle's own steps come first among all that were tried.
        found["prompts"] = {**found["steps"][0], "asked": measures.RIGHT}
    judged = ("vae", "prompts", "switch", "long")
    found["passed"] = all(found[name]["passed"] for name in judged if name in found)
    return found


def weights(folder: Path) -> dict[str, str]:
    """SHA-256 of the files with weights of a bundle, or of a folder as checkpoints have it."""
    own = folder / Path(weights_path("any")).parent
    files = sorted((own if own.is_dir() else folder).rglob("*.safetensors"))
    return {path.relative_to(folder).as_posix(): sha256_file(path) for path in files}


def table(found: dict[str, Any]) -> str:
    """The figures as Markdown."""
    prompts, switch, long = found["prompts"], found["switch"], found["long"]
    detail = found["detail"]
    rows = [
        ("VAE, held-out clips", f"{found['vae']['mean dB']:.2f} dB", "30 dB"),
        (f"detail of grounds, of {detail['drawn']:.3f} drawn", f"{detail['made']:.3f}", ""),
        *((name, f"{prompts[name]:.1%}", "90 %") for name in ("color", "shape", "direction")),
        ("switch followed, others stay", f"{switch['follows and others stay']:.1%}", "80 %"),
        (f"background after {long['blocks']} blocks, median", f"{long['median dB']:.2f} dB", ""),
        ("runs with a background of 25 dB", f"{long['runs of enough dB']:.1%}", "90 %"),
        *(
            (f"runs with objects right, {where}", f"{share:.1%}", "90 %" if "last" in where else "")
            for where, share in long["objects right"].items()
        ),
    ]
    lines = ["| | found | asked |", "|---|---|---|"]
    lines += [f"| {what} | {value} | {asked} |" for what, value, asked in rows]
    lines += ["", "| steps | color | shape | direction | dB against all steps |"]
    lines += ["|---|---|---|---|---|"]
    for row in found["steps"]:
        near = row["dB against all steps"]
        shares = " | ".join(f"{row[name]:.1%}" for name in ("color", "shape", "direction"))
        lines.append(f"| {row['steps']} | {shares} | {'' if near is None else f'{near:.2f}'} |")
    return "\n".join(lines)


def _eager(weights: Path, batch: int, folder: Path) -> Bundle:
    config = load_preset(PRESET).model
    assert isinstance(config, CausalVideo)
    config = replace(config, stream=replace(config.stream, batch=batch))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return eager_bundle(config, weights, folder, device)[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path, help="or a folder of weights, with --eager")
    parser.add_argument("--eager", action="store_true", help="run weights in PyTorch")
    parser.add_argument("--batch", type=int, default=8, help="videos at a time, with --eager")
    parser.add_argument("--seed", type=int, default=0)
    for name in ("clips", "prompts", "blocks", "switches", "runs"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Counts, name))
    parser.add_argument(
        "--long-blocks", type=int, default=LATE, help="of a long run; 5 n, at least 10"
    )
    parser.add_argument("--only", choices=PARTS, help="measure this part alone")
    options = parser.parse_args()
    names = ("clips", "prompts", "blocks", "switches", "runs")
    counts = Counts(**{name: getattr(options, name) for name in names})
    with TemporaryDirectory() as folder, torch.inference_mode():
        if options.eager:
            bundle = _eager(options.bundle, options.batch, Path(folder))
        else:
            bundle = load(options.bundle)
        found = evaluate(bundle, counts, options.seed, options.long_blocks, options.only)
    document = {
        "schema": 1,
        "counts": vars(counts),
        "seed": options.seed,
        "batch": bundle.spec.batch,
        "engines": "PyTorch, float32" if options.eager else "of the bundle",
        "weights": weights(options.bundle),
        **found,
        "fingerprint": fingerprint(bundle.device, None if options.eager else options.bundle),
    }
    print(json.dumps(document, indent=1))
    if options.only is None:
        print(table(found), file=sys.stderr)
    return 0 if found["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
