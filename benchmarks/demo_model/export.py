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
FILES = {
    "transformer": "transformer/diffusion_pytorch_model.safetensors",
    "text_encoder.text_encoder": "text_encoder/model.safetensors",
    "vae": "vae/diffusion_pytorch_model.safetensors",
    "tiny": "taehv/diffusion_pytorch_model.safetensors",
}
"""Files of weights by the first words of their names."""


def export(done: Mapping[str, Any], sizes: Sizes, preset: Path, out: Path) -> None:
    """Writes ``out`` anew from finished stages, with the preset and the latents' statistics in it.

    Until all is written, ``out`` is as it was.

    Raises:
        ValueError: a value does not fit float16, or the preset has not exactly one line for each of
            the statistics.
    """
    own = {f"{stage}.{n}": w for stage in ("vae", "tiny") for n, w in done[stage]["ema"].items()}
    tensors = {name: w.cpu().half().contiguous() for name, w in (own | done["self"]["ema"]).items()}
    if broken := [name for name, half in tensors.items() if not half.isfinite().all()]:
        raise ValueError(f"{broken[0]} has values that float16 cannot represent")
    notice, text = (SHIPPED / "NOTICE.md").read_bytes(), preset.read_text()
    for key in ("mean", "std"):
        values = ", ".join(f"{value:.4f}" for value in done["vae"]["facts"][key])
        text, count = re.subn(rf"latents_{key} = \[.*\]", f"latents_{key} = [{values}]", text)
        if count != 1:
            raise ValueError(f"the preset has {count} lines latents_{key} = [...]; expected one")
    new = out.with_name(f".{out.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    for head, file in FILES.items():
        (new / file).parent.mkdir(parents=True)
        part = {n.removeprefix(f"{head}."): w for n, w in tensors.items() if n.startswith(head)}
        save_file(part, new / file, metadata={"format": "pt"})
    config = {"model_type": "umt5", **asdict(sizes.text)}
    (new / "text_encoder/config.json").write_text(json.dumps(config, indent=1) + "\n")
    (new / "tokenizer").mkdir()
    tokenizer().save(str(new / "tokenizer/tokenizer.json"))
    (new / "NOTICE.md").write_bytes(notice)
    files: dict[str, dict[str, Any]] = {
        f.relative_to(new).as_posix(): {"bytes": f.stat().st_size, "sha256": sha256_file(f)}
        for f in sorted(new.rglob("*"))
        if f.is_file()
    }
    keys = ("step", "seconds", "seed", "facts")
    trained = {name: {key: state[key] for key in keys} for name, state in done.items()}
    total = sum(file["bytes"] for file in files.values())
    document = {"bytes": total, "files": files, "trained": trained}
    (new / "digests.json").write_text(json.dumps(document, indent=1) + "\n")
    (new / "preset.toml").write_text(text)
    shutil.rmtree(out, ignore_errors=True)
    new.rename(out)
