"""The kernel, compiled for real, and what is made of the launch that is recorded of it."""

import json
import struct
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from vidc.compiler.backends.aoti.kernels import flash_attention as module
from vidc.compiler.backends.aoti.kernels import flash_attention_dsl as dsl
from vidc.compiler.backends.aoti.kernels.flash_attention import compile_kernel, launch_facts
from vidc.compiler.backends.aoti.kernels.launch import Launch
from vidc.compiler.backends.aoti.kernels.ptx import Entry, Parameter
from vidc.plugins.errors import BuildError, UnavailableError
from vidc.plugins.installation import install_extra
from vidc.plugins.ops.flash_attention import LaunchFacts

compiled_for_real = pytest.mark.skipif(
    find_spec("cutlass") is None, reason="the extra cuda is not installed"
)
SHARED_BYTES_OF_SM_90 = 227 * 1024
ELF_OF_NVIDIA = 190


@pytest.fixture(scope="session")
def compiled(tmp_path_factory) -> Path:
    """Both head sizes, one in each dtype."""
    folder = tmp_path_factory.mktemp("kernels")
    compile_kernel("bfloat16", 128, folder)
    compile_kernel("float16", 64, folder)
    return folder


def read_facts(folder: Path, name: str) -> LaunchFacts:
    return LaunchFacts.from_json(json.loads((folder / f"{name}.json").read_text()))


class TestCompiled:
    pytestmark = compiled_for_real

    def test_writes_cubin_and_facts_only(self, compiled):
        assert sorted(file.name for file in compiled.iterdir()) == [
            "flash_attention_sm90_bfloat16_128.cubin",
            "flash_attention_sm90_bfloat16_128.json",
            "flash_attention_sm90_float16_64.cubin",
            "flash_attention_sm90_float16_64.json",
            "padded_attention_sm90_bfloat16_128.cubin",
            "padded_attention_sm90_bfloat16_128.json",
            "padded_attention_sm90_float16_64.cubin",
            "padded_attention_sm90_float16_64.json",
        ]

    @pytest.mark.parametrize("operator", module.OPERATORS)
    @pytest.mark.parametrize(("dtype", "head_dim"), [("bfloat16", 128), ("float16", 64)])
    def test_the_cubin_holds_the_kernel_of_the_facts(self, compiled, operator, dtype, head_dim):
        name = f"{operator}_{dtype}_{head_dim}"
        facts = read_facts(compiled, name)
        code = (compiled / f"{name}.cubin").read_bytes()
        (machine,) = struct.unpack_from("<H", code, 18)
        (flags,) = struct.unpack_from("<I", code, 48)
        assert code.startswith(b"\x7fELF")
        assert machine == ELF_OF_NVIDIA
        assert (flags >> 8) & 0xFF == 90
        assert f"\0{facts.symbol}\0".encode() in code

    @pytest.mark.parametrize("operator", module.OPERATORS)
    @pytest.mark.parametrize(("dtype", "head_dim"), [("bfloat16", 128), ("float16", 64)])
    def test_the_facts_can_be_launched(self, compiled, operator, dtype, head_dim):
        facts = read_facts(compiled, f"{operator}_{dtype}_{head_dim}")
        assert facts.merges_padding == (operator == "padded_attention_sm90")
        assert (facts.dtype, facts.head_dim, facts.capability) == (dtype, head_dim, (9, 0))
        # A group of 128 threads copies, each other one computes 64 queries.
        assert facts.threads == 128 * (1 + facts.tile_m // 64)
        # Shared memory holds the queries and two stages of keys and values.
        tiles = 2 * head_dim * (facts.tile_m + 2 * 2 * facts.tile_n)
        assert tiles < facts.shared_bytes <= SHARED_BYTES_OF_SM_90
        sizes = [facts.parameter_bytes[index] for index in (facts.query, facts.key, facts.value)]
        assert sizes == [128, 128, 128]
        assert facts.parameter_bytes[facts.output] == 128
        assert facts.parameter_bytes[facts.lengths] == 16
        assert facts.parameter_bytes[facts.sizes] == 12
        assert facts.parameter_bytes[facts.logsumexp] == 40
        assert facts.parameter_bytes[facts.scale] == 4

    def test_equal_versions_write_equal_bytes(self, compiled, tmp_path, monkeypatch):
        monkeypatch.setenv("PYTHONHASHSEED", "7")
        monkeypatch.setenv("CUTE_DSL_LINEINFO", "1")
        monkeypatch.setenv("CUTE_DSL_ARCH", "sm_100a")
        monkeypatch.chdir(tmp_path)
        again = tmp_path / "again"
        again.mkdir()
        compile_kernel("bfloat16", 128, again)
        files = sorted(again.iterdir())
        assert len(files) == 4
        for file in files:
            assert file.read_bytes() == (compiled / file.name).read_bytes()
        assert list(tmp_path.iterdir()) == [again]

    def test_compiler_error_is_quoted(self, tmp_path, monkeypatch):
        monkeypatch.setattr(module, "HEAD_DIMS", (640,))
        with pytest.raises(BuildError) as caught:
            compile_kernel("bfloat16", 640, tmp_path)
        assert caught.value.code == "VIDC-KERNEL-COMPILE"
        assert "exit status 1: " in caught.value.message
        assert list(tmp_path.iterdir()) == []


def test_a_package_that_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_PACKAGES", ("no-such-package",))
    with pytest.raises(UnavailableError, match="no-such-package") as caught:
        compile_kernel("bfloat16", 128, tmp_path)
    assert caught.value.code == "VIDC-ENV-KERNELS"
    assert caught.value.hint == install_extra("cuda")


@pytest.mark.parametrize(("dtype", "head_dim"), [("float32", 128), ("bfloat16", 96)])
def test_rejects_unsupported_kernel(tmp_path, dtype, head_dim):
    with pytest.raises(UnavailableError, match=f"{dtype} with head size {head_dim}") as caught:
        compile_kernel(dtype, head_dim, tmp_path)
    assert caught.value.code == "VIDC-KERNEL-SIZE"


def test_compiler_that_does_not_start_is_build_error(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_PACKAGES", ())
    monkeypatch.setattr(module, "dsl", SimpleNamespace(__name__="vidc.compiler.no_such_module"))
    with pytest.raises(BuildError, match="No module named") as caught:
        compile_kernel("bfloat16", 128, tmp_path)
    assert caught.value.code == "VIDC-KERNEL-COMPILE"
    assert list(tmp_path.iterdir()) == []


def test_a_compiler_that_hangs_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_PACKAGES", ())
    monkeypatch.setattr(module, "_TIMEOUT_SECONDS", 0.01)
    with pytest.raises(BuildError, match="longer than") as caught:
        compile_kernel("bfloat16", 128, tmp_path)
    assert caught.value.code == "VIDC-KERNEL-COMPILE"


TILES = (192, 112)
MAP, SIZE, SCALE = Parameter(128, False), Parameter(4, False), Parameter(4, True)
LENGTHS, SIZES, LOGSUMEXP = (Parameter(size, False) for size in (16, 12, 40))
ENTRY = Entry(
    "attend",
    384,
    (SIZE, MAP, LENGTHS, MAP, MAP, SCALE, MAP, SIZES, LOGSUMEXP),
    frozenset(range(1, 9)),
)


def tensor_map(name: str) -> str:
    return struct.pack("<Q120x", dsl.ADDRESSES[name]).hex()


def lengths(batch: int) -> str:
    """Beyond pointer and size lies whatever was in memory."""
    return struct.pack("<QiI", dsl.ADDRESSES["lengths"], batch, 0xABCD).hex()


def logsumexp(head_stride: int = dsl.QUERIES) -> str:
    """Between sizes and strides lies whatever was in memory."""
    sizes = (dsl.QUERIES, dsl.HEADS, dsl.BATCH)
    strides = (head_stride, dsl.HEADS * dsl.QUERIES)
    return struct.pack("<Q3iIqq", dsl.ADDRESSES["logsumexp"], *sizes, 0xABCD, *strides).hex()


LAUNCH = Launch(
    grid=(6, 5, 2),
    block=(384, 1, 1),
    shared_bytes=5000,
    attributes=((6, 0), (2, 0)),
    arguments=(
        "00000000",
        tensor_map("value"),
        lengths(batch=2),
        tensor_map("output"),
        tensor_map("query"),
        struct.pack("<f", 0.25 * 1.4426950408889634).hex(),
        tensor_map("key"),
        struct.pack("<3i", dsl.QUERIES, dsl.HEADS, dsl.BATCH).hex(),
        logsumexp(),
    ),
)


def test_facts_follow_from_parameters():
    facts = launch_facts("float16", 64, TILES, ENTRY, LAUNCH)
    assert facts == LaunchFacts(
        symbol="attend", dtype="float16", head_dim=64, capability=(9, 0), tile_m=192, tile_n=112,
        threads=384, shared_bytes=5000, parameter_bytes=(4, 128, 16, 128, 128, 4, 128, 12, 40),
        sizes=7, lengths=2, logsumexp=8, query=4, key=6, value=1, output=3, scale=5,
    )  # fmt: skip


PADDED_ENTRY = replace(
    ENTRY,
    parameters=(*ENTRY.parameters, SCALE, SIZE),
    read=ENTRY.read | {9, 10},
)
PADDED_LAUNCH = replace(
    LAUNCH,
    arguments=(
        *LAUNCH.arguments[:5],
        struct.pack("<f", dsl.SCALE).hex(),
        *LAUNCH.arguments[6:],
        struct.pack("<f", 1.4426950408889634).hex(),
        struct.pack("<i", dsl.CAPACITY).hex(),
    ),
)


def test_facts_of_a_kernel_that_merges_padding():
    facts = launch_facts("float16", 64, TILES, PADDED_ENTRY, PADDED_LAUNCH, merges_padding=True)
    assert (facts.scale, facts.log2e, facts.capacity) == (5, 9, 10)
    assert facts.merges_padding
    assert LaunchFacts.from_json(json.loads(json.dumps(facts.to_json()))) == facts


@pytest.mark.parametrize(
    ("entry", "launch", "merges"),
    [(ENTRY, LAUNCH, True), (PADDED_ENTRY, PADDED_LAUNCH, False)],
)
def test_rejects_a_kernel_of_the_other_operator(entry, launch, merges):
    with pytest.raises(BuildError) as caught:
        launch_facts("float16", 64, TILES, entry, launch, merges)
    assert caught.value.code == "VIDC-KERNEL-PARAMETERS"


def with_argument(index: int, value: str) -> Launch:
    arguments = (*LAUNCH.arguments[:index], value, *LAUNCH.arguments[index + 1 :])
    return replace(LAUNCH, arguments=arguments)


OTHER = {
    "one more parameter is read": (replace(ENTRY, read=ENTRY.read | {0}), LAUNCH),
    "one parameter is not read": (replace(ENTRY, read=ENTRY.read - {5}), LAUNCH),
    "the lengths are not read": (replace(ENTRY, read=ENTRY.read - {2}), LAUNCH),
    "a tensor is given twice": (ENTRY, with_argument(1, tensor_map("key"))),
    "a map of an unknown tensor": (ENTRY, with_argument(1, "77" * 128)),
    "a map of the lengths": (ENTRY, with_argument(1, tensor_map("lengths"))),
    "lengths of another size": (ENTRY, with_argument(2, lengths(batch=5))),
    "other sizes": (ENTRY, with_argument(7, struct.pack("<3i", 1, 2, 3).hex())),
    "other strides": (ENTRY, with_argument(8, logsumexp(head_stride=7))),
    "a natural scale": (ENTRY, with_argument(5, struct.pack("<f", 0.25).hex())),
    "another grid": (ENTRY, replace(LAUNCH, grid=(5, 6, 2))),
    "a grid of other tiles": (ENTRY, replace(LAUNCH, grid=(8, 5, 2))),
    "another block": (ENTRY, replace(LAUNCH, block=(256, 1, 1))),
    "a cooperative launch": (ENTRY, replace(LAUNCH, attributes=((2, 1),))),
    "an overlapping launch": (ENTRY, replace(LAUNCH, attributes=((6, 1), (2, 0)))),
    "clusters": (ENTRY, replace(LAUNCH, attributes=((4, 2),))),
}  # fmt: skip


@pytest.mark.parametrize(("entry", "launch"), OTHER.values(), ids=OTHER)
def test_rejects_kernel_with_other_parameters(entry, launch):
    with pytest.raises(BuildError, match="is not called as vidc calls it") as caught:
        launch_facts("float16", 64, TILES, entry, launch)
    assert caught.value.code == "VIDC-KERNEL-PARAMETERS"
