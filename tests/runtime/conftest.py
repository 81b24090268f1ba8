import hashlib
from pathlib import Path

import pytest

from vidc.plugins.abi import PLUGIN_ABI
from vidc.plugins.signature import Access, Role, Signature, TensorSpec
from vidc.runtime.manifest import (
    BundleFile,
    Engine,
    Manifest,
    Requirements,
    Target,
    Validation,
    Weights,
    write_manifest,
)
from vidc.runtime.programs.stream import StreamSpec

CONTENTS = {
    "denoise.onnx": b"graph",
    "engines/denoise.bin": b"engine" * 10,
    "weights/transformer.safetensors": b"w" * (2**20 + 1),
    "report.html": b"<html>",
    "golden/latents.safetensors": b"",
}


@pytest.fixture(scope="session")
def manifest() -> Manifest:
    """A valid manifest of the files in CONTENTS, with no field empty or null."""
    signature = Signature(
        (
            TensorSpec("latent", (1, 3, 4, 2, 4), "float32", Role.INPUT),
            TensorSpec("ring.k.0", (1, 32, 2, 8), "float32", Role.STATE, Access.READ_WRITE, True),
            TensorSpec("flow", (1, 3, 4, 2, 4), "float32", Role.OUTPUT),
        )
    )
    return Manifest(
        name="tiny-cpu-fp32",
        preset="tiny",
        family="causal_video",
        program="causal_video",
        config={"model": {"dim": 16, "patch": [1, 2, 2]}, "note": "größer"},
        spec=StreamSpec(
            batch=1,
            block=3,
            window=6,
            sink=3,
            frame_tokens=2,
            grid=(1, 2),
            latent=(4, 2, 4),
            video=(16, 32),
            head_dim=8,
            text=(8, 16),
            timesteps=(1000.0, 937.5),
            sigmas=(1.0, 0.9375),
            context_timestep=0.0,
            pending="kv_update",
        ),
        target=Target("h100", "9.0", 85 * 10**9),
        engines={
            "denoise": Engine(
                backend="onnxruntime",
                loader="onnxruntime",
                version="1.31.0",
                precision="fp32",
                files=("denoise.onnx", "engines/denoise.bin"),
                signature=signature,
                options={"threads": 1},
                requires=Requirements("2.13.0", ("avx2", "avx512_f"), ("gelu_quantize",)),
            )
        },
        weights={
            "transformer": Weights("weights/transformer.safetensors", {"kind": "random", "seed": 7})
        },
        files={
            path: BundleFile(len(data), hashlib.sha256(data).hexdigest(), ())
            for path, data in CONTENTS.items()
        },
        plugin_abi=PLUGIN_ABI,
        calibration={"recipe": "fp8", "prompts": 4},
        tools={"torch": "2.13.0", "vidc": "0.1.0"},
        validation=Validation(
            passed=True, gates=12, report="report.html", level="rollout", working_bytes=9
        ),
        stages={"export": "e" * 64, "compile": "c" * 64},
    )


@pytest.fixture
def bundle(tmp_path: Path, manifest: Manifest) -> Path:
    """The folder of a valid bundle."""
    folder = tmp_path / "bundle"
    for path, data in CONTENTS.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    write_manifest(manifest, folder)
    return folder
