"""Writes trained weights as ``vidc build`` reads them, in float16, with digests."""

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from demo_model.networks import Sizes
from demo_model.tokens import tokenizer

MOST_BYTES = 25_000_000
DIGESTS, PRESET_FILE = "digests.json", "preset.toml"
FILES = {
    "transformer": "transformer/diffusion_pytorch_model.safetensors",
    "vae": "vae/diffusion_pytorch_model.safetensors",
    "text_encoder": "text_encoder/model.safetensors",
    "taehv": "taehv/diffusion_pytorch_model.safetensors",
}
NOTICE = """\
# Weights of the demo model

Trained from random initial weights by `python -m demo_model train`, on videos that the demo's
renderer draws from seeds. No other data and no other model's weights went into them. They are part
of this project and come under its license, Apache-2.0 (see `LICENSE`).

`digests.json` lists the files with their SHA-256, and the steps and seconds of every stage.
"""


def weights(done: Mapping[str, Any]) -> dict[str, dict[str, Tensor]]:
    """The mean weights of each part under the names that vidc knows, from finished stages."""
    latents = done["self"]["ema"]
    heads = {"transformer": "transformer.", "text_encoder": "text_encoder.text_encoder."}
    parts = {
        part: {name[len(head) :]: w for name, w in latents.items() if name.startswith(head)}
        for part, head in heads.items()
    }
    return parts | {"vae": done["vae"]["ema"], "taehv": done["tiny"]["ema"]}


def export(done: Mapping[str, Any], sizes: Sizes, preset: Path, out: Path) -> dict[str, Any]:
    """Writes ``out`` anew from finished stages, with the preset; returns its digests' document.

    Raises:
        ValueError: a value does not fit float16, or the files are too large.
    """
    staging = _staging(out)
    for part, tensors in weights(done).items():
        halves = {name: w.detach().cpu().half().contiguous() for name, w in tensors.items()}
        if broken := [name for name, half in halves.items() if not half.isfinite().all()]:
            raise ValueError(f"{part}: {broken[0]} has values that float16 cannot represent")
        path = staging / FILES[part]
        path.parent.mkdir(parents=True)
        save_file(halves, path, metadata={"format": "pt"})
    config = {"model_type": "umt5", **asdict(sizes.text)}
    (staging / "text_encoder/config.json").write_text(json.dumps(config, indent=1) + "\n")
    (staging / "tokenizer").mkdir()
    tokenizer().save(str(staging / "tokenizer/tokenizer.json"))
    (staging / "NOTICE.md").write_text(NOTICE)
    files = _digests(staging)
    if (total := sum(entry["bytes"] for entry in files.values())) > MOST_BYTES:
        raise ValueError(f"{total / 1e6:.2f} MB of weights, at most {MOST_BYTES / 1e6:.0f} MB")
    keys = ("step", "seconds", "seed", "facts")
    trained = {name: {key: state[key] for key in keys} for name, state in done.items()}
    document = {"bytes": total, "files": files, "trained": trained}
    (staging / DIGESTS).write_text(json.dumps(document, indent=1) + "\n")
    (staging / PRESET_FILE).write_text(_with_statistics(preset.read_text(), trained))
    _replace(out, staging)
    return document


def ship(weights: Path, out: Path, preset: Path) -> dict[str, Any]:
    """Replaces ``out`` by exported weights, and the latents' statistics in ``preset``.

    Both are written beside their places and renamed in the end, so a run that fails or stops
    before changes nothing. Returns the document of digests.

    Raises:
        ValueError: the weights are not those of their digests, or the preset has no statistics.
    """
    document: dict[str, Any] = json.loads((weights / DIGESTS).read_text())
    staging, text = _staging(out), preset.with_name(preset.name + ".new")
    shutil.copytree(weights, staging, ignore=shutil.ignore_patterns(PRESET_FILE))
    if (found := _digests(staging)) != document["files"]:
        differing = [name for name in found if found[name] != document["files"].get(name)]
        missing = sorted(document["files"].keys() - found)
        raise ValueError(f"{weights}: not the files of {DIGESTS}: {[*differing, *missing]}")
    text.write_text(_with_statistics(preset.read_text(), document["trained"]))
    _replace(out, staging)
    text.replace(preset)
    return document


def _staging(out: Path) -> Path:
    """Returns the path beside ``out`` where its successor is written; nothing is there."""
    staging = out.with_name(out.name + ".new")
    shutil.rmtree(staging, ignore_errors=True)
    return staging


def _replace(out: Path, staging: Path) -> None:
    """Puts a whole folder in the place of another, by renaming both."""
    before = out.with_name(out.name + ".old")
    shutil.rmtree(before, ignore_errors=True)
    if out.exists():
        out.rename(before)
    staging.rename(out)
    shutil.rmtree(before, ignore_errors=True)


def _digests(folder: Path) -> dict[str, dict[str, Any]]:
    """Returns size and SHA-256 of every file but the digests themselves."""
    return {
        path.relative_to(folder).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != DIGESTS
    }


def _with_statistics(preset: str, trained: Mapping[str, Any]) -> str:
    for key in ("mean", "std"):
        values = ", ".join(f"{value:.4f}" for value in trained["vae"]["facts"][key])
        line = f"latents_{key} = [{values}]"
        preset, count = re.subn(rf"latents_{key} = \[.*\]", line, preset)
        if count != 1:
            raise ValueError(f"the preset has {count} lines latents_{key} = [...]; expected one")
    return preset
