import json

import onnx
import onnxruntime
import pytest
import torch

from vidc.compiler.store import publish
from vidc.plugins.errors import BuildError, UnavailableError

TEXT_KV = ("export", "tiny", "--gpu", "cpu", "--component", "text_kv")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A build cache that the tests of this file share, so that one of them exports."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def shared_cache(cache, monkeypatch):
    monkeypatch.setenv("VIDC_CACHE", str(cache))


def test_with_weights_the_graph_loads_as_it_is(vidc, tmp_path):
    folder = tmp_path / "out"
    status, out, err = vidc(*TEXT_KV, "--random-weights", "1", "-o", str(folder), "--json")
    assert status == 0, err
    assert json.loads(out) == {
        "schema": 1,
        "output": str(folder),
        "components": [
            {
                "component": "text_kv",
                "precision": "fp32",
                "onnx": "text_kv.onnx",
                "program": "text_kv.pt2",
                "weights": "weights/transformer.safetensors",
            }
        ],
        "missing": [],
    }
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert files == {"text_kv.onnx", "text_kv.pt2", "weights/transformer.safetensors"}
    session = onnxruntime.InferenceSession(folder / "text_kv.onnx")
    (embeds,) = session.get_inputs()
    values = torch.randn(embeds.shape, generator=torch.Generator().manual_seed(0))
    assert all(abs(keys).max() > 0 for keys in session.run(None, {embeds.name: values.numpy()}))
    assert [line.split(":")[0] for line in err.splitlines()] == ["load", "transformer", "export"]


def test_export_without_weights_names_missing_files(vidc, tmp_path):
    folder = tmp_path / "new" / "out"
    status, out, _ = vidc(*TEXT_KV, "-o", str(folder))
    assert status == 0
    assert sorted(path.name for path in folder.iterdir()) == ["text_kv.onnx", "text_kv.pt2"]
    assert "weights/transformer.safetensors is not there" in out
    again = tmp_path / "again"
    again.mkdir()
    _, out, err = vidc(*TEXT_KV, "-o", str(again), "--json")
    assert json.loads(out)["missing"] == ["weights/transformer.safetensors"]
    assert "export:text_kv: cached" in err


def test_graphs_for_a_gpu_need_no_backend(vidc, tmp_path):
    folder = tmp_path / "out"
    arguments = ("--gpu", "h100", "--precision", "bf16", "--component", "text_kv")
    status, out, err = vidc("export", "tiny", *arguments, "-o", str(folder), "--json")
    assert status == 0, err
    assert [item["precision"] for item in json.loads(out)["components"]] == ["bf16"]
    signature = onnx.load(folder / "text_kv.onnx", load_external_data=False).graph.output
    types = [item.type.tensor_type.elem_type for item in signature]
    # The number of padding tokens alone is in float32.
    assert types.count(onnx.TensorProto.FLOAT) == 1
    assert {*types} == {onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT}


def test_unsupported_backend_of_a_gpu_names_another(vidc, tmp_path):
    arguments = ("--gpu", "a100", "--backend", "aoti", "-o", str(tmp_path / "out"))
    status, out, err = vidc("build", "tiny", "--random-weights", "1", *arguments)
    assert (status, out) == (UnavailableError.exit_code, "")
    assert "VIDC-BACKEND-TARGET" in err
    assert "--backend tensorrt" in err


def test_a_folder_that_is_not_empty_is_left_alone(vidc, tmp_path):
    (tmp_path / "notes").write_text("mine")
    status, out, err = vidc(*TEXT_KV, "-o", str(tmp_path))
    assert (status, out) == (2, "")
    assert "VIDC-EXPORT-OUTPUT" in err
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def test_an_unknown_component_suggests_the_nearest(vidc, tmp_path):
    status, _, err = vidc("export", "tiny", "--component", "denois", "-o", str(tmp_path / "out"))
    assert status == 2
    assert "VIDC-EXPORT-COMPONENT" in err
    assert "did you mean 'denoise'?" in err


def test_a_failed_export_leaves_nothing(vidc, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(publish, "sync_tree", full)
    status, _, err = vidc(*TEXT_KV, "-o", str(tmp_path / "out"))
    assert status == BuildError.exit_code
    assert "VIDC-BUILD-DISK" in err
    assert list(tmp_path.iterdir()) == []
