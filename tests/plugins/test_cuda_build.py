"""The library of kernels, compiled for every architecture and loaded beside a torch for the CPU."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from refusal_matrix import ELSEWHERE, KINDS, MEMORY
from refusals import REFUSALS

from vidc.plugins.abi import PLUGIN_ABI
from vidc.plugins.errors import UsageError
from vidc.plugins.loading import TORCH_LIBRARY
from vidc.plugins.ops.ring import PORTABLE

ROOT = Path(__file__).parents[2]
ARCHITECTURES = {"75", "80", "86", "89", "90a", "100", "120"}

pytestmark = [
    pytest.mark.skipif(shutil.which(tool) is None, reason=f"there is no {tool}")
    for tool in ("nvcc", "cmake", "g++")
]


def cmake(*arguments) -> str:
    done = subprocess.run(["cmake", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def configure(folder: Path, *settings: str) -> Path:
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    cmake("-S", ROOT, "-B", folder, f"-DPython_EXECUTABLE={sys.executable}", *generator, *settings)
    return folder


def compile_all(folder: Path) -> Path:
    (folder / "said.txt").write_text(cmake("--build", folder))
    return folder


@pytest.fixture(scope="module")
def configured(tmp_path_factory) -> Path:
    """Build folder, configured for every architecture."""
    return configure(tmp_path_factory.mktemp("complete"))


@pytest.fixture(scope="module")
def complete(configured) -> Path:
    """Build folder with the library for every architecture."""
    return compile_all(configured)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Folder with a wheel, built for the lowest architecture and for Hopper in ``build`` there."""
    folder = tmp_path_factory.mktemp("some")
    settings = {
        "build-dir": folder / "build",
        "cmake.define.VIDC_ARCHITECTURES": "75;90a",
        "cmake.define.Python_EXECUTABLE": sys.executable,
    }
    options = [word for name, value in settings.items() for word in ("-C", f"{name}={value}")]
    done = subprocess.run(
        [
            sys.executable, "-m", "pip", "wheel", "--verbose", "--no-deps",
            "--no-build-isolation", *options, "-w", folder, ROOT,
        ],
        env=os.environ | {"VIDC_CUDA": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "build" / "said.txt").write_text(done.stdout + done.stderr)
    return folder


@pytest.fixture(scope="module")
def build(wheel) -> Path:
    """Build folder with the library for the lowest architecture and for Hopper."""
    return wheel / "build"


def run(build, code):
    """Runs code in a process with the library in the package's folder; returns its output."""
    code = f"""
import json, sys, torch
from pathlib import Path
from vidc.plugins import loading
sys.path.insert(0, {str(ROOT / "tests" / "support")!r})
loading.files = lambda package: Path({str(build)!r})
{code}
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_every_kernel_is_compiled_for_every_architecture(configured):
    commands = json.loads((configured / "compile_commands.json").read_text())
    compiled = {Path(entry["file"]).name: entry["command"] for entry in commands}
    for source in (ROOT / "plugins" / "cuda").glob("*.cu"):
        found = set(re.findall(r"code=\[?sm_(\w+)", compiled[source.name]))
        of_one_kind = source.name.startswith("sm90_")
        assert found == ({"90a"} if of_one_kind else ARCHITECTURES), source.name
        assert "-Werror" in compiled[source.name]


@pytest.mark.parametrize("library", ["build", pytest.param("complete", marks=pytest.mark.deep)])
def test_attention_keeps_its_products_ahead_and_its_registers(request, library):
    """The assembler says C7510 or the like where it has to wait for each product by itself.

    Kernels that also return their first products, for checks alone, may wait.
    """
    said = (request.getfixturevalue(library) / "said.txt").read_text()
    assert re.search(r"Used \d+ registers", said)
    assert re.search(r"[1-9]\d* bytes spill", said) is None
    serialized = [line for line in said.splitlines() if re.search(r"C75\d+", line)]
    assert [line for line in serialized if not re.search(r"E4m3TileILi\d+EEELb1E", line)] == []


@pytest.mark.deep
@pytest.mark.skipif(shutil.which("cuobjdump") is None, reason="there is no cuobjdump")
def test_the_library_holds_code_for_every_architecture_and_ptx_for_newer_ones(complete):
    def listed(what):
        command = ["cuobjdump", what, complete / TORCH_LIBRARY]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert set(re.findall(r"\.sm_(\w+)\.cubin", listed("--list-elf"))) == ARCHITECTURES
    assert set(re.findall(r"\.sm_(\w+)\.ptx", listed("--list-ptx"))) == {"75"}


def test_library_registers_cuda_kernels_in_a_cpu_torch(build):
    code = """
from vidc.plugins.ops import gelu_quantize, qk_norm_rope_ring_write, qk_norm_rope_ring_write_8bit
from vidc.plugins.ops import ring_attention_16bit, ring_attention_8bit
assert loading.torch_library_error() is None, loading.torch_library_error()
names = [n for n in torch._C._dispatch_get_all_op_names() if n.startswith("vidc::")]
serves = torch._C._dispatch_has_kernel_for_dispatch_key
print(json.dumps({name: serves(name, "CUDA") for name in names}))
assert not torch.cuda.is_initialized()
"""
    out, err = run(build, code)
    served = json.loads(out)
    plain = {operator.name() for operator in PORTABLE}
    assert {name for name, there in served.items() if there} == set(served) - plain
    assert len(served) > len(plain)
    assert "previously registered" not in err


def test_library_returns_its_abi(build):
    code = f"""
import ctypes
print(ctypes.CDLL({str(build / TORCH_LIBRARY)!r}).vidc_plugin_abi())
"""
    assert run(build, code)[0] == f"{PLUGIN_ABI}\n"


def test_rejects_library_of_another_abi(build):
    code = """
loading.PLUGIN_ABI += 1
from vidc.plugins.ops.gelu_quantize import gelu_quantize
cuda = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
try:
    gelu_quantize.redispatch(cuda, torch.zeros(1, 1, 8), "float32")
except Exception as error:
    print(error.code)
"""
    assert run(build, code)[0] == "VIDC-KERNEL-ABI\n"


def test_library_links_only_what_every_torch_has(build):
    """The library may link only what a CPU build of torch 2.11 has."""
    listed = subprocess.run(
        ["readelf", "-d", build / TORCH_LIBRARY], capture_output=True, text=True, check=True
    ).stdout
    needed = set(re.findall(r"NEEDED.*\[lib([\w+]+)\.so", listed))
    assert needed <= {"torch", "torch_cpu", "stdc++", "gcc_s", "c", "m"}
    names = subprocess.run(
        ["nm", "-D", "--undefined-only", "-C", build / TORCH_LIBRARY],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert re.search(r"\b(at|c10|torch)::", names) is None, "beyond the stable ABI"


def test_library_refuses_with_the_messages_of_the_references(build):
    code = """
import refusal_matrix, refusals
print(json.dumps(refusals.of_kernels([*refusals.REFUSALS, *refusal_matrix.KINDS])))
"""
    said = json.loads(run(build, code)[0])
    for refusal in (*REFUSALS, *KINDS):
        operator, taken = refusal.call()
        with pytest.raises(UsageError) as caught:
            operator(*taken.values())
        assert said[str(refusal)] == str(caught.value)


def test_library_refuses_unaligned_and_strided_memory(build):
    code = """
import refusals
from refusal_matrix import ELSEWHERE, MEMORY
print(json.dumps(refusals.of_kernels([*MEMORY, *ELSEWHERE])))
"""
    said = json.loads(run(build, code)[0])
    for refusal in (*MEMORY, *ELSEWHERE):
        assert said[str(refusal)].startswith("[VIDC-KERNEL-ARGUMENT] "), refusal
        refusal.check(said[str(refusal)])


def test_wheel_has_the_library_in_the_package(wheel):
    """The wheel is for any Python version and one platform."""
    (file,) = wheel.glob("*.whl")
    assert "-py3-none-linux_" in file.name
    built = (wheel / "build").glob("libvidc_plugins.so")
    libraries = {TORCH_LIBRARY, *(library.name for library in built)}
    assert {f"vidc/plugins/{name}" for name in libraries} <= {*zipfile.ZipFile(file).namelist()}
