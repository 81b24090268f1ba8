"""One stream in a process of its own, from the start of the process to its first frame and on.

    python -m vidc.compiler.bench.alone BUNDLE PROMPT PROMPT STREAM SEED

Prints one JSON document: ``seconds`` of the monotonic clock, which all processes share, at which
each step was done, and ``peak`` memory once the window was full and a prompt had been switched.
"""

import json
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import load_file

from vidc.compiler.bench.peak import peak_rss_bytes
from vidc.compiler.bench.streams import OURS, of_baselines, of_bundle
from vidc.plugins.errors import VidcError
from vidc.runtime import load
from vidc.runtime.manifest import read_manifest


def main(folder: Path, prompts: tuple[Path, Path], name: str, seed: int) -> None:
    """Opens the stream, runs it, prints what it took."""
    seconds = {"imported": time.monotonic()}
    manifest = read_manifest(folder)
    spec, device = manifest.spec, torch.device(manifest.target.device_type)
    if name == OURS:
        contestant = of_bundle(load(folder), seed)
    else:
        contestant = of_baselines((name,), folder, manifest, device, seed)[name]
    seconds["loaded"] = time.monotonic()
    stream = contestant.open()
    before, after = (load_file(path)["text_embeds"].to(device) for path in prompts)
    stream.prompt(before)
    seconds["prompted"] = time.monotonic()
    stream.step().cpu()
    seconds["framed"] = time.monotonic()
    for _ in range(-(-spec.window // spec.block)):
        stream.step().cpu()
    stream.switch_prompt(after)
    stream.step().cpu()
    sys.stdout.write(json.dumps({"seconds": seconds, "peak": _peak(device)}) + "\n")


def _peak(device: torch.device) -> dict[str, int]:
    peak = {"peak_rss_bytes": peak_rss_bytes()}
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        peak["peak_cuda_bytes"] = torch.cuda.max_memory_allocated(device)
        peak["device_bytes"] = total - free
    return peak


if __name__ == "__main__":
    bundle, first, second, stream_name, seed = sys.argv[1:]
    try:
        main(Path(bundle), (Path(first), Path(second)), stream_name, int(seed))
    except VidcError as error:
        sys.exit(str(error))
