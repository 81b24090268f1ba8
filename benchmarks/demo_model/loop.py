"""The loop around every stage: a budget of minutes, checkpoints, a log, and an end in time."""

import json
import os
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

    def share(self, step: int, seconds: float) -> float:
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


def learning_rate(peak: float, share: float) -> float:
    """The rate when ``share`` of a stage is over: up, level, and down to nothing."""
    return peak * min(1.0, (share + 1e-3) / WARMUP, max(0.0, (1 - share) / FALLING))


def train(stage: Stage, peak: float, budget: Budget, folder: Path, deadline: float) -> bool:
    """Trains a stage from its checkpoint in ``folder`` on; returns True once it is over.

    It stops at the deadline, in seconds of ``time.monotonic``.

    Nothing waits for the device but the log's rows, each of ``ROW`` steps.

    Raises:
        FloatingPointError: no gradient was finite in all steps of a row.
    """
    path, optimizer = folder / f"{stage.name}.pt", Optimizer(stage.network)
    weights = dict(stage.network.named_parameters())
    mean = {name: weight.detach().clone() for name, weight in weights.items()}
    step, seconds = 0, 0.0
    if path.exists():
        state = load(path)
        stage.network.load_state_dict(state["network"])
        mean = {name: weight.to(stage.device) for name, weight in state["ema"].items()}
        step, seconds = state["step"], state["seconds"]
        optimizer.restore(state["optimizer"])

    def keep(**facts: Any) -> None:
        state = {"step": step, "seconds": seconds, "seed": stage.seed, "ema": mean, **facts}
        save({**state, "network": weights, "optimizer": optimizer.state()}, path)

    saved = before = time.monotonic()
    sums: dict[str, Tensor] = {}
    while (share := budget.share(step, seconds)) < 1 and before < deadline:
        parts = stage.backward(step, share)
        norm = torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        for weight in weights.values():
            if weight.grad is not None:
                weight.grad.nan_to_num_(0, 0, 0)  # A norm that is not finite: the step is lost.
        optimizer.step(learning_rate(peak, share))
        decay = min(EMA, (1 + step) / (10 + step))
        torch._foreach_lerp_([*mean.values()], [w.data for w in weights.values()], 1 - decay)
        step += 1
        parts |= {"gradient": norm.nan_to_num(0, 0, 0), "finite": torch.isfinite(norm).float()}
        for name, value in parts.items():
            sums[name] = sums.get(name, 0.0) + value.detach()
        if step % ROW == 0:
            row = {name: float(total) / ROW for name, total in sums.items()}
            sums = {}
            if not row["finite"]:
                raise FloatingPointError(f"{stage.name}: no finite gradient from {step - ROW} on")
        now = time.monotonic()
        seconds, before = seconds + now - before, now
        if step % ROW == 0:
            log(folder, {"stage": stage.name, "step": step, "seconds": seconds, **row})
        if now - saved > SAVE_SECONDS:
            keep()
            saved = time.monotonic()
    if share < 1:
        keep()
        return False
    trained = {name: weight.detach().clone() for name, weight in weights.items()}
    stage.network.load_state_dict(mean)
    facts = stage.facts()
    stage.network.load_state_dict(trained)
    log(folder, {"stage": stage.name, "step": step, "seconds": seconds, "done": facts})
    keep(done=True, facts=facts)
    return True


def log(folder: Path, row: dict[str, Any]) -> None:
    """Appends a line to the run's log."""
    with (folder / "log.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")


def save(state: dict[str, Any], path: Path) -> None:
    """Writes a checkpoint; the earlier one stays whole until then."""
    staging = path.with_suffix(".new")
    torch.save(state, staging)
    os.replace(staging, path)


def load(path: Path) -> dict[str, Any]:
    """Reads a checkpoint onto the CPU, without running code that it might hold."""
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return state
