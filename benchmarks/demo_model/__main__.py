"""Trains the demo model from nothing and exports it.

    PYTHONPATH=benchmarks python -m demo_model --minutes 9 --dir out/trained

The same command goes on where it stopped; its last line says whether more is to do. The last stage
ends with the export to ``DIR/weights``. ``--set NAME=VALUE`` changes a field of ``stages.Plan``,
``--steps N`` gives every stage N steps in place of its minutes: both are for trials.
"""

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from demo_model.export import export
from demo_model.loop import Training, load
from demo_model.networks import PRESET, Sizes
from demo_model.stages import STAGES, Plan

SAVING = 15.0  # Seconds of a run that are left for its last checkpoint.


def train(options: argparse.Namespace, plan: Plan) -> bool:
    """Trains for the time given; returns True once all stages are over."""
    deadline = time.monotonic() + 60 * options.minutes - SAVING
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = options.device == "cuda"
    sizes, folder = Sizes.read(options.preset), options.dir
    done: dict[str, Any] = {}
    for kind in STAGES:
        path = folder / f"{kind.name}.pt"
        if not (path.exists() and load(path).get("done")):
            if time.monotonic() >= deadline:
                return False
            torch.manual_seed(options.seed)
            stage = kind(sizes, plan, options.device, options.seed, done)
            minutes = stage.minutes * options.scale
            if not Training(stage, folder).run(minutes, options.steps, deadline):
                return False
        state = done[kind.name] = load(path)
        print(f"{kind.name}: {state['step']} steps, {state['seconds']:.0f} s, {state['facts']}")
    export(done, sizes, options.preset, folder / "weights")
    return True


def main() -> None:
    """Parses the command line."""
    parser = argparse.ArgumentParser(prog="demo_model", description=__doc__)
    parser.add_argument("--dir", type=Path, required=True, help="checkpoints, log and weights")
    parser.add_argument("--minutes", type=float, default=9.0, help="of this run")
    parser.add_argument("--scale", type=float, default=1.0, help="factor of every stage's minutes")
    parser.add_argument("--steps", type=int, help="of every stage, in place of minutes")
    parser.add_argument("--preset", type=Path, default=PRESET)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    steps = 1 if options.steps is None else options.steps
    if min(60 * options.minutes - SAVING, options.scale, steps) <= 0:
        parser.error(f"expected more than {SAVING / 60} minutes, scale above 0 and 1 step or more")
    try:
        changed = dict(each.split("=") for each in options.set)
        plan = Plan(**{name: type(getattr(Plan, name))(v) for name, v in changed.items()})
    except (AttributeError, ValueError) as error:
        parser.error(f"--set: {error}; expected NAME=NUMBER of {', '.join(asdict(Plan()))}")
    own = {"seed": options.seed, "plan": asdict(plan), "preset": options.preset.read_text()}
    settings = options.dir / "settings.json"
    if not settings.exists():
        options.dir.mkdir(parents=True, exist_ok=True)
        settings.write_text(json.dumps(own, indent=1) + "\n")
    if json.loads(settings.read_text()) != own:
        parser.error(f"{options.dir} has a training of another seed, preset or --set; change --dir")
    over = train(options, plan)
    print("all stages are over" if over else "stopped: run the same command again")


if __name__ == "__main__":
    main()
