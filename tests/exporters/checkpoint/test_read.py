import json
import os
import pickle
import resource
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.exporters.checkpoint.pickled import MalformedError, unpickle
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
    """Object whose pickle runs code."""

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


@pytest.mark.parametrize("tensor", [STATE["a"].to_sparse(), torch.empty(2, device="meta")])
def test_torch_file_of_tensors_without_data(tmp_path: Path, tensor: Tensor) -> None:
    torch.save({"a": tensor}, tmp_path / "m.pt")
    assert "torch._utils._rebuild_" in refuse(tmp_path / "m.pt", "VIDC-CHECKPOINT-PICKLE").message


def test_views_parameters_and_what_lies_beside_weights(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    state = {
        "view": base[1:, 2:],
        "turned": base.t(),
        "empty": torch.empty(0, 3),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "fp8": torch.ones(4).to(torch.float8_e4m3fn),
        "bool": torch.tensor([True, False]),
    }
    layer = torch.nn.Linear(2, 2)
    beside = {
        "optimizer": torch.optim.AdamW(layer.parameters()).state_dict(),
        "other": layer.state_dict(),
        "step": 2**70,
        "lr": 0.5,
        "config": {"sizes": (1, 2), "name": None, "of": {3}, "dtype": torch.bfloat16},
    }
    torch.save({"model": state, **beside}, tmp_path / "m.pt")
    check(read_checkpoint(tmp_path / "m.pt").tensors, state)


def test_sections_without_end(tmp_path: Path) -> None:
    state: dict[str, object] = {}
    state["model"] = state
    torch.save(state, tmp_path / "m.pt")
    refuse(tmp_path / "m.pt", "VIDC-CHECKPOINT-FORMAT")


def members(file: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_members(file: Path, content: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in content.items():
            archive.writestr(name, data)


HUGE = 3 * 10**9


def expanded(file: Path) -> None:
    torch.save({"a": torch.zeros(1).expand(HUGE)}, file)


def more_than_stored(file: Path) -> None:
    torch.save({"a": torch.zeros(7)}, file)
    content = members(file)
    name = f"{file.stem}/data.pkl"
    numbers = content[name].replace(b"K\x07", b"J" + HUGE.to_bytes(5, "little")[:4])
    write_members(file, content | {name: numbers})


def legacy(file: Path) -> None:
    torch.save({"a": torch.zeros(77)}, file, _use_new_zipfile_serialization=False)
    file.write_bytes(file.read_bytes().replace(b"KM", b"J\xff\xff\xff\x7f"))


def in_pickle(instructions: bytes) -> Callable[[Path], None]:
    def write(file: Path) -> None:
        torch.save({"a": torch.zeros(7)}, file)
        content = members(file)
        write_members(file, content | {f"{file.stem}/data.pkl": b"\x80\x02" + instructions + b"."})

    return write


def compressed(file: Path) -> None:
    torch.save({"a": torch.zeros(250_000)}, file)
    write_members(file, members(file), zipfile.ZIP_DEFLATED)


@pytest.mark.parametrize(
    "write",
    [
        expanded,
        more_than_stored,
        legacy,
        compressed,
        in_pickle(b"c__builtin__\nbytearray\nJ\xff\xff\xff\x7f\x85R"),
        in_pickle(b"\x96" + HUGE.to_bytes(8, "little")),
        in_pickle(b"]r\xff\xff\xff\x0f"),
        in_pickle(b"}" + b"(" * 100 + b"X\xff\xff\xff\x7f"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="counts memory as Linux does")
def test_small_file_that_asks_for_gigabytes(tmp_path: Path, write: Callable[[Path], None]) -> None:
    file = tmp_path / "m.pt"
    write(file)
    assert file.stat().st_size < 2500
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(VidcError, match=r"VIDC-CHECKPOINT-(CORRUPT|PICKLE|FORMAT)"):
        read_checkpoint(file)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


@pytest.mark.parametrize("named", ["torch\nSize", "__builtin__\nset", "torch\ndevice"])
def test_small_pickle_that_copies_a_list_again_and_again(named: str) -> None:
    many = b"N" * 20_000
    arguments = b"(" + many + b"tq\0" if named.endswith("device") else b"](" + many + b"e\x85q\0"
    copies = b"".join(f"c{named}\n".encode() + b"h\0R" for _ in range(1000))
    pickle = b"\x80\x02(" + arguments + copies + b"t."
    tracemalloc.start()
    with suppress(MalformedError):
        unpickle(BytesIO(pickle))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50 * len(pickle)


@pytest.mark.parametrize("legacy_form", [False, True])
def test_torch_file_with_a_name_twice(tmp_path: Path, legacy_form: bool) -> None:
    file = tmp_path / "m.pt"
    state = {"weight.a": torch.zeros(2), "weight.b": torch.ones(2)}
    torch.save(state, file, _use_new_zipfile_serialization=not legacy_form)
    file.write_bytes(file.read_bytes().replace(b"weight.b", b"weight.a"))
    assert "'weight.a' twice" in refuse(file, "VIDC-CHECKPOINT-CORRUPT").message


def test_safetensors_with_a_name_twice(tmp_path: Path) -> None:
    entry = '{"dtype":"F32","shape":[1],"data_offsets":[%d,%d]}'
    header = f'{{"a":{entry % (0, 4)},"a":{entry % (4, 8)},"b":{entry % (0, 4)}}}'.encode()
    file = tmp_path / "m.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    refuse(file, "VIDC-CHECKPOINT-CORRUPT")


@pytest.mark.parametrize("change", ["before", "behind", "second"])
def test_archive_that_parsers_read_in_two_ways(tmp_path: Path, change: str) -> None:
    file = tmp_path / "m.pt"
    torch.save(STATE, file)
    content = file.read_bytes()
    if change == "second":
        with zipfile.ZipFile(file, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("m/data.pkl", b"other")
    else:
        junk = b"PK\x03\x04"
        file.write_bytes(junk + content if change == "before" else content + junk)
    refuse(file, "VIDC-CHECKPOINT-CORRUPT")


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
        '{"weight_map": {"a": "m-1.safetensors", "a": "m-2.safetensors"}}',
        '{"weight_map": {"a": "../m-1.safetensors"}}',
        '{"weight_map": {"a": "/etc/passwd"}}',
        "[" * 100_000,
    ],
)
def test_malformed_index(tmp_path: Path, content: str) -> None:
    index = shards(tmp_path)
    index.write_text(content)
    refuse(index, "VIDC-CHECKPOINT-INDEX")
