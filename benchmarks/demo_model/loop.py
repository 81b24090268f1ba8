"""The training loop of every stage: time limit, checkpoints and log."""

import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from demo_model.stages import Stage

WARMUP = 50  # Steps in which the learning rate rises; a first step draws and compiles for long.
FALLING = 0.4  # Share of a stage's time in which it falls to nothing.
EMA = 0.995  # Decay of the moving mean of the weights.
ROW = 20  # Steps of a row of the log.
SAVE_SECONDS = 100.0  # Of training that a crash may lose.
_NO_MUON = ("embed_tokens", "patch_embedding", "relative_attention_bias", "proj_out")
"""Parts of names of matrices that do not map features to features."""


class Optimizer:
    """Muon for matrices (convolutions as matrices of their outputs), AdamW for the rest."""

    def __init__(self, network: nn.Module) -> None:
        self._matrices: dict[nn.Parameter, nn.Parameter] = {}
        rest = []
        for name, weight in network.named_parameters():
            is_map = name.endswith("weight") and weight.squeeze().ndim > 1
            if is_map and not any(part in name for part in _NO_MUON):
                # Muon takes two dimensions; the flattened parameter shares its memory.
                self._matrices[weight] = nn.Parameter(weight.data.flatten(1))
            else:
                rest.append(weight)
        flat = self._matrices.values()
        self.both: list[torch.optim.Optimizer] = [
            torch.optim.Muon(flat, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(rest, betas=(0.9, 0.98), weight_decay=0.0),
        ]

    def step(self, rate: float) -> None:
        """Takes a step from the parameters' gradients."""
        for weight, matrix in self._matrices.items():
            matrix.grad = None if weight.grad is None else weight.grad.flatten(1)
        for optimizer in self.both:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()


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
                optimizer.load_state_dict(each)

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
                means = {n: float(sum(row[n] for row in rows)) / len(rows) for n in rows[0]}
                self._log(means)
                rows.clear()
                if not means["finite"]:
                    since = f"{self._stage.name}: no finite gradient from {self._step - ROW}"
                    raise FloatingPointError(since)
            now = time.monotonic()
            self._seconds, before = self._seconds + now - before, now
            if ends_row and self._seconds - saved > SAVE_SECONDS:
                self._save()
                saved = self._seconds
        self._stage.network.load_state_dict(self._mean)
        facts = self._stage.facts()
        self._log({"done": facts})
        self._save(done=True, facts=facts)
        return True

    def _progress(self, minutes: float, steps: int | None) -> float:
        """Share of the stage that is over."""
        return self._seconds / (60 * minutes) if steps is None else self._step / steps

    def _take_step(self, progress: float) -> dict[str, Tensor]:
        """Takes a step; returns the parts of its loss, the gradient's norm and if it was finite."""
        parts = self._stage.backward(self._step, progress)
        weights = [*self._weights.values()]
        norm = torch.nn.utils.clip_grad_norm_(weights, 1.0)
        for weight in weights:
            if weight.grad is not None:
                weight.grad.nan_to_num_(0, 0, 0)  # A norm that is not finite: the step is lost.
        self._optimizer.step(learning_rate(self._stage.rate, self._step, progress))
        decay = min(EMA, (1 + self._step) / (10 + self._step))
        torch._foreach_lerp_([*self._mean.values()], [w.data for w in weights], 1 - decay)
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
            "optimizer": [each.state_dict() for each in self._optimizer.both],
        }  # fmt: skip
        staging = self._path.with_suffix(".new")
        torch.save(state, staging)
        staging.replace(self._path)


def load(path: Path) -> dict[str, Any]:
    """Reads a checkpoint onto the CPU, without running code that it might hold."""
    return dict(torch.load(path, map_location="cpu", weights_only=True))
