"""``vidc build`` for an RTX card with every plugin, on a machine without one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import plugin_build
import pytest

from vidc.compiler.inspect.plan import inspect_plan
from vidc.plugins.signature import state_output

SETTINGS = (
    "tensorrt.plugins=all", "model.layers=1", "model.dim=128", "model.heads=2",
    "model.ffn_dim=64", "stream.height=16", "stream.width=32", "stream.window=8",
    "vae.res_blocks=1", "vae.base_dim=8",
)  # fmt: skip
PLUGINS = {
    "denoise": ["gelu_quantize", "qk_norm_rope_ring_write", "ring_attention_16bit"],
    "kv_update": ["qk_norm_rope_ring_write"],
    "recache_5": ["qk_norm_rope_ring_write"],
    "recache_6": ["qk_norm_rope_ring_write"],
    "text_kv": ["gelu_quantize"],
}
"""A clean pass ends with the last layer's ring write, and this model has one layer."""
LIBRARY = """
from pathlib import Path
from vidc.plugins import loading
loading.files = lambda package: Path({folder!r})
"""


def check_engines(folder: Path) -> None:
    """Checks the plugins and the rings of the engines in a portable folder."""
    for name, plugins in PLUGINS.items():
        built = folder / "compile" / name
        engine = json.loads((built / "engine.json").read_text())
        found = inspect_plan(built / "engines" / "tensorrt" / f"{name}.plan")
        assert sorted(set(found.network.plugins.values())) == plugins, name
        assert engine["options"]["plugins"] == plugins, name
        for side in ("k", "v") if name != "text_kv" else ():
            ring = f"ring.{side}.0"
            assert found.engine.updates_in_place(ring, state_output(ring)), (name, ring)


@pytest.mark.deep
@plugin_build.NEEDED
def test_build_with_all_plugins_is_portable(tmp_path):
    pytest.importorskip("tensorrt_rtx")
    folder = plugin_build.build(plugin_build.HEADERS[0])
    # The processes that a build starts import it first.
    (tmp_path / "sitecustomize.py").write_text(LIBRARY.format(folder=str(folder)))
    command = [
        str(Path(sys.executable).with_name("vidc")), "build", "tiny", "--gpu", "rtx4090",
        "--backend", "tensorrt", "--precision", "fp16", "--random-weights", "1", "-o", "out",
    ]  # fmt: skip
    done = subprocess.run(
        [*command, *(word for setting in SETTINGS for word in ("--set", setting))],
        cwd=tmp_path, capture_output=True, text=True, timeout=1800,
        env=os.environ | {"PYTHONPATH": str(tmp_path), "VIDC_CACHE": str(tmp_path / "cache")},
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert "VIDC-BUILD-PORTABLE" in done.stderr
    check_engines(tmp_path / "out.portable")
