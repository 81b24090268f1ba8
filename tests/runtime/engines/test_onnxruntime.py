import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from vidc.compiler.backends.onnxruntime.backend import backend
from vidc.compiler.config.targets import targets
from vidc.exporters.artifact import ExportedComponent
from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.exporters.checkpoint.write import weight_layout, write_weights
from vidc.exporters.component import Component
from vidc.exporters.onnx.export import export_onnx
from vidc.exporters.program import export_program
from vidc.plugins.errors import GateError, UnavailableError
from vidc.plugins.ops.ring import ring_write
from vidc.plugins.signature import Access, Role, Signature, TensorSpec
from vidc.runtime import manifest
from vidc.runtime.engines import integer_products
from vidc.runtime.engines.onnxruntime import Options, load
from vidc.runtime.files import Files
from vidc.runtime.states import Buffers, States
from vidc.runtime.strict import plain
from vidc.runtime.weights import Weights

CPU = torch.device("cpu")


class Linears(nn.Module):
    """Linear layers over tokens, every other one without a bias, as a text encoder has them."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.toy = nn.ModuleDict(
            {str(i): nn.Linear(width, width, bias=i % 2 == 0) for i in range(layers)}
        )

    def forward(self, x: Tensor) -> tuple[Tensor]:
        for layer in self.toy.values():
            x = torch.nn.functional.gelu(layer(x), approximate="tanh")
        return (x,)


class Stateful(nn.Module):
    """A ring, which can be written in place, and a state that is read before it is written."""

    def __init__(self) -> None:
        super().__init__()
        self.toy = nn.ParameterDict({"scale": torch.tensor([2.0, 3.0])})

    def forward(self, x: Tensor, position: Tensor, ring: Tensor, last: Tensor) -> tuple[Tensor]:
        scaled = x * self.toy["scale"]
        result = scaled + last
        ring_write(ring, scaled[:, :, None], position, 0)
        last.copy_(scaled)
        return (result,)


STATEFUL = Signature(
    (
        TensorSpec("x", (1, 2, 2), "float32", Role.INPUT),
        TensorSpec("position", (1,), "int64", Role.INPUT),
        TensorSpec("ring", (1, 4, 1, 2), "float32", Role.STATE, Access.READ_WRITE),
        TensorSpec("last", (1, 2, 2), "float32", Role.STATE, Access.READ_WRITE),
        TensorSpec("y", (1, 2, 2), "float32", Role.OUTPUT),
    )
)


def build(folder: Path, module: nn.Module, signature: Signature) -> manifest.Engine:
    """Exports and compiles a module into a folder with its weights."""
    (folder / "weights").mkdir()
    (folder / "export").mkdir()
    weights = {
        name.removeprefix("toy."): LazyTensor.of(tensor.detach())
        for name, tensor in module.state_dict().items()
    }
    write_weights(folder / "weights" / "toy.safetensors", weights)
    exported = ExportedComponent("toy", folder / "export", signature)
    program = export_program(Component("toy", module.requires_grad_(False), signature))
    export_onnx("toy", program, signature, {"toy": weight_layout(weights)}, exported.onnx)
    engine = backend.compile(exported, targets()["cpu"], {}, folder)
    return manifest.Engine(
        "onnxruntime", engine.loader, engine.version, "fp32", engine.files, engine.signature,
        dict(engine.options), engine.requires,
    )  # fmt: skip


def weights(folder: Path) -> Weights:
    return Weights({"toy": folder / "weights" / "toy.safetensors"}, CPU)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stateful")


@pytest.fixture(scope="module")
def entry(folder: Path) -> manifest.Engine:
    """The engine of ``Stateful`` in ``folder``."""
    return build(folder, Stateful(), STATEFUL)


def test_states_are_written_in_place_or_to_the_spare(folder: Path, entry: manifest.Engine) -> None:
    engine = load(Files(folder), entry, weights(folder), CPU)
    assert {s.name: s.in_place for s in engine.signature.states} == {"ring": True, "last": False}
    states, buffers = States([engine.signature], CPU), Buffers(engine.signature, CPU)
    ring, last, module = torch.zeros(1, 4, 1, 2), torch.zeros(1, 2, 2), Stateful()
    places = {name: states[name].data_ptr() for name in ("ring", "last")}
    for block in range(3):
        x, position = torch.full((1, 2, 2), 1.0 + block), torch.tensor([2 * block])
        with torch.no_grad():
            (expected,) = module(x, position, ring, last)
        buffers.set({"x": x, "position": position})
        engine.run(buffers, states)
        torch.testing.assert_close(buffers["y"], expected)
        torch.testing.assert_close(states["ring"], ring)
        torch.testing.assert_close(states["last"], last)
        assert states["ring"].data_ptr() == places["ring"]
        assert (states["last"].data_ptr() == places["last"]) is (block % 2 == 1)


def test_a_graph_that_fails_while_it_runs_has_a_code(
    folder: Path, entry: manifest.Engine, tmp_path: Path
) -> None:
    """A damaged constant makes it write beyond the ring."""
    shutil.copytree(folder / "weights", tmp_path / "weights")
    model = onnx.load(folder / entry.files[0], load_external_data=False)
    constants = {each.name: each for each in model.graph.initializer}
    (divisor,) = (node.input[1] for node in model.graph.node if node.op_type == "Mod")
    size = onnx.numpy_helper.to_array(constants[divisor])
    constants[divisor].CopyFrom(onnx.numpy_helper.from_array(size * 99, divisor))
    onnx.save(model, tmp_path / entry.files[0])
    engine = load(Files(tmp_path), entry, weights(tmp_path), CPU)
    states, buffers = States([engine.signature], CPU), Buffers(engine.signature, CPU)
    buffers.set({"position": 8})
    with pytest.raises(UnavailableError, match=r"engine toy \(toy.onnx\) failed") as caught:
        engine.run(buffers, states)
    assert caught.value.code == "VIDC-ENGINE-RUN"


LOAD_TWICE = """
import json, sys
from pathlib import Path
import torch
from vidc.runtime.engines.onnxruntime import load
from vidc.runtime.files import Files
from vidc.runtime.manifest import Engine
from vidc.runtime.states import Buffers, States
from vidc.runtime.strict import read
from vidc.runtime.weights import Weights

def private():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))

folder, cpu = Path(sys.argv[1]), torch.device("cpu")
entry = read(json.loads(sys.argv[2]), Engine, "entry")
engines = []
for _ in range(2):
    before = private()
    engine = load(Files(folder), entry, Weights({}, cpu), cpu)
    engine.run(Buffers(engine.signature, cpu), States([engine.signature], cpu))
    engines.append(engine)
print((private() - before) / 1024)
"""


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's /proc")
def test_a_second_engine_shares_the_weights(tmp_path: Path) -> None:
    width, layers = 2048, 4
    tokens = (1, 8, width)
    signature = Signature(
        (
            TensorSpec("x", tokens, "float32", Role.INPUT),
            TensorSpec("y", tokens, "float32", Role.OUTPUT),
        )
    )
    entry = build(tmp_path, Linears(width, layers), signature)
    assert sum(w.nbytes for w in load_file(tmp_path / "weights/toy.safetensors").values()) > 2**26
    done = subprocess.run(
        [sys.executable, "-c", LOAD_TWICE, str(tmp_path), json.dumps(plain(entry))],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert float(done.stdout) < 8


def refusal(folder: Path, entry: manifest.Engine) -> GateError | UnavailableError:
    with pytest.raises((GateError, UnavailableError)) as caught:
        load(Files(folder), entry, weights(folder), CPU)
    return caught.value


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("x", {"name": "z"}),
        ("x", {"shape": (1, 2, 3)}),
        ("x", {"dtype": "float16"}),
        ("y", {"name": "z"}),
        ("y", {"shape": (1, 4, 1)}),
        ("last", {"access": Access.READ}),
        ("ring", {"shape": (1, 8, 1, 2)}),
    ],
)
def test_another_signature_than_the_graphs_is_refused(
    folder: Path, entry: manifest.Engine, name: str, changes: dict[str, object]
) -> None:
    signature = Signature(
        tuple(replace(t, **changes) if t.name == name else t for t in entry.signature)
    )
    error = refusal(folder, replace(entry, signature=signature))
    assert error.code == "VIDC-ENGINE-SIGNATURE"
    assert "toy.onnx" in error.message


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"graph_optimization_level": "ORT_ENABLE_ALL"},
        {"graph_optimization_level": "ORT_ENABLE_MOST", "disable_prepacking": True},
        {"graph_optimization_level": "ORT_ENABLE_ALL", "disable_prepacking": "1"},
        {"graph_optimization_level": "ORT_ENABLE_ALL", "disable_prepacking": True, "threads": 1},
    ],
)
def test_malformed_options_are_refused(
    folder: Path, entry: manifest.Engine, options: dict[str, object]
) -> None:
    error = refusal(folder, replace(entry, options=options))
    assert error.code == "VIDC-BUNDLE-FIELD"
    assert "toy.onnx" in error.message


def test_sessions_ask_for_exact_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integer_products, "_saturates", lambda: True)
    options = Options("ORT_ENABLE_ALL", True).session_options()
    assert options.get_session_config_entry("session.x64quantprecision") == "1"


def test_sessions_ask_idle_threads_not_to_spin() -> None:
    options = Options("ORT_ENABLE_ALL", True).session_options()
    assert options.get_session_config_entry("session.force_spinning_stop") == "1"


def no_graph(folder: Path) -> None:
    (folder / "toy.onnx").write_bytes(b"no graph")


def unknown_operator(folder: Path) -> None:
    import onnx_ir as ir

    model = ir.load(folder / "toy.onnx")
    model.graph[0].op_type = "Adddd"
    ir.save(model, folder / "toy.onnx")


def no_weights(folder: Path) -> None:
    (folder / "weights" / "toy.safetensors").unlink()


def short_weights(folder: Path) -> None:
    (folder / "weights" / "toy.safetensors").write_bytes(b"short")


def weights_elsewhere(folder: Path, location: str) -> None:
    model = onnx.load(folder / "toy.onnx", load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    onnx.save(model, folder / "toy.onnx")


def weights_above(folder: Path) -> None:
    (folder / "weights" / "toy.safetensors").rename(folder.parent / "toy.safetensors")
    weights_elsewhere(folder, "../toy.safetensors")


def weights_at_an_absolute_path(folder: Path) -> None:
    weights_elsewhere(folder, str(folder / "weights" / "toy.safetensors"))


def weights_behind_a_link(folder: Path) -> None:
    weights = folder / "weights" / "toy.safetensors"
    weights.rename(folder.parent / "toy.safetensors")
    weights.symlink_to(folder.parent / "toy.safetensors")


@pytest.mark.parametrize(
    "damage",
    [
        no_graph,
        unknown_operator,
        no_weights,
        short_weights,
        weights_above,
        weights_at_an_absolute_path,
        weights_behind_a_link,
    ],
)
def test_refuses_a_graph_that_onnxruntime_cannot_load(
    folder: Path, entry: manifest.Engine, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    damage(copy)
    with pytest.raises(UnavailableError, match=r"toy\.onnx") as caught:
        load(Files(copy), entry, Weights({}, CPU), CPU)
    assert caught.value.code == "VIDC-ENGINE-LOAD"
