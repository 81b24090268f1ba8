"""Writes trained weights as ``vidc build`` reads them, in float16, with digests."""

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from demo_model.networks import PRESET, Sizes
from demo_model.world import tokenizer
from vidc.compiler.store.digest import sha256_file

SHIPPED = PRESET.parents[1] / "demo"
DIGESTS, PRESET_FILE = "digests.json", "preset.toml"
FILES = {
    "transformer": "transformer/diffusion_pytorch_model.safetensors",
    "text_encoder.text_encoder": "text_encoder/model.safetensors",
    "vae": "vae/diffusion_pytorch_model.safetensors",
    "tiny": "taehv/diffusion_pytorch_model.safetensors",
}
"""Files of weights by the first words of their names."""


def export(done: Mapping[str, Any], sizes: Sizes, preset: Path, out: Path) -> None:
    """Writes ``out`` anew from finished stages, with the preset.

    Raises:
        ValueError: a value does not fit float16.
    """
    own = {f"{stage}.{n}": w for stage in ("vae", "tiny") for n, w in done[stage]["ema"].items()}
    tensors = {name: w.cpu().half().contiguous() for name, w in (own | done["self"]["ema"]).items()}
    if broken := [name for name, half in tensors.items() if not half.isfinite().all()]:
        raise ValueError(f"{broken[0]} has values that float16 cannot represent")
    notice = (SHIPPED / "NOTICE.md").read_bytes()
    shutil.rmtree(out, ignore_errors=True)
    for head, file in FILES.items():
        (out / file).parent.mkdir(parents=True)
        part = {n.removeprefix(f"{head}."): w for n, w in tensors.items() if n.startswith(head)}
        save_file(part, out / file, metadata={"format": "pt"})
    config = {"model_type": "umt5", **asdict(sizes.text)}
    (out / "text_encoder/config.json").write_text(json.dumps(config, indent=1) + "\n")
    (out / "tokenizer").mkdir()
    tokenizer().save(str(out / "tokenizer/tokenizer.json"))
    (out / "NOTICE.md").write_bytes(notice)
    paths = [path for path in sorted(out.rglob("*")) if path.is_file()]
    files: dict[str, dict[str, Any]] = {
        path.relative_to(out).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": sha256_file(path),
        }
        for path in paths
    }
    keys = ("step", "seconds", "seed", "facts")
    trained = {name: {key: state[key] for key in keys} for name, state in done.items()}
    document = {
        "bytes": sum(f["bytes"] for f in files.values()),
        "files": files,
        "trained": trained,
    }
    (out / DIGESTS).write_text(json.dumps(document, indent=1) + "\n")
    (out / PRESET_FILE).write_text(_with_statistics(preset.read_text(), trained))


def ship(weights: Path, out: Path, preset: Path) -> None:
    """Replaces ``out`` by exported weights, and the latents' statistics in ``preset``.

    Raises:
        ValueError: a file differs from its digest.
    """
    document = json.loads((weights / DIGESTS).read_text())
    text = _with_statistics(preset.read_text(), document["trained"])
    for name, file in document["files"].items():
        if sha256_file(weights / name) != file["sha256"]:
            raise ValueError(f"{name} differs from its digest: run `train` again to export it")
    staging = out.with_name(f"{out.name}.new")
    shutil.rmtree(staging, ignore_errors=True)
    shutil.copytree(weights, staging, ignore=shutil.ignore_patterns(PRESET_FILE))
    shutil.rmtree(out, ignore_errors=True)
    staging.rename(out)
    preset.write_text(text)


def _with_statistics(preset: str, trained: Mapping[str, Any]) -> str:
    for key in ("mean", "std"):
        values = ", ".join(f"{value:.4f}" for value in trained["vae"]["facts"][key])
        line = f"latents_{key} = [{values}]"
        preset, count = re.subn(rf"latents_{key} = \[.*\]", line, preset)
        if count != 1:
            raise ValueError(f"the preset has {count} lines latents_{key} = [...]; expected one")
    return preset
