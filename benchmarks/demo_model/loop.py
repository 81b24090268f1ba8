"""The loop around every stage: a budget of minutes, checkpoints, a log, and an end in time."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from demo_model.stages import Stage

WARMUP, FALLING = 0.02, 0.4
"""Shares of a stage in which the learning rate rises, and falls to nothing."""
EMA = 0.995
SAVE_SECONDS = 100.0
ROW = 20
"""Steps of a row of the log."""
_NO_MUON = ("embed_tokens", "patch_embedding", "relative_attention_bias", "proj_out")
"""Parts of names of matrices that do not map features to features."""


@dataclass(frozen=True)
class Budget:
    """Length of a stage: minutes, or steps where a run must be repeatable exactly."""

    minutes: float
    steps: int | None = None

    def progress(self, step: int, seconds: float) -> float:
        """Share of the stage that is over."""
        return step / self.steps if self.steps is not None else seconds / (60 * self.minutes)


class Optimizer:
    """Muon for matrices (convolutions as matrices of their outputs), AdamW for the rest."""

    def __init__(self, network: nn.Module) -> None:
        self._matrices: list[tuple[nn.Parameter, nn.Parameter]] = []
        rest = []
        for name, weight in network.named_parameters():
            is_map = name.endswith("weight") and weight.squeeze().ndim > 1
            if is_map and not any(part in name for part in _NO_MUON):
                # Muon takes two dimensions; the flattened parameter shares its memory.
                self._matrices.append((weight, nn.Parameter(weight.data.flatten(1))))
            else:
                rest.append(weight)
        flat = [matrix for _, matrix in self._matrices]
        self._both: list[torch.optim.Optimizer] = [
            torch.optim.Muon(flat, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(rest, betas=(0.9, 0.98), weight_decay=0.0),
        ]

    def step(self, rate: float) -> None:
        """Takes a step from the parameters' gradients."""
        for weight, matrix in self._matrices:
            matrix.grad = None if weight.grad is None else weight.grad.flatten(1)
        for optimizer in self._both:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()

    def state(self) -> list[dict[str, Any]]:
        return [optimizer.state_dict() for optimizer in self._both]

    def restore(self, state: list[dict[str, Any]]) -> None:
        for optimizer, each in zip(self._both, state, strict=True):
            optimizer.load_state_dict(each)


def learning_rate(peak: float, progress: float) -> float:
    """The rate when ``progress`` of a stage is over: up, level, and down to nothing."""
    return peak * min(1.0, (progress + 1e-3) / WARMUP, max(0.0, (1 - progress) / FALLING))


def train(stage: Stage, peak: float, budget: Budget, folder: Path, deadline: float) -> bool:
    """Trains a stage from its checkpoint in ``folder`` on; returns True once it is over.

    It stops at the deadline, in seconds of ``time.monotonic``. Nothing waits for the device but the
    log's rows, each of ``ROW`` steps.

    Raises:
        FloatingPointError: no gradient was finite in all steps of a row.
    """
    run = Training(stage, folder)
    saved = before = time.monotonic()
    sums: dict[str, Tensor] = {}
    while (progress := budget.progress(run.step, run.seconds)) < 1 and before < deadline:
        for name, value in run.take_step(peak, progress).items():
            sums[name] = sums.get(name, 0.0) + value.detach()
        if run.step % ROW == 0:
            row = {name: float(total) / ROW for name, total in sums.items()}
            sums = {}
            if not row["finite"]:
                start = run.step - ROW
                raise FloatingPointError(f"{stage.name}: no finite gradient from {start} on")
        now = time.monotonic()
        run.seconds, before = run.seconds + now - before, now
        if run.step % ROW == 0:
            run.log(row)
        if now - saved > SAVE_SECONDS:
            run.save()
            saved = time.monotonic()
    if progress < 1:
        run.save()
        return False
    run.finish()
    return True


class Training:
    """A stage's weights, their moving mean, the optimizer and the progress, kept in a folder."""

    def __init__(self, stage: Stage, folder: Path) -> None:
        self._stage, self._folder = stage, folder
        self._path, self._optimizer = folder / f"{stage.name}.pt", Optimizer(stage.network)
        self._weights = dict(stage.network.named_parameters())
        self._mean = {name: weight.detach().clone() for name, weight in self._weights.items()}
        self.step, self.seconds = 0, 0.0
        if self._path.exists():
            state = load(self._path)
            stage.network.load_state_dict(state["network"])
            self._mean = {name: mean.to(stage.device) for name, mean in state["ema"].items()}
            self.step, self.seconds = state["step"], state["seconds"]
            self._optimizer.restore(state["optimizer"])

    def take_step(self, peak: float, progress: float) -> dict[str, Tensor]:
        """Takes a step; returns the parts of its loss, the gradient's norm and if it was finite."""
        parts = self._stage.backward(self.step, progress)
        weights = [*self._weights.values()]
        norm = torch.nn.utils.clip_grad_norm_(weights, 1.0)
        for weight in weights:
            if weight.grad is not None:
                weight.grad.nan_to_num_(0, 0, 0)  # A norm that is not finite: the step is lost.
        self._optimizer.step(learning_rate(peak, progress))
        decay = min(EMA, (1 + self.step) / (10 + self.step))
        torch._foreach_lerp_([*self._mean.values()], [w.data for w in weights], 1 - decay)
        self.step += 1
        finite = torch.isfinite(norm).float()
        return {**parts, "gradient": norm.nan_to_num(0, 0, 0), "finite": finite}

    def finish(self) -> None:
        """Measures the mean weights and writes the last checkpoint."""
        network = self._stage.network
        trained = {name: weight.detach().clone() for name, weight in self._weights.items()}
        network.load_state_dict(self._mean)
        facts = self._stage.facts()
        network.load_state_dict(trained)
        self.log({"done": facts})
        self.save(done=True, facts=facts)

    def log(self, row: dict[str, Any]) -> None:
        """Appends a line to the run's log."""
        head = {"stage": self._stage.name, "step": self.step, "seconds": self.seconds}
        with (self._folder / "log.jsonl").open("a") as file:
            file.write(json.dumps({**head, **row}) + "\n")

    def save(self, **more: Any) -> None:
        """Writes a checkpoint; the earlier one stays whole until then."""
        staging = self._path.with_suffix(".new")
        torch.save(
            {
                "step": self.step, "seconds": self.seconds, "seed": self._stage.seed,
                "ema": self._mean, "network": self._weights, "optimizer": self._optimizer.state(),
                **more,
            },
            staging,
        )  # fmt: skip
        staging.replace(self._path)


def load(path: Path) -> dict[str, Any]:
    """Reads a checkpoint onto the CPU, without running code that it might hold."""
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return state
