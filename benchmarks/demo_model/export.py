"""Writes trained weights as ``vidc build`` reads them, in float16, with their digests."""

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
    staging = out.with_name(out.name + ".new")
    shutil.rmtree(staging, ignore_errors=True)
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
    keys = ("step", "seconds", "seed", "facts")
    trained = {name: {key: state[key] for key in keys} for name, state in done.items()}
    document = _finish(staging, trained)
    (staging / PRESET_FILE).write_text(_with_statistics(preset.read_text(), trained))
    shutil.rmtree(out, ignore_errors=True)
    staging.rename(out)
    return document


def ship(weights: Path, out: Path, preset: Path) -> dict[str, Any]:
    """Replaces ``out`` by exported weights, and the latents' statistics in ``preset``.

    Returns the document of digests; raises as ``export``.
    """
    trained = json.loads((weights / DIGESTS).read_text())["trained"]
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(weights, out, ignore=shutil.ignore_patterns(PRESET_FILE, DIGESTS))
    preset.write_text(_with_statistics(preset.read_text(), trained))
    return _finish(out, trained)


def _with_statistics(preset: str, trained: Mapping[str, Any]) -> str:
    for key in ("mean", "std"):
        values = ", ".join(f"{value:.4f}" for value in trained["vae"]["facts"][key])
        line = f"latents_{key} = [{values}]"
        preset, count = re.subn(rf"latents_{key} = \[.*\]", line, preset)
        if count != 1:
            raise ValueError(f"the preset has {count} lines latents_{key} = [...]; expected one")
    return preset


def _finish(folder: Path, trained: Mapping[str, Any]) -> dict[str, Any]:
    """Writes notice and digests."""
    (folder / "NOTICE.md").write_text(NOTICE)
    files: dict[str, dict[str, Any]] = {
        path.relative_to(folder).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    total = sum(entry["bytes"] for entry in files.values())
    if total > MOST_BYTES:
        raise ValueError(f"{total / 1e6:.2f} MB of weights, at most {MOST_BYTES / 1e6:.0f} MB")
    document = {"bytes": total, "files": files, "trained": trained}
    (folder / DIGESTS).write_text(json.dumps(document, indent=1) + "\n")
    return document
