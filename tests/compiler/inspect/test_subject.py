import pytest

from vidc.compiler.inspect.subject import Subject, subject_of
from vidc.plugins.errors import UsageError


def test_folders_are_bundles_and_files_go_by_their_suffix(tmp_path):
    assert subject_of(tmp_path) is Subject.BUNDLE
    for name, expected in (("g.onnx", Subject.GRAPH), ("e.PT2", Subject.PACKAGE)):
        (tmp_path / name).touch()
        assert subject_of(tmp_path / name) is expected


@pytest.mark.parametrize("name", ["absent.onnx", "absent", "weights.safetensors", "bundle"])
def test_rejects_other_paths_and_lists_known_kinds(tmp_path, name):
    if not name.startswith("absent"):
        (tmp_path / name).touch()
    with pytest.raises(UsageError, match=r"an \.onnx graph, a \.pt2 package or a \.plan") as caught:
        subject_of(tmp_path / name)
    assert caught.value.code == "VIDC-INSPECT-PATH"
    assert name in caught.value.message
