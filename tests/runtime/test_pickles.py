import io
import pickle
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from vidc.plugins.errors import GateError
from vidc.runtime.pickles import open_package
from vidc.runtime.pickles import refuse_pickles as refuse_pickles_in


def refuse_pickles(package: Path) -> None:
    refuse_pickles_in(open_package(package))


def saved(legacy: bool = False) -> bytes:
    buffer = io.BytesIO()
    torch.save(torch.ones(2), buffer, _use_new_zipfile_serialization=not legacy)
    return buffer.getvalue()


def package(folder: Path, members: dict[str, bytes]) -> Path:
    file = folder / "engine.pt2"
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items():
            archive.writestr(f"engine/{name}", data)
    return file


def config(use_pickle: bool, key: str = '"use_pickle"') -> bytes:
    return f'{{"config": {{"w": {{{key}: {str(use_pickle).lower()}}}}}}}'.encode()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("data/sample_inputs/model.pt", saved()),
        ("data/sample_inputs/model.pt", saved(legacy=True)),
        ("data/sample_inputs/model.bin", pickle.dumps([1], protocol=0)),
        ("data.pkl", pickle.dumps([1], protocol=2)),
        ("data/weights/model.pt", saved()),
        ("data/weights/weight_0", saved()),
        ("data/constants/custom_obj_0", b"anything"),
        ("data/constants/opaque_obj_0", pickle.dumps([1])),
        ("data/weights/model_weights_config.json", config(True)),
        ("data/weights/model_weights_config.json", config(True, '"use\\u005fpickle"')),
    ],
    # What torch saves differs from process to process; parallel workers must agree on names.
    ids=lambda value: value if isinstance(value, str) else "bytes",
)
def test_a_pickle_is_refused_by_name(tmp_path: Path, name: str, data: bytes) -> None:
    file = package(tmp_path, {"archive_format": b"pt2", name: data})
    with pytest.raises(GateError, match=name) as caught:
        refuse_pickles(file)
    assert caught.value.code == "VIDC-BUNDLE-PICKLE"


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("data/sample_inputs/model.pt", b""),
        ("data/weights/weight_0", b"\x80\x02\x00\x00"),
        ("data/weights/weight_0", b"\x80\x05K\x01."),
        ("data/weights/weight_0", b"PK\x03\x04" + bytes(64)),
        ("data/weights/model_weights_config.json", config(False)),
        ("data/aotinductor/model/w.wrapper.so", b"\x7fELF" + pickle.dumps([1])),
    ],
)
def test_raw_tensors_are_not_pickles(tmp_path: Path, name: str, data: bytes) -> None:
    refuse_pickles(package(tmp_path, {"archive_format": b"pt2", name: data}))


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"\x80\x02K\x01.", b"PK\x05\x06" + bytes(9)])
def test_rejects_file_that_is_not_a_zip(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "engine.pt2"
    file.write_bytes(data)
    with pytest.raises(GateError, match="VIDC-BUNDLE-MALFORMED"):
        refuse_pickles(file)


def test_a_compressed_member_is_malformed(tmp_path: Path) -> None:
    file = tmp_path / "engine.pt2"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("engine/data/x", bytes(1000))
    with pytest.raises(GateError, match="compressed"):
        refuse_pickles(file)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_rejects_a_duplicate_member(tmp_path: Path) -> None:
    file = tmp_path / "engine.pt2"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("engine/x", b"1")
        archive.writestr("engine/x", b"2")
    with pytest.raises(GateError, match="twice"):
        refuse_pickles(file)


@pytest.mark.parametrize("text", [b"{", b"[" * 100_000, b"\xff"])
def test_a_broken_table_of_tensors_is_malformed(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(GateError, match="VIDC-BUNDLE-MALFORMED"):
        refuse_pickles(package(tmp_path, {"data/weights/model_weights_config.json": text}))


def test_refuses_a_missing_package(tmp_path: Path) -> None:
    with pytest.raises(GateError, match="VIDC-BUNDLE-UNREADABLE"):
        refuse_pickles(tmp_path / "engine.pt2")


def test_a_damaged_archive_raises_only_our_errors(tmp_path: Path) -> None:
    file = package(tmp_path, {"archive_format": b"pt2", "data/weights/weight_0": bytes(64)})
    intact = file.read_bytes()
    for position in range(len(intact)):
        damaged = bytearray(intact)
        damaged[position] ^= 0xFF
        file.write_bytes(damaged)
        with suppress(GateError):
            refuse_pickles(file)
