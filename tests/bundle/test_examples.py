"""The examples, run as their docstrings say, with the tests' small bundle."""

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import av
import nbclient
import nbformat
import pytest
import torch
import yaml
from fastapi.testclient import TestClient
from safetensors.torch import save_file

EXAMPLES = Path(__file__).parents[2] / "examples"
Run = Callable[..., str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a script of the examples; returns what it prints."""

    def run(name: str, *arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def frame_count(video: Path) -> int:
    with av.open(str(video)) as opened:
        return sum(1 for _ in opened.decode(video=0))


def test_stream_to_file(run: Run, project, tmp_path: Path) -> None:
    video = tmp_path / "out.mp4"
    run("stream_to_file.py", project.bundle, video, "--prompt", "a fox", "--blocks", 2)
    assert frame_count(video) == 9 + 12


def test_switch_prompt(run: Run, project, tmp_path: Path) -> None:
    video = tmp_path / "out.mp4"
    run("switch_prompt.py", project.bundle, video, "--prompts", "a fox", "snow", "--blocks", 1)
    assert frame_count(video) == 9 + 12


def test_two_sessions(run: Run, project) -> None:
    printed = run("two_sessions.py", project.bundle, "--prompts", "a fox", "snow", "--blocks", 2)
    assert "each alone: True" in printed


def test_explicit_noise(run: Run, project) -> None:
    printed = run("explicit_noise.py", project.bundle, "--prompt", "a fox")
    assert "the same latents: True" in printed


def test_diffusers_interop(run: Run, project) -> None:
    vae = project.pipeline / "vae"
    printed = run("diffusers_interop.py", project.bundle, vae, "--prompt", "a fox")
    frames, levels = re.findall(r"^(\d+) frames; .* at most (\d+) of 255", printed)[0]
    assert (int(frames), int(levels) <= 1) == (9, True)
    assert "latents [1, 3, 16, 4, 6]" in printed


def test_server(project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUNDLE", str(project.bundle))
    app = runpy.run_path(str(EXAMPLES / "server.py"))["app"]
    with TestClient(app) as client:
        answer = client.get("/video", params={"prompt": "a fox", "blocks": 1})
        assert answer.content.count(b"--frame\r\n") == 9
        refused = client.get("/video", params={"prompt": "a fox", "seed": -1})
    assert (refused.status_code, "VIDC-SESSION-NUMBER" in refused.text) == (422, True)


def test_notebook(project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUNDLE", str(project.bundle))
    notebook = nbformat.read(EXAMPLES / "frames.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "committed without outputs"
    played = nbclient.NotebookClient(notebook, timeout=120).execute()
    outputs = [output for cell in played.cells for output in cell.get("outputs", ())]
    assert [o.output_type for o in outputs if "image/png" in o.get("data", {})] == [
        "execute_result",
        "execute_result",
    ]


def test_comfyui_node(project) -> None:
    folder = EXAMPLES / "comfyui_vidc"
    spec = spec_from_file_location("comfyui_vidc", folder / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    node = module.NODE_CLASS_MAPPINGS["VidcGenerate"]
    required = node.INPUT_TYPES()["required"]
    values = {"bundle": str(project.bundle), "prompt": "a fox", "blocks": 1, "seed": 3}
    assert required.keys() == values.keys()
    (frames,) = getattr(node(), node.FUNCTION)(**values)
    module.opened(str(project.bundle)).close()
    assert (frames.dtype, frames.shape) == (torch.float32, (9, 32, 48, 3))
    assert 0 <= frames.min() < frames.max() <= 1


def shell_environment(project) -> dict[str, str]:
    tools = Path(sys.executable).parent
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "VIDC_CACHE": str(project.cache)}


def test_lora(project, tmp_path: Path) -> None:
    name, lora = "blocks.0.attn1.to_q", tmp_path / "lora.safetensors"
    sizes = project.resolve()[0].model.transformer
    down, up = torch.ones(4, sizes.dim), torch.ones(sizes.dim, 4)
    save_file(
        {f"transformer.{name}.lora_A.weight": down, f"transformer.{name}.lora_B.weight": up}, lora
    )
    output = tmp_path / "out"
    words = [EXAMPLES / "lora.sh", project.preset, project.pipeline, lora, output, "a fox"]
    subprocess.run(words, env=shell_environment(project), check=True, capture_output=True)
    assert frame_count(output.with_name("out.mp4")) == 9 + 12
    weights = json.loads((output / "manifest.json").read_text())["weights"]
    (merged,) = weights["transformer"]["source"]["loras"]
    assert merged["files"] == ["lora.safetensors"]


def test_workflow(project, tmp_path: Path) -> None:
    (job,) = yaml.safe_load((EXAMPLES / "validate_in_ci.yml").read_text())["jobs"].values()
    commands = [step["run"] for step in job["steps"] if step.get("run", "").startswith("vidc ")]
    assert [shlex.split(command)[1] for command in commands] == ["build", "validate"]
    here = {"demo": project.preset, "configs/demo": project.pipeline}
    for command in commands:
        words = [str(here.get(word, word)) for word in shlex.split(command)]
        subprocess.run(words, env=shell_environment(project), cwd=tmp_path, check=True)
    assert {"demo", "demo.html"} <= {path.name for path in (tmp_path / "out").iterdir()}


def test_every_example_is_listed_and_run() -> None:
    files = {path.name for path in EXAMPLES.iterdir()} - {"README.md", "__pycache__"}
    listed = set(re.findall(r"\]\(\.\./examples/([\w.]+)", (EXAMPLES / "README.md").read_text()))
    assert listed == files
    here = Path(__file__).read_text()
    # tests/compiler/cli/test_controls.py reads its actions.
    assert [name for name in files - {"world"} if f'"{name}"' not in here] == []
