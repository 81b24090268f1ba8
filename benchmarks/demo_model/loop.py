"""The training loop of every stage: time limit, checkpoints and log."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from demo_model.graphs import Function, Replayed
from demo_model.stages import Stage

WARMUP = 50  # Steps in which the learning rate rises; a first step draws and compiles for long.
FALLING = 0.4  # Share of a stage's time in which it falls to nothing.
EMA = 0.995  # Decay of the moving mean of the weights.
ROW = 20  # Steps of a row of the log.
SAVE_SECONDS = 100.0  # Of training that a crash may lose.
_NO_MUON = ("embed_tokens", "patch_embedding", "relative_attention_bias", "proj_out")
"""Parts of names of matrices that do not map features to features."""


class Optimizer:
    """Muon for matrices (a convolution as one, with a row for each output), AdamW for the rest.

    A CUDA graph keeps the learning rate of its capture, but training changes it with each step. In
    both optimizers a step is the rate times a change that does not depend on it. So they move
    copies of the weights at a rate of 1, on a GPU by a CUDA graph, and the weights then go ``rate``
    of the way to the copies.
    """

    def __init__(self, network: nn.Module) -> None:
        self._weights: list[Tensor] = [*network.parameters()]
        self._copies: list[nn.Parameter] = []
        matrices, rest = list[nn.Parameter](), list[nn.Parameter]()
        for name, weight in network.named_parameters():
            is_map = name.endswith("weight") and weight.squeeze().ndim > 1
            by_muon = is_map and not any(part in name for part in _NO_MUON)
            # Muon takes two dimensions.
            copy = nn.Parameter(weight.detach().clone().flatten(1 if by_muon else -1))
            self._copies.append(copy)
            (matrices if by_muon else rest).append(copy)
        on_gpu = self._weights[0].is_cuda
        self.both: list[torch.optim.Optimizer] = [
            torch.optim.Muon(matrices, 1.0, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(rest, 1.0, betas=(0.9, 0.98), weight_decay=0.0, capturable=on_gpu),
        ]
        self._work: Function = self._move_copies
        if on_gpu:
            self._work = Replayed(self._move_copies, torch.cuda.graph_pool_handle())

    @torch.no_grad()
    def step(self, rate: float) -> Tensor:
        """Takes a step from the weights' gradients; returns their norm, a scalar."""
        gradients = [weight.grad for weight in self._weights if weight.grad is not None]
        (norm,) = self._work(gradients)
        pairs = zip(self._copies, self._weights, strict=True)
        ahead = [copy.view_as(weight) for copy, weight in pairs]
        torch._foreach_lerp_(self._weights, ahead, rate)
        return norm

    def _move_copies(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Sets the copies to the weights and moves them; returns the norm of the gradients."""
        for copy, weight, gradient in zip(self._copies, self._weights, gradients, strict=True):
            copy.copy_(weight.view_as(copy))
            copy.grad = gradient.view_as(copy)
        norm = nn.utils.clip_grad_norm_(self._copies, 1.0)
        # They share memory with those of the copies. If the norm is not finite, all become zero,
        # and momentum alone moves the weights.
        for gradient in gradients:
            gradient.nan_to_num_(0, 0, 0)
        for optimizer in self.both:
            optimizer.step()
        return [norm]


def learning_rate(peak: float, step: int, progress: float) -> float:
    """The rate of a step, when ``progress`` of its stage is over: up, level, down to nothing."""
    return peak * min(1.0, (step + 1) / WARMUP, max(0.0, (1 - progress) / FALLING))


class Training:
    """A stage's weights, their moving mean, the optimizer and the progress, kept in a folder."""

    def __init__(self, stage: Stage, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._stage, self._optimizer = stage, Optimizer(stage.network)
        self._path, self._log_path = folder / f"{stage.name}.pt", folder / "log.jsonl"
        self._weights = dict(stage.network.named_parameters())
        self._mean = {name: weight.detach().clone() for name, weight in self._weights.items()}
        self._step, self._seconds = 0, 0.0
        if self._path.exists():
            state = load(self._path)
            stage.network.load_state_dict(state["network"])
            self._mean = {name: mean.to(stage.device) for name, mean in state["ema"].items()}
            self._step, self._seconds = state["step"], state["seconds"]
            for optimizer, each in zip(self._optimizer.both, state["optimizer"], strict=True):
                optimizer.load_state_dict({**optimizer.state_dict(), "state": each})

    def run(self, minutes: float, steps: int | None, deadline: float) -> bool:
        """Trains until the stage is over, and returns True, or until the deadline.

        Either ends with a checkpoint, and there is one every ``SAVE_SECONDS``. ``steps`` take the
        place of ``minutes`` in a run that must be repeatable. Nothing waits for the device but the
        log's rows.

        Raises:
            FloatingPointError: no gradient was finite in all steps of a row.
        """
        before, rows, saved = time.monotonic(), list[dict[str, Tensor]](), self._seconds
        while (progress := self._progress(minutes, steps)) < 1:
            if before >= deadline:
                self._save()
                return False
            rows.append(self._take_step(progress))
            if ends_row := self._step % ROW == 0:
                self._end_row(rows)
            now = time.monotonic()
            self._seconds, before = self._seconds + now - before, now
            if ends_row and self._seconds - saved > SAVE_SECONDS:
                self._save()
                saved = self._seconds
        if rows:
            self._end_row(rows)
        self._stage.network.load_state_dict(self._mean)
        facts = self._stage.facts()
        self._log({"done": facts})
        self._save(done=True, facts=facts)
        return True

    def _end_row(self, rows: list[dict[str, Tensor]]) -> None:
        """Logs the means of a row and empties it."""
        means = {n: float(sum(row[n] for row in rows)) / len(rows) for n in rows[0]}
        self._log(means)
        if not means["finite"]:
            since = f"{self._stage.name}: no finite gradient from {self._step - len(rows)}"
            raise FloatingPointError(since)
        rows.clear()

    def _progress(self, minutes: float, steps: int | None) -> float:
        """Share of the stage that is over."""
        return self._seconds / (60 * minutes) if steps is None else self._step / steps

    def _take_step(self, progress: float) -> dict[str, Tensor]:
        """Takes a step; returns the parts of its loss, the gradient's norm and if it was finite."""
        parts = self._stage.backward(self._step, progress)
        norm = self._optimizer.step(learning_rate(self._stage.rate, self._step, progress))
        decay = min(EMA, (1 + self._step) / (10 + self._step))
        weights = [weight.data for weight in self._weights.values()]
        torch._foreach_lerp_([*self._mean.values()], weights, 1 - decay)
        self._step += 1
        parts |= {"gradient": norm.nan_to_num(0, 0, 0), "finite": torch.isfinite(norm).float()}
        # Cloned, since the next replay of a CUDA graph overwrites its outputs.
        return {name: value.detach().clone() for name, value in parts.items()}

    def _log(self, row: dict[str, Any]) -> None:
        """Appends a line to the run's log."""
        head = {"stage": self._stage.name, "step": self._step, "seconds": self._seconds}
        with self._log_path.open("a") as file:
            file.write(json.dumps({**head, **row}) + "\n")

    def _save(self, **more: Any) -> None:
        """Writes a checkpoint; the earlier one stays whole until then."""
        state = {
            "step": self._step, "seconds": self._seconds, "seed": self._stage.seed,
            "ema": self._mean, "network": self._weights, **more,
            "optimizer": [each.state_dict()["state"] for each in self._optimizer.both],
        }  # fmt: skip
        staging = self._path.with_suffix(".new")
        torch.save(state, staging)
        staging.replace(self._path)


def load(path: Path) -> dict[str, Any]:
    """Reads a checkpoint onto the CPU, without running code that it might hold."""
    return dict(torch.load(path, map_location="cpu", weights_only=True))
