"""The loop around every training: a budget of time, checkpoints, a log, and an end in time."""

import argparse
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from demo_model.training import checkpoint, log
from demo_model.training.ema import Ema
from demo_model.training.optimizer import optimizer_for
from demo_model.training.schedule import Schedule

Loss = Callable[[int], tuple[Tensor, Mapping[str, Tensor]]]
"""A step's loss, and parts of it to be logged, by name."""

FALLING = 0.4
"""Share of all steps in which the learning rate falls, where the end is known early enough."""

MEASURED = 40
"""Steps after which ``--finish`` says anew where the end is; the first few are not timed."""


@dataclass(frozen=True)
class Options:
    """What every training is told.

    Attributes:
        out: folder of checkpoint and log.
        minutes: after so many this run saves and stops; another run goes on from there.
        finish: let the learning rate fall to nothing by the end of this run.
        steps: the end, where it is to be a number of steps.
        seed: of everything random.
        device: to train on.
        rate: learning rate at its peak.
        warmup: steps up to there.
        save_minutes: between checkpoints.
        log_steps: steps that a row of the log is the mean of, or fewer where a run begins.
        ema: decay of the mean of weights.
        compile: whether to let torch.compile have the layers.
        begin: folder of a training of the same network whose mean weights a first run begins with.
    """

    out: Path
    minutes: float
    finish: bool = False
    steps: int | None = None
    seed: int = 0
    device: str = "cpu"
    rate: float = 1e-3
    warmup: int = 100
    save_minutes: float = 2.0
    log_steps: int = 20
    ema: float = 0.999
    compile: bool = False
    begin: Path | None = None


def add_options(parser: argparse.ArgumentParser, rate: float) -> None:
    """The options of ``Options`` for a script."""
    cuda = torch.cuda.is_available()
    parser.add_argument("--out", type=Path, required=True, help="checkpoint and log go here")
    parser.add_argument("--minutes", type=float, required=True, help="of this run")
    parser.add_argument("--finish", action="store_true", help="end the schedule with this run")
    parser.add_argument("--steps", type=int, help="end the schedule after so many steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if cuda else "cpu")
    parser.add_argument("--rate", type=float, default=rate, help=f"learning rate, {rate}")
    parser.add_argument("--warmup", type=int, default=100, help="steps up to the rate")
    parser.add_argument("--save-minutes", type=float, default=2.0)
    parser.add_argument("--log-steps", type=int, default=20)
    parser.add_argument("--ema", type=float, default=0.999)
    parser.add_argument("--compile", action="store_true", help="compile the layers")
    parser.add_argument("--begin", type=Path, help="folder of a training to begin from")


def options_of(arguments: argparse.Namespace) -> Options:
    """What a script was told, without options of its own."""
    known = Options.__dataclass_fields__
    return Options(**{k: v for k, v in vars(arguments).items() if k in known})


def generator(seed: int, step: int, purpose: int, device: str) -> torch.Generator:
    """What draws a step's random numbers: the same ones however often a run was interrupted."""
    mixed = (seed * 1_000_003 + step) * 16 + purpose
    return torch.Generator(device).manual_seed(mixed % 2**63)


def precision(device: str) -> AbstractContextManager[object]:
    """The VAE's products in bf16 on a GPU, where weights and sums stay in float32; else float32."""
    cuda = device.startswith("cuda")
    return torch.autocast("cuda", torch.bfloat16) if cuda else nullcontext()


def train(
    options: Options,
    network: nn.Module,
    loss: Loss,
    facts: Mapping[str, object],
    prepare: Callable[[int], None] | None = None,
) -> int:
    """Trains until the time or the schedule is over, from a checkpoint where there is one.

    Args:
        options: see there.
        network: trained in place; its mean is in the checkpoint.
        loss: of a step. It draws from ``generator`` alone.
        facts: plain JSON values that go into the checkpoint.
        prepare: told the first step before it is taken and timed.

    Returns:
        The number of steps taken by this run and those before.

    Raises:
        FileNotFoundError: there is no training to begin from.
        FloatingPointError: ten steps in a row had gradients that are not finite.
        RuntimeError: the training to begin from is of another network.
    """
    started = time.monotonic()
    deadline = started + 60 * options.minutes
    optimizer = optimizer_for(network)
    if options.begin is not None:
        network.load_state_dict(checkpoint.trained(options.begin / "checkpoint")[0])
    training = checkpoint.Training(network, Ema(network, options.ema), optimizer)
    folder = options.out / "checkpoint"
    schedule, step, seconds = Schedule(options.rate, options.warmup), 0, 0.0
    if options.steps is not None:
        fall = int((1 - FALLING) * options.steps)
        schedule = replace(schedule, fall=fall, end=options.steps)
    if checkpoint.exists(folder):
        state = checkpoint.restore(folder, training)
        step, seconds = state["step"], state["seconds"]
        known = Schedule(**state["schedule"])
        # What is trained on after its end has its full rate again.
        if options.steps is None and known.end is not None and not known.over(step):
            schedule = known
    curve = log.Log(options.out / "log.jsonl", step)
    if prepare is not None:
        prepare(step)
    first, saved, bad = step, time.monotonic(), 0
    sums: dict[str, Tensor] = {}
    summed = 0
    timed = (step, saved)

    def keep() -> None:
        spent = seconds + time.monotonic() - started
        state = {"step": step, "seconds": spent, "schedule": asdict(schedule), "seed": options.seed}
        checkpoint.save(folder, training, {**state, **facts})

    while not schedule.over(step) and time.monotonic() < deadline:
        for group in optimizer.param_groups:
            group["lr"] = schedule(step)
        value, parts = loss(step)
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        norm = torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        if torch.isfinite(norm):
            optimizer.step()
            training.ema.update(step)
            bad = 0
        else:
            bad += 1
            if bad == 10:
                raise FloatingPointError(f"ten steps without a finite gradient before {step}")
        for name, part in {"loss": value, **parts, "gradient": norm}.items():
            sums[name] = sums.get(name, torch.zeros((), device=part.device)) + part.detach()
        summed += 1
        step += 1
        now = time.monotonic()
        if step - first == MEASURED // 4:
            timed = (step, now)
        if options.finish and (step - first) % MEASURED == 0:
            # Again and again, because steps get slower or faster than the first ones were.
            pace = (now - timed[1]) / (step - timed[0])
            end = step + max(1, int(0.98 * (deadline - now) / pace))
            if schedule.fall is None or step < schedule.fall:
                schedule = replace(schedule, fall=max(step, int((1 - FALLING) * end)), end=end)
            schedule = replace(schedule, end=end)
        if step % options.log_steps == 0:
            means = {name: float(total) / summed for name, total in sums.items()}
            spent = seconds + now - started
            curve.write({"step": step - 1, **means, "rate": schedule(step - 1), "seconds": spent})
            sums, summed = {}, 0
        if now - saved > 60 * options.save_minutes:
            keep()
            saved = time.monotonic()
    keep()
    return step
