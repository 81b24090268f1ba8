"""Writes the trained weights as ``vidc build`` reads them, in float16, and what they are.

    PYTHONPATH=benchmarks python -m demo_model.export_weights --vae out/demo/vae \\
        --latents out/demo/few --out configs/demo --preset-file configs/presets/demo.toml
    vidc build demo --checkpoint configs/demo

The folder has diffusers' layout: transformer, vae, text_encoder and tokenizer. The latents' mean
and deviation go into the preset.
"""

import argparse
import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from demo_model.tokenizer import tokenizer
from demo_model.train_flow import load_trained
from demo_model.train_vae import load_vae
from demo_model.training import checkpoint
from demo_model.training.networks import PRESET, Sizes, demo_sizes
from demo_model.training.vae import Statistics

MOST_BYTES = 25_000_000
ROOM = 0.05
"""Share of these that is to be left."""

FILES = {
    "transformer": "transformer/diffusion_pytorch_model.safetensors",
    "vae": "vae/diffusion_pytorch_model.safetensors",
    "text_encoder": "text_encoder/model.safetensors",
}
DIGESTS = "digests.json"
NOTICE = "NOTICE.md"
NOTICE_TEXT = """\
# Weights of the demo model

Trained from random initial weights by scripts of `benchmarks/demo_model`, on clips that
`benchmarks/demo_model/render.py` draws from seeds. No other data and no other model's weights went
into them. They are part of this project and come under its license, Apache-2.0 (see `LICENSE`).

The weights that ship descend from three stages whose scripts are no longer there: commit 126e2ab
has those of two, that of the third was never committed. `benchmarks/demo_model/README.md` lists
every stage.

`digests.json` lists the files with their SHA-256, and how long the last run of each part took.
"""


class ExportError(ValueError):
    """Weights that are not fit to be shipped."""


def halves(tensors: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    """Tensors in float16.

    Raises:
        ExportError: a value is not finite there.
    """
    made = {name: tensor.detach().cpu().half().contiguous() for name, tensor in tensors.items()}
    for name, tensor in made.items():
        if not torch.isfinite(tensor).all():
            raise ExportError(f"{part}: {name} has values that float16 cannot hold")
    return made


def groups(vae_folder: Path, latents_folder: Path, sizes: Sizes) -> dict[str, dict[str, Tensor]]:
    """The tensors of each part, by the names that vidc knows them under."""
    vae, _ = load_vae(vae_folder, sizes, "cpu")
    modules = load_trained(latents_folder, sizes, "cpu")
    text = modules["text_encoder"].get_submodule("text_encoder")
    return {
        "transformer": modules["transformer"].state_dict(),
        "vae": vae.state_dict(),
        "text_encoder": text.state_dict(),
    }


def export(vae_folder: Path, latents_folder: Path, out: Path, sizes: Sizes) -> dict[str, Any]:
    """Writes the folder anew, and returns what its digests say.

    Args:
        vae_folder: what ``train_vae`` left.
        latents_folder: what ``train_few_step`` left, or ``train_flow``.
        out: replaced.
        sizes: of the model.

    Raises:
        ExportError: the files are too large, or a value does not fit float16.
    """
    staging = out.with_name(out.name + ".new")
    shutil.rmtree(staging, ignore_errors=True)
    for part, tensors in groups(vae_folder, latents_folder, sizes).items():
        path = staging / FILES[part]
        path.parent.mkdir(parents=True)
        save_file(halves(tensors, part), path, metadata={"format": "pt"})
    config = {"model_type": "umt5", **asdict(sizes.text)}
    (staging / "text_encoder/config.json").write_text(json.dumps(config, indent=1) + "\n")
    (staging / "tokenizer").mkdir()
    tokenizer().save(str(staging / "tokenizer/tokenizer.json"))
    (staging / NOTICE).write_text(NOTICE_TEXT)
    files = sorted(path for path in staging.rglob("*") if path.is_file())
    total = sum(path.stat().st_size for path in files)
    if total > (1 - ROOM) * MOST_BYTES:
        shutil.rmtree(staging)
        raise ExportError(
            f"{total / 1e6:.2f} MB: at most {(1 - ROOM) * MOST_BYTES / 1e6:.2f} MB are to be used"
        )
    document = {
        "bytes": total,
        "files": {
            path.relative_to(staging).as_posix(): {
                "bytes": path.stat().st_size,
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            }
            for path in files
        },
        "trained": {
            "vae": _trained(vae_folder),
            "latents": _trained(latents_folder),
        },
    }
    (staging / DIGESTS).write_text(json.dumps(document, indent=1) + "\n")
    shutil.rmtree(out, ignore_errors=True)
    staging.rename(out)
    return document


def _trained(folder: Path) -> dict[str, Any]:
    state = checkpoint.trained(folder / "checkpoint")[1]
    return {key: state[key] for key in ("part", "step", "seconds", "seed") if key in state}


def with_statistics(preset: str, statistics: Statistics) -> str:
    """A preset's TOML text with these statistics of latents.

    Raises:
        ExportError: it does not state both, each once and on one line.
    """
    for key, values in (("latents_mean", statistics.mean), ("latents_std", statistics.std)):
        line = f"{key} = [{', '.join(f'{value:.4f}' for value in values)}]"
        preset, count = re.subn(rf"^{key} = \[[^\]\n]*\]$", line, preset, flags=re.MULTILINE)
        if count != 1:
            raise ExportError(f"the preset has {count} lines {key} = [...], expected one")
    return preset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vae", type=Path, required=True, help="what train_vae left")
    parser.add_argument("--latents", type=Path, required=True, help="what train_few_step left")
    parser.add_argument("--out", type=Path, default=Path("configs/demo"))
    parser.add_argument("--preset", default=PRESET)
    parser.add_argument("--preset-file", type=Path, help="whose statistics are to be written")
    arguments = parser.parse_args()
    sizes = demo_sizes(arguments.preset)
    document = export(arguments.vae, arguments.latents, arguments.out, sizes)
    if arguments.preset_file is not None:
        statistics = load_vae(arguments.vae, sizes, "cpu")[1]
        text = with_statistics(arguments.preset_file.read_text(), statistics)
        arguments.preset_file.write_text(text)
    for path, entry in document["files"].items():
        print(f"{entry['bytes'] / 1e6:8.3f} MB  {entry['sha256'][:16]}  {path}")
    print(f"{document['bytes'] / 1e6:8.3f} MB of {MOST_BYTES / 1e6:.0f}")


if __name__ == "__main__":
    main()
