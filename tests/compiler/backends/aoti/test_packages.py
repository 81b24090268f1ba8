import shutil
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn

from vidc.compiler.backends.aoti.packages import strip_pickles
from vidc.plugins.errors import GateError
from vidc.runtime.pickles import open_package, refuse_pickles


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(4.0))
        self.register_buffer("offset", torch.arange(4.0) / 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (x * self.weight + self.offset,)


def export() -> torch.export.ExportedProgram:
    return torch.export.export(Scale(), (torch.zeros(2, 4),))


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """An exported program as torch writes it."""
    file = tmp_path / "program.pt2"
    torch.export.save(export(), file)
    return file


def test_an_exported_program_is_refused_until_it_is_stripped(program: Path) -> None:
    with pytest.raises(GateError, match="sample_inputs") as caught:
        refuse_pickles(open_package(program))
    assert caught.value.code == "VIDC-BUNDLE-PICKLE"
    strip_pickles(program)
    refuse_pickles(open_package(program))


def test_a_stripped_program_loads_and_computes_the_same(program: Path) -> None:
    strip_pickles(program)
    loaded = torch.export.load(program)
    x = torch.randn(2, 4)
    assert loaded.example_inputs is None
    assert torch.equal(loaded.module()(x)[0], Scale()(x)[0])


def test_equal_members_give_equal_bytes(program: Path) -> None:
    with zipfile.ZipFile(program) as source:
        members = {name: source.read(name) for name in source.namelist()}
    with zipfile.ZipFile(program.with_name("other.pt2"), "w") as target:
        for name in reversed(members):
            target.writestr(zipfile.ZipInfo(name, (2026, 1, 2, 3, 4, 6)), members[name])
    strip_pickles(program)
    strip_pickles(program.with_name("other.pt2"))
    assert program.read_bytes() == program.with_name("other.pt2").read_bytes()


def test_two_exports_give_equal_bytes(program: Path) -> None:
    again = program.parent / "again" / program.name
    again.parent.mkdir()
    torch.export.save(export(), again)
    strip_pickles(program)
    strip_pickles(again)
    assert program.read_bytes() == again.read_bytes()


def test_rejects_pickle_that_loading_needs(program: Path) -> None:
    with zipfile.ZipFile(program, "a") as archive:
        archive.writestr("program/data/constants/custom_obj_0", b"object")
    before = program.read_bytes()
    with pytest.raises(GateError, match="custom_obj_0"):
        strip_pickles(program)
    assert program.read_bytes() == before
    assert list(program.parent.iterdir()) == [program]


@pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor needs a C++ compiler")
def test_a_stripped_engine_loads_without_python_and_computes_the_same(tmp_path: Path) -> None:
    file = tmp_path / "engine.pt2"
    torch._inductor.aoti_compile_and_package(
        export(),
        package_path=str(file),
        inductor_configs={
            "aot_inductor.package_constants_in_so": False,
            "always_keep_tensor_constants": True,
        },
    )
    strip_pickles(file)
    refuse_pickles(open_package(file))
    loader = torch._C._aoti.AOTIModelPackageLoader(str(file), "model", True, 1, -1)
    module = Scale()
    loader.load_constants({k: v.detach() for k, v in module.state_dict().items()}, False, True)
    x = torch.randn(2, 4)
    assert torch.equal(loader.boxed_run([x])[0], module(x)[0])
