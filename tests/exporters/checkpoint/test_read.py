import json
import os
import pickle
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.exporters.checkpoint.read import checkpoint_files, read_checkpoint, read_model
from vidc.plugins.errors import VidcError

STATE = {
    "a": torch.arange(6.0).reshape(2, 3),
    "b": torch.ones(4, dtype=torch.bfloat16),
    "c": torch.tensor(2, dtype=torch.int64),
}


def check(tensors: dict[str, LazyTensor], state: dict[str, Tensor] = STATE) -> None:
    assert tensors.keys() == state.keys()
    for name, tensor in tensors.items():
        assert tensor.shape == tuple(state[name].shape)
        assert tensor.dtype == state[name].dtype
        assert torch.equal(tensor.load(), state[name])


def refuse(path: Path, code: str) -> VidcError:
    with pytest.raises(VidcError) as caught:
        read_checkpoint(path)
    assert caught.value.code == code
    return caught.value


def shards(folder: Path) -> Path:
    save_file({"a": STATE["a"]}, folder / "m-1.safetensors")
    save_file({"b": STATE["b"], "c": STATE["c"]}, folder / "m-2.safetensors")
    index = folder / "diffusion_pytorch_model.safetensors.index.json"
    names = {"a": "m-1.safetensors", "b": "m-2.safetensors", "c": "m-2.safetensors"}
    index.write_text(json.dumps({"metadata": {"total_size": 40}, "weight_map": names}))
    return index


def test_one_safetensors_file_by_name_and_by_folder(tmp_path: Path) -> None:
    file = tmp_path / "diffusion_pytorch_model.safetensors"
    save_file(STATE, file)
    for path in (file, tmp_path):
        checkpoint = read_checkpoint(path)
        check(checkpoint.tensors)
        assert checkpoint.files == checkpoint_files(path) == (file,)
        assert checkpoint.section is None


def test_shards_by_index_and_by_folder(tmp_path: Path) -> None:
    index = shards(tmp_path)
    for path in (index, tmp_path):
        checkpoint = read_checkpoint(path)
        check(checkpoint.tensors)
        assert [file.name for file in checkpoint.files] == [
            index.name,
            "m-1.safetensors",
            "m-2.safetensors",
        ]
        assert checkpoint_files(path) == checkpoint.files


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin"])
@pytest.mark.parametrize("legacy", [False, True])
def test_torch_file(tmp_path: Path, suffix: str, legacy: bool) -> None:
    file = tmp_path / f"m{suffix}"
    torch.save(STATE, file, _use_new_zipfile_serialization=not legacy)
    checkpoint = read_checkpoint(file)
    check(checkpoint.tensors)
    assert checkpoint.section is None


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_torch_file_is_mapped_not_read(tmp_path: Path) -> None:
    file = tmp_path / "m.pt"
    torch.save({"a": torch.zeros(1000)}, file)
    checkpoint = read_checkpoint(file)
    assert str(file) in Path("/proc/self/maps").read_text()
    assert torch.equal(checkpoint.tensors["a"].load(), torch.zeros(1000))


@pytest.mark.parametrize(
    ("sections", "chosen"),
    [
        (("generator_ema", "generator", "model"), "generator"),
        (("model", "generator_ema"), "model"),
        (("state_dict", "model"), "model"),
        (("state_dict",), "state_dict"),
        (("generator_lora",), "generator_lora"),
    ],
)
def test_section(tmp_path: Path, sections: tuple[str, ...], chosen: str) -> None:
    other = {"z": torch.zeros(1)}
    file = tmp_path / "m.pt"
    content = {name: STATE if name == chosen else other for name in sections}
    torch.save({"step": 7, "critic": other, **content}, file)
    checkpoint = read_checkpoint(file)
    check(checkpoint.tensors)
    assert checkpoint.section == chosen


@pytest.mark.parametrize(
    ("held", "ema", "chosen"),
    [
        (("generator", "generator_ema"), False, "generator"),
        (("generator", "generator_ema"), True, "generator_ema"),
        (("generator_ema", "model"), False, "model"),
        (("generator_ema", "model"), True, "generator_ema"),
        (("model",), True, "model"),
        ((), True, None),
        (("generator",), True, "--no-ema"),
        (("generator", "model"), True, "--no-ema"),
        (("generator_ema",), False, "--ema"),
    ],
)
def test_moving_average(
    tmp_path: Path, held: tuple[str, ...], ema: bool, chosen: str | None
) -> None:
    other = {"z": torch.zeros(1)}
    content = {name: STATE if name == chosen else other for name in held}
    torch.save(content or STATE, tmp_path / "m.pt")
    if chosen is not None and chosen.startswith("--"):
        with pytest.raises(VidcError, match="VIDC-CHECKPOINT-EMA") as caught:
            read_model(tmp_path / "m.pt", ema=ema)
        assert f"pass {chosen} " in caught.value.hint
        return
    checkpoint = read_model(tmp_path / "m.pt", ema=ema)
    check(checkpoint.tensors)
    assert checkpoint.section == chosen


def test_nested_sections(tmp_path: Path) -> None:
    file = tmp_path / "m.pt"
    torch.save({"state_dict": {"generator": STATE}}, file)
    checkpoint = read_checkpoint(file)
    check(checkpoint.tensors)
    assert checkpoint.section == "state_dict/generator"


def test_a_tensor_called_model_is_no_section(tmp_path: Path) -> None:
    torch.save({"model": STATE["a"]}, tmp_path / "m.pt")
    check(read_checkpoint(tmp_path / "m.pt").tensors, {"model": STATE["a"]})


@pytest.mark.parametrize("name", ["m.safetensors", "m.pt", "m.safetensors.index.json", "m"])
def test_missing(tmp_path: Path, name: str) -> None:
    error = refuse(tmp_path / name, "VIDC-CHECKPOINT-MISSING")
    assert str(tmp_path / name) in error.message
    assert error.exit_code == 2


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    save_file(STATE, folder / "m.safetensors")
    torch.save(STATE, folder / "zip.pt")
    torch.save(STATE, folder / "legacy.pt", _use_new_zipfile_serialization=False)
    return folder


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(kind=st.sampled_from(["m.safetensors", "zip.pt", "legacy.pt"]), data=st.data())
def test_cut_short_anywhere(whole: Path, tmp_path: Path, kind: str, data: st.DataObject) -> None:
    content = (whole / kind).read_bytes()
    cut = tmp_path / kind
    cut.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(VidcError) as caught:
        read_checkpoint(cut)
    # A legacy pickle that ends inside a name asks for a class that does not exist.
    codes = {"CORRUPT", "FORMAT"} | ({"PICKLE"} if kind == "legacy.pt" else set())
    assert caught.value.code.removeprefix("VIDC-CHECKPOINT-") in codes
    assert cut.name in caught.value.message


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(extra=st.binary(min_size=1, max_size=9))
def test_safetensors_with_bytes_to_spare(whole: Path, tmp_path: Path, extra: bytes) -> None:
    file = tmp_path / "m.safetensors"
    file.write_bytes((whole / "m.safetensors").read_bytes() + extra)
    refuse(file, "VIDC-CHECKPOINT-CORRUPT")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    name=st.sampled_from(["m.safetensors", "m.pt", "m.safetensors.index.json"]),
    content=st.binary(max_size=64),
    magic=st.sampled_from([b"", b"PK\x03\x04", b"\x80\x02"]),
)
def test_noise_is_refused(tmp_path: Path, name: str, content: bytes, magic: bytes) -> None:
    (tmp_path / name).write_bytes(magic + content)
    with pytest.raises(VidcError, match="VIDC-CHECKPOINT-"):
        read_checkpoint(tmp_path / name)


@pytest.mark.parametrize(
    "value",
    [
        [STATE["a"]],
        STATE["a"],
        {"a": "text"},
        {"a": {"b": STATE["a"]}},
        {"a": STATE["a"].to_sparse()},
        {"a": torch.empty(2, device="meta")},
        {},
    ],
)
def test_torch_file_without_a_state_dict(tmp_path: Path, value: object) -> None:
    torch.save(value, tmp_path / "m.pt")
    refuse(tmp_path / "m.pt", "VIDC-CHECKPOINT-FORMAT")


@pytest.mark.parametrize("name", ["m.pt", "m.safetensors"])
def test_git_lfs_pointer(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    assert "git lfs pull" in refuse(tmp_path / name, "VIDC-CHECKPOINT-FORMAT").hint


def test_unknown_suffix(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    assert ".safetensors" in refuse(tmp_path / "m.gguf", "VIDC-CHECKPOINT-FORMAT").hint


def test_folders_without_one_answer(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text("{}")
    assert "model_index.json" in refuse(tmp_path, "VIDC-CHECKPOINT-FORMAT").message
    for name in ("a", "b"):
        save_file(STATE, tmp_path / f"{name}.safetensors")
    assert "b.safetensors" in refuse(tmp_path, "VIDC-CHECKPOINT-FORMAT").message


class Shell:
    """What a malicious pickle looks like."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (self.command,)


@pytest.mark.parametrize("form", ["zip", "legacy", "protocol 2", "protocol 4", "protocol 5"])
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_pickle_that_runs_code(tmp_path: Path, form: str) -> None:
    victim, file = tmp_path / "victim", tmp_path / "m.pt"
    state = {"generator": STATE, "extra": Shell(f"touch {victim}")}
    if form.startswith("protocol"):
        file.write_bytes(pickle.dumps(state["extra"], protocol=int(form[-1])))
        pickle.loads(file.read_bytes())
    else:
        torch.save(state, file, _use_new_zipfile_serialization=form == "zip")
        torch.load(file, weights_only=False)
    assert victim.exists()
    victim.unlink()
    error = refuse(file, "VIDC-CHECKPOINT-PICKLE")
    assert not victim.exists()
    if form in ("zip", "legacy"):
        assert "system" in error.message


def test_missing_shard(tmp_path: Path) -> None:
    index = shards(tmp_path)
    (tmp_path / "m-2.safetensors").unlink()
    assert "m-2.safetensors" in refuse(index, "VIDC-CHECKPOINT-SHARD").message


def test_shard_without_its_tensor(tmp_path: Path) -> None:
    index = shards(tmp_path)
    save_file({"b": STATE["b"]}, tmp_path / "m-2.safetensors")
    error = refuse(index, "VIDC-CHECKPOINT-SHARD")
    assert "c of m-2.safetensors is only in the index" in error.message


def test_shard_with_a_tensor_more(tmp_path: Path) -> None:
    index = shards(tmp_path)
    save_file({"a": STATE["a"], "d": STATE["b"]}, tmp_path / "m-1.safetensors")
    error = refuse(index, "VIDC-CHECKPOINT-SHARD")
    assert "d of m-1.safetensors is only in the shard" in error.message


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"weight_map": []}',
        '{"weight_map": {"a": 1}}',
        '{"weight_map": {"a": "../m-1.safetensors"}}',
        '{"weight_map": {"a": "/etc/passwd"}}',
        "[" * 100_000,
    ],
)
def test_malformed_index(tmp_path: Path, content: str) -> None:
    index = shards(tmp_path)
    index.write_text(content)
    refuse(index, "VIDC-CHECKPOINT-INDEX")
