"""Prompts of a calibration: a file of texts or embeddings, or vidc's own prompts."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from vidc.compiler.config.toml import shipped_text
from vidc.compiler.quantize.document import MAX_TEXTS, TEXTS, texts_json, texts_sha256
from vidc.plugins.errors import UsageError
from vidc.plugins.untrusted_files import require_regular
from vidc.runtime.programs.spec import ProgramSpec

EMBEDDINGS, SYNTHETIC = "embeddings", "synthetic"
SHIPPED_TEXTS = "calibration_prompts.txt"
_HINT = (
    "give --prompts a .safetensors file with one tensor [N, L, E] or several [L, E], or, for a "
    "model with a text encoder, a .txt file with a prompt a line or a .json list of strings"
)


@dataclass(frozen=True)
class Prompts:
    """Prompts of a calibration, in order.

    Attributes:
        kind: ``texts``; ``embeddings``; or ``synthetic``, random embeddings for a model without a
            text encoder, which are unlike what a trained model sees.
        texts: prompts of kind ``texts``.
        embeddings: prompts of the other kinds, float32 ``[N, L, E]`` on the CPU. A program without
            prompts has ``[N, 0]``, for N rollouts.
    """

    kind: str
    texts: tuple[str, ...] = ()
    embeddings: Tensor | None = None

    def __len__(self) -> int:
        return len(self.texts) if self.embeddings is None else len(self.embeddings)

    @property
    def sha256(self) -> str:
        """Hex digest of the prompts, which does not depend on their file."""
        if self.embeddings is None:
            return texts_sha256(self.texts)
        return hashlib.sha256(self.embeddings.contiguous().numpy().tobytes()).hexdigest()

    def embedded(self, encode: Callable[[str], Tensor] | None) -> Tensor:
        """Returns embeddings, float32 ``[N, L, E]``; ``encode`` embeds a text, ``[1, L, E]``."""
        if self.embeddings is not None:
            return self.embeddings
        assert encode is not None
        return torch.cat([encode(text).float().cpu().clone() for text in self.texts])


def default_prompts(
    spec: ProgramSpec, count: int, texts: bool, preset: Sequence[str] = ()
) -> Prompts:
    """Returns the preset's prompts, else vidc's own; random embeddings without a text encoder.

    Args:
        spec: spec of the program, with the shape of a prompt.
        count: largest number of prompts.
        texts: True if the model has a text encoder.
        preset: prompts of the preset.

    Raises:
        UsageError: ``VIDC-CALIBRATE-PROMPTS``, the preset's prompts are all empty or too long.
    """
    if texts and preset:
        return _texts(list(preset), "calibrate.prompts", count)
    if texts:
        return _texts(shipped_text(SHIPPED_TEXTS).splitlines(), SHIPPED_TEXTS, count)
    from vidc.compiler.validate.golden import synthetic_prompts

    return Prompts(SYNTHETIC, embeddings=synthetic_prompts(count, spec))


def read_prompts(path: Path, spec: ProgramSpec, count: int, texts: bool) -> Prompts:
    """Returns the first ``count`` prompts of a file, or all if it has fewer.

    Args:
        path: ``.safetensors`` with one tensor ``[N, L, E]`` or several ``[L, E]``, ``.txt`` with a
            prompt a line, or ``.json`` with a list of strings.
        spec: spec of the program, with the length and width that embeddings must have.
        count: largest number of prompts.
        texts: True if the model has a text encoder.

    Raises:
        UsageError: ``VIDC-CALIBRATE-PROMPTS``, the file cannot be read or has no prompt, or the
            model takes none; ``VIDC-PROMPT-SHAPE``; ``VIDC-PROMPT-NO-ENCODER``, texts without a
            text encoder.
    """
    if not spec.prompt_shape:
        raise UsageError(
            "VIDC-CALIBRATE-PROMPTS",
            f"{path} is given, and the model takes no prompts",
            "leave --prompts out",
        )
    if path.suffix == ".safetensors":
        return Prompts(EMBEDDINGS, embeddings=_embeddings(path, spec.prompt_shape[1:])[:count])
    if path.suffix not in (".txt", ".json"):
        raise _unreadable(path, "ends in none of .safetensors, .txt and .json")
    try:
        content = path.read_text(encoding="utf-8-sig")
        found = content.splitlines() if path.suffix == ".txt" else json.loads(content)
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(path, f"cannot be read: {error}") from error
    if not texts:
        raise UsageError(
            "VIDC-PROMPT-NO-ENCODER",
            f"{path} holds texts, and the model has no text encoder",
            "add --text-encoder FOLDER, or give embeddings in a .safetensors file",
        )
    return _texts(found, str(path), count)


def _texts(found: Any, where: str, count: int) -> Prompts:
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise _unreadable(where, "is not a list of strings")
    texts = [text.strip() for text in found if text.strip()]
    if not texts:
        raise _unreadable(where, "holds no prompt")
    texts = texts[:count]
    if len(texts_json(texts)) > MAX_TEXTS:
        raise _unreadable(
            where, f"holds prompts of {len(texts_json(texts)):,} bytes, {MAX_TEXTS:,} may be kept"
        )
    return Prompts(TEXTS, tuple(texts))


def _embeddings(path: Path, shape: tuple[int, ...]) -> Tensor:
    try:
        require_regular(path)
        tensors: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise _unreadable(path, f"cannot be read: {error}") from error
    found = []
    for name, tensor in sorted(tensors.items()):
        if (
            tensor.shape[-2:] != shape
            or tensor.ndim not in (2, 3)
            or not tensor.is_floating_point()
        ):
            raise UsageError(
                "VIDC-PROMPT-SHAPE",
                f"{path}: {name} is {tensor.dtype}{list(tensor.shape)}, expected floating point "
                f"[N, {shape[0]}, {shape[1]}] or the same without N",
                "pad each prompt's embeddings with zeros to the model's text length",
            )
        found.append(tensor.reshape(-1, *shape).float())
    if sum(map(len, found)) == 0:
        raise _unreadable(path, "holds no prompt")
    embeddings = torch.cat(found)
    if not embeddings.isfinite().all() or not embeddings.any():
        raise _unreadable(path, "holds NaN or Inf" if embeddings.any() else "holds only zeros")
    return embeddings


def _unreadable(path: Path | str, problem: str) -> UsageError:
    return UsageError("VIDC-CALIBRATE-PROMPTS", f"{path} {problem}", _HINT)


def pairs(embeddings: Tensor) -> Sequence[Tensor]:
    """Returns each rollout's two prompts, ``[2, L, E]``: before and after its prompt switch."""
    return [torch.stack(pair) for pair in zip(embeddings, embeddings.roll(-1, 0), strict=True)]
