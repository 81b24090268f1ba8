import json
import os
import shutil
import subprocess
import sys
import zipfile

import pytest

from vidc.plugins.installation import install_extra


@pytest.fixture
def package(tmp_path):
    path = tmp_path / "denoise.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("p/archive_version", b"0")
        archive.writestr("p/data/aotinductor/model/m.so", bytes(2000))
        archive.writestr("p/data/aotinductor/model/m_metadata.json", b'{"AOTI_CPU_ISA": "AVX2"}')
    return path


def test_a_bundle_is_shown(vidc, make_bundle):
    status, out, err = vidc("inspect", str(make_bundle()))
    assert (status, err) == (0, "")
    words = " ".join(out.split())
    assert "preset tiny (causal_video)" in words
    assert "target cpu" in words
    assert "validation passed, 12 gates, level rollout" in words
    assert "session 1 (2.05 kB) of states, 1 (2.05 kB) of second buffers" in words
    assert "RANDOM, seed 7: not a trained model" in words
    assert "denoise onnxruntime 1.31.0 fp32 1 (192 B) 1 (384 B) 1 (2.05 kB)" in words


def test_a_bundle_as_json(vidc, make_bundle):
    status, out, _ = vidc("inspect", str(make_bundle()), "--json")
    document = json.loads(out)
    assert (status, document["schema"], document["kind"]) == (0, 1, "bundle")
    assert document["weights"]["transformer"]["source"] == {"random_weights": 7}
    assert [engine["component"] for engine in document["engines"]] == ["denoise", "kv_update"]
    assert document["session"]["states"] == {"count": 1, "bytes": 2048}


def test_one_component_tensor_by_tensor(vidc, make_bundle):
    bundle = str(make_bundle())
    status, out, _ = vidc("inspect", bundle, "--component", "kv_update")
    assert status == 0
    last = " ".join(out.splitlines()[-1].split())
    assert last == "ring.k.0 state float32 [1, 32, 2, 8] read_write in place"
    _, out, _ = vidc("inspect", bundle, "--component", "denoise", "--json")
    document = json.loads(out)
    assert [tensor["name"] for tensor in document["signature"]] == ["latent", "ring.k.0", "flow"]
    assert document["engine"]["inputs"] == {"count": 1, "bytes": 192}


def test_an_unknown_component_suggests_the_nearest(vidc, make_bundle, package):
    status, out, err = vidc("inspect", str(make_bundle()), "--component", "kv_updat")
    assert (status, out) == (2, "")
    assert "VIDC-INSPECT-COMPONENT" in err
    assert "did you mean 'kv_update'?" in err
    assert vidc("inspect", str(package), "--component", "denoise")[0] == 2


def test_a_damaged_bundle_is_refused(vidc, make_bundle):
    bundle = make_bundle()
    (bundle / "denoise.onnx").write_bytes(b"grapf")
    status, out, err = vidc("inspect", str(bundle))
    assert (status, out) == (1, "")
    assert "VIDC-BUNDLE-ALTERED" in err
    shutil.rmtree(bundle)
    bundle.mkdir()
    assert "VIDC-BUNDLE-NOT" in vidc("inspect", str(bundle))[2]


def test_a_graph_is_shown(vidc, make_graph):
    path = make_graph()
    status, out, err = vidc("inspect", str(path))
    assert (status, err) == (0, "")
    words = " ".join(out.split())
    assert "opset ai.onnx 24" in words
    assert "2: 1 in the graph, 12 B; 24 B from weights/w.safetensors (not there)" in words
    assert "nodes 3: Add 2, Relu 1" in words
    assert "input x float32 [batch, 3]" in words
    (path.parent / "weights").mkdir()
    (path.parent / "weights/w.safetensors").touch()
    assert "(not there)" not in vidc("inspect", str(path))[1]


def test_a_graph_as_json(vidc, make_graph):
    document = json.loads(vidc("inspect", str(make_graph()), "--json")[1])
    assert (document["kind"], document["opsets"]) == ("onnx", {"ai.onnx": 24})
    assert document["outputs"] == [{"name": "y", "dtype": "float32", "shape": ["?", 3]}]
    assert document["initializers"][0]["location"] == "weights/w.safetensors"


def test_shows_constructs_that_parsers_misread(vidc, make_graph):
    path = str(make_graph())
    assert "lint: every parser that vidc knows" in vidc("inspect", path)[1]
    path = str(make_graph(operator="Strange", domain="elsewhere"))
    _, out, _ = vidc("inspect", path)
    assert "lint: onnxruntime: custom-operator: " in out
    document = json.loads(vidc("inspect", path, "--json")[1])
    assert document["operators"] == {"Add": 2, "elsewhere::Strange": 1}
    assert "onnxruntime" in [issue["parser"] for issue in document["lint"]]


def test_a_package_is_shown(vidc, package):
    status, out, _ = vidc("inspect", str(package))
    assert status == 0
    words = " ".join(out.split())
    assert "content AOTInductor engine" in words
    assert "AOTI_CPU_ISA AVX2" in words
    assert "data/aotinductor/model/m.so 2.00 kB" in words
    document = json.loads(vidc("inspect", str(package), "--json")[1])
    assert document["metadata"] == {"AOTI_CPU_ISA": "AVX2"}


CHOICES = {
    "384 > 384, 3 frames of 60x104": {
        "form": "conv3d",
        "decided": "measured",
        "reason": "",
        "times_ms": {"conv3d": 0.4, "F(3, 3)": 0.45},
        "at_least_ms": {},
        "device": "NVIDIA H100",
        "build": "torch 2.11.0",
    }
}


def test_forms_of_convolutions_beside_an_engine_are_shown(vidc, make_bundle, package):
    beside = package.with_suffix(".convolutions.json")
    beside.write_text(json.dumps({"schema": 1, "choices": CHOICES}))
    bundle = make_bundle()
    engine = json.loads((bundle / "manifest.json").read_text())["engines"]["denoise"]["files"][0]
    (bundle / engine).with_suffix(".convolutions.json").write_text(beside.read_text())
    for arguments in ([str(package)], [str(bundle), "--component", "denoise"]):
        status, out, _ = vidc("inspect", *arguments)
        assert status == 0
        row, machine = out.splitlines()[-2:]
        said = "60x104 conv3d measured conv3d 0.4 ms, F(3, 3) 0.45 ms"
        assert " ".join(row.split()).endswith(said)
        assert machine == "measured on NVIDIA H100 with torch 2.11.0"
        document = json.loads(vidc("inspect", *arguments, "--json")[1])
        assert document["convolutions"] == CHOICES


@pytest.mark.parametrize("damage", ["{", '{"schema": 2, "choices": {}}'])
def test_a_damaged_description_of_convolutions_is_refused(vidc, package, damage):
    package.with_suffix(".convolutions.json").write_text(damage)
    status, out, err = vidc("inspect", str(package))
    assert (status, out) == (1, "")
    assert "denoise.convolutions.json" in err


def test_a_pipe_beside_an_engine_is_refused_and_not_waited_for(vidc, package):
    os.mkfifo(package.with_suffix(".convolutions.json"))
    status, out, err = vidc("inspect", str(package))
    assert (status, out) == (1, "")
    assert "VIDC-BUNDLE-MALFORMED" in err


def test_a_file_of_another_kind_is_refused(vidc, tmp_path):
    (tmp_path / "notes.txt").touch()
    status, out, err = vidc("inspect", str(tmp_path / "notes.txt"))
    assert (status, out) == (2, "")
    assert "VIDC-INSPECT-PATH" in err


@pytest.mark.parametrize("name", ["g.onnx", "p.pt2", "e.plan"])
def test_a_pipe_is_refused_and_not_waited_for(vidc, tmp_path, name):
    os.mkfifo(tmp_path / name)
    status, out, err = vidc("inspect", str(tmp_path / name))
    assert (status, out) == (2, "")
    assert "VIDC-INSPECT-PATH" in err


def test_bundles_and_packages_need_only_the_base_install(make_bundle, package):
    code = """
import sys
for name in ("onnx", "onnxscript", "onnx_ir", "diffusers", "transformers"):
    sys.modules[name] = None
from vidc.compiler.cli import main
main(["inspect", sys.argv[1]])
"""
    for path, expected in ((make_bundle(), 0), (package, 0), (package.with_suffix(".onnx"), 3)):
        if not path.exists():
            path.touch()
        done = subprocess.run(
            [sys.executable, "-c", code, str(path)],
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == expected, done.stderr
    assert install_extra("build") in done.stderr
