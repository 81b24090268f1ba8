import io
import json
import zipfile
from contextlib import suppress

import pytest
import torch

from vidc.compiler.inspect.package import Content, Member, compare_packages, describe_package
from vidc.plugins.errors import GateError

MACHINE = {"AOTI_MACHINE": "x86_64", "AOTI_CPU_ISA": "AVX2"}
ENGINE = {
    "archive_version": b"0",
    "data/aotinductor/model/m.wrapper.so": b"\x7fELF code",
    "data/aotinductor/model/m.wrapper_metadata.json": json.dumps(MACHINE).encode(),
}


def write(path, members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(f"engine/{name}", data)
    return path


def test_engine_package_has_build_metadata(tmp_path):
    package = describe_package(write(tmp_path / "e.pt2", ENGINE))
    assert (package.content, package.format_version) == (Content.ENGINE, "0")
    assert package.metadata == MACHINE
    assert package.pickles == ()
    assert package.files.keys() == ENGINE.keys()
    assert package.files["archive_version"] == Member(1, "f4dbdf21")


def test_a_program_of_torch_is_told_from_an_engine(tmp_path):
    module = torch.nn.Linear(2, 2)
    buffer = io.BytesIO()
    torch.export.save(torch.export.export(module, (torch.zeros(1, 2),)), buffer)
    path = tmp_path / "p.pt2"
    path.write_bytes(buffer.getvalue())
    package = describe_package(path)
    assert package.content is Content.PROGRAM
    assert package.metadata == {}
    assert package.pickles == ("data/sample_inputs/model.pt",)


@pytest.mark.parametrize(
    "changed",
    [
        {"archive_version": b"\xff"},
        {"archive_version": bytes(2**20 + 1)},
        {"data/aotinductor/model/m.wrapper_metadata.json": b"[1]"},
        {"data/aotinductor/model/m.wrapper_metadata.json": b"{"},
    ],
)
def test_damaged_members_are_malformed(tmp_path, changed):
    with pytest.raises(GateError, match="VIDC-BUNDLE-MALFORMED"):
        describe_package(write(tmp_path / "e.pt2", ENGINE | changed))


def test_an_archive_of_something_else_is_malformed(tmp_path):
    with pytest.raises(GateError, match="neither an engine nor a program"):
        describe_package(write(tmp_path / "e.pt2", {"readme": b"hello"}))


def test_a_damaged_archive_raises_only_our_errors(tmp_path):
    path = write(tmp_path / "e.pt2", ENGINE)
    intact = path.read_bytes()
    for position in range(len(intact)):
        damaged = bytearray(intact)
        damaged[position] ^= 0xFF
        path.write_bytes(damaged)
        with suppress(GateError):
            describe_package(path)


def test_packages_differ_in_metadata_and_files(tmp_path):
    code = "data/aotinductor/model/m.wrapper.so"
    old = describe_package(write(tmp_path / "a.pt2", ENGINE))
    new = describe_package(write(tmp_path / "b.pt2", ENGINE | {code: b"\x7fELF edoc"}))
    assert compare_packages(old, old) == {}
    (change,) = compare_packages(old, new)["files"]
    assert change.name == f"{code}.crc32"
