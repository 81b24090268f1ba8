import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import small_taehv
import torch
from random_transformer import random_weights
from safetensors.torch import load_file, save_file
from torch.multiprocessing.reductions import StorageWeakRef

from vidc.compiler.backends.aoti.backend import backend
from vidc.compiler.config.program import program_spec
from vidc.compiler.config.targets import targets
from vidc.compiler.validate.metrics import compare
from vidc.compiler.validate.reference import EagerEngine
from vidc.exporters.artifact import ExportedComponent
from vidc.exporters.component import Component
from vidc.exporters.families.causal_video import CausalVideo, SamplerConfig, StreamConfig
from vidc.exporters.models import PRECISIONS, with_weights
from vidc.exporters.parts.causal_wan.config import TransformerConfig
from vidc.exporters.parts.wan_vae.config import VaeConfig
from vidc.exporters.program import export_program, save_program
from vidc.plugins.errors import GateError, UnavailableError
from vidc.plugins.signature import Signature
from vidc.runtime import manifest
from vidc.runtime.engines import Engine
from vidc.runtime.engines.aoti import load
from vidc.runtime.files import Files
from vidc.runtime.programs.rope import Rope
from vidc.runtime.states import Buffers, States
from vidc.runtime.strict import plain
from vidc.runtime.weights import Weights

CPU = torch.device("cpu")
CONFIG = CausalVideo(
    TransformerConfig(dim=48, ffn_dim=96, heads=2, layers=2, freq_dim=16, text_len=6, text_dim=20),
    VaeConfig(base_dim=4, res_blocks=1),
    StreamConfig(height=32, width=48, window=12, sink=3, block=3),
    SamplerConfig(),
    taehv=small_taehv.CONFIG,
    kind="both",
)
TIMESTEPS = {"denoise": 700.0, "kv_update": 0.0}
BLOCK_TOKENS = CONFIG.stream.block * CONFIG.frame_tokens


@dataclass(frozen=True)
class Model:
    """Components of one weights group, compiled into a folder that has their weights."""

    folder: Path
    entries: dict[str, manifest.Engine]
    components: dict[str, Component]

    def weights(self) -> Weights:
        return Weights({file.stem: file for file in (self.folder / "weights").iterdir()}, CPU)

    def load(self, weights: Weights) -> dict[str, Engine]:
        return {
            n: load(Files(self.folder), entry, weights, CPU) for n, entry in self.entries.items()
        }

    def eager(self) -> dict[str, Engine]:
        return {name: EagerEngine(self.components[name]) for name in self.entries}


def build(folder: Path, group: str, precision: str, *names: str) -> Model:
    dtype = PRECISIONS[precision]
    drawn = (
        {k: v.to(dtype) for k, v in random_weights(CONFIG.transformer, 5).items()}
        if group == "transformer"
        else {k: v.load().to(dtype) for k, v in CONFIG.parts[group].random_weights(5).items()}
    )
    network = with_weights(CONFIG.parts[group].network(precision), drawn)
    made = CONFIG.parts[group].components(network)
    used = {k for n in names for k in made[n].module.state_dict()}
    (folder / "weights").mkdir()
    file = folder / "weights" / f"{group}.safetensors"
    save_file({k: v for k, v in drawn.items() if f"{group}.{k}" in used}, file)
    entries = {}
    for name in names:
        exported = ExportedComponent(name, folder / f"export-{name}", made[name].signature)
        exported.folder.mkdir()
        save_program(export_program(made[name]), exported.program)
        engine = backend.compile(exported, targets()["cpu"], {}, folder)
        entries[name] = manifest.Engine(
            "aoti", engine.loader, engine.version, precision, engine.files, engine.signature,
            dict(engine.options), engine.requires,
        )  # fmt: skip
    return Model(folder, entries, made)


@pytest.fixture(scope="module")
def transformer(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("transformer")
    return build(folder, "transformer", "fp32", "denoise", "kv_update")


def stream(engines: dict[str, Engine], blocks: int) -> Iterator[tuple[torch.Tensor, States]]:
    """The flow of each block and the states after it, with inputs that are the same each time."""
    spec, generator = program_spec(CONFIG), torch.Generator().manual_seed(3)
    rope = Rope(spec, CPU)
    states = States((engine.signature for engine in engines.values()), CPU)
    for index in range(CONFIG.transformer.layers):
        for part in "kv":
            states[f"text.{part}.{index}"].normal_(generator=generator)
    buffers = {name: Buffers(engine.signature, CPU) for name, engine in engines.items()}
    for block in range(blocks):
        first = block * spec.block
        for name, engine in engines.items():
            cos, sin = buffers[name]["rope_cos"], buffers[name]["rope_sin"]
            rope.fill(cos, sin, torch.tensor([first]))
            latent = torch.randn(buffers[name]["latent"].shape, generator=generator)
            held = min(first + spec.block, spec.window)
            buffers[name].set(
                {
                    "latent": latent,
                    "timestep": TIMESTEPS[name],
                    "position": first * spec.frame_tokens,
                    "valid_length": held * spec.frame_tokens,
                }
            )
            engine.run(buffers[name], states)
        yield buffers["denoise"]["flow"], states


def largest_error(model: Model, blocks: int) -> float:
    """The largest relative L2 of a flow or a state, engines against eager."""
    names = [spec.name for spec in model.entries["denoise"].signature.states]
    worst = 0.0
    pairs = zip(
        stream(model.load(model.weights()), blocks), stream(model.eager(), blocks), strict=True
    )
    for (flow, states), (expected_flow, expected) in pairs:
        worst = max(worst, compare(flow, expected_flow).relative_l2)
        worst = max(worst, *(compare(states[n], expected[n]).relative_l2 for n in names))
    return worst


def first_block(engine: Engine) -> tuple[Buffers, States]:
    """Constant inputs at the start of a stream, and states without a prompt."""
    states, buffers = States([engine.signature], CPU), Buffers(engine.signature, CPU)
    buffers.set({"latent": 1.0, "rope_cos": 1.0, "valid_length": BLOCK_TOKENS})
    return buffers, states


def run_once(engine: Engine) -> tuple[Buffers, States]:
    buffers, states = first_block(engine)
    engine.run(buffers, states)
    return buffers, states


def test_stream_across_the_wrap_matches_eager(transformer: Model) -> None:
    assert largest_error(transformer, blocks=5) < 1e-4


def test_states_are_written_in_place(transformer: Model) -> None:
    engine = transformer.load(transformer.weights())["denoise"]
    buffers, states = first_block(engine)
    places = {s.name: states[s.name].data_ptr() for s in engine.signature.states}
    engine.run(buffers, states)
    assert places == {s.name: states[s.name].data_ptr() for s in engine.signature.states}
    for spec in engine.signature.states:
        assert spec.in_place == spec.writes == spec.name.startswith("ring")
        assert bool(states[spec.name].any()) == spec.writes


def test_engines_read_one_copy_of_the_weights(transformer: Model) -> None:
    weights = transformer.weights()
    engines = transformer.load(weights)
    before = [run_once(engine)[1]["ring.k.1"].clone() for engine in engines.values()]
    weights["transformer.blocks.1.attn1.to_k.weight"].neg_()
    after = [run_once(engine)[1]["ring.k.1"] for engine in engines.values()]
    assert all(compare(a, b).relative_l2 > 0.1 for a, b in zip(after, before, strict=True))
    assert compare(after[0], after[1]).relative_l2 < 1e-4


def test_a_dropped_engine_frees_its_weights(transformer: Model) -> None:
    weights = transformer.weights()
    engines = transformer.load(weights)
    run_once(engines["denoise"])
    name = "transformer.blocks.1.attn1.to_k.weight"
    memory = StorageWeakRef(weights[name].untyped_storage())
    del weights, engines["denoise"]
    gc.collect()
    assert not memory.expired()  # Engine kv_update reads it.
    run_once(engines["kv_update"])
    engines.clear()
    gc.collect()
    assert memory.expired()


RUN_ALONE = """
import json, sys
from pathlib import Path
import torch
from safetensors.torch import save_file
from vidc.runtime.engines.aoti import load
from vidc.runtime.files import Files
from vidc.runtime.manifest import Engine
from vidc.runtime.states import Buffers, States
from vidc.runtime.strict import read
from vidc.runtime.weights import Weights

folder, cpu = Path(sys.argv[1]), torch.device("cpu")
entry = read(json.loads(sys.argv[2]), Engine, "entry")
engine = load(Files(folder), entry, Weights({"transformer": folder / sys.argv[3]}, cpu), cpu)
states, buffers = States([engine.signature], cpu), Buffers(engine.signature, cpu)
buffers.set({"latent": 1.0, "rope_cos": 1.0, "valid_length": int(sys.argv[4])})
engine.run(buffers, states)
save_file({"flow": buffers["flow"]}, sys.argv[5])
assert "torch._inductor" not in sys.modules
"""


def test_a_process_without_a_compiler_runs_it(transformer: Model, tmp_path: Path) -> None:
    entry, result = transformer.entries["denoise"], tmp_path / "flow.safetensors"
    command = [
        sys.executable, "-c", RUN_ALONE, str(transformer.folder), json.dumps(plain(entry)),
        "weights/transformer.safetensors", str(BLOCK_TOKENS), str(result),
    ]  # fmt: skip
    environment = {k: v for k, v in os.environ.items() if k != "CXX"} | {"PATH": str(tmp_path)}
    subprocess.run(command, env=environment, check=True)
    expected, _ = run_once(transformer.eager()["denoise"])
    assert compare(load_file(result)["flow"], expected["flow"]).relative_l2 < 1e-4


def test_torch_has_the_loader_api() -> None:
    package = getattr(torch._C._aoti, "AOTIModelPackageLoader", None)
    assert package is not None, f"torch {torch.__version__} renamed its package loader"
    missing = {"load_constants", "get_constant_fqns", "boxed_run"} - set(dir(package))
    assert not missing, f"torch {torch.__version__} took {missing} from its package loader"


def test_refuses_a_package_that_is_not_an_engine(transformer: Model, tmp_path: Path) -> None:
    entry = replace(transformer.entries["denoise"], files=("engine.pt2",))
    with zipfile.ZipFile(tmp_path / "engine.pt2", "w") as archive:
        archive.writestr("engine/archive_format", "pt2")
    with pytest.raises(UnavailableError) as caught:
        load(Files(tmp_path), entry, transformer.weights(), CPU)
    assert caught.value.code == "VIDC-ENGINE-LOAD"
    assert "outdated" not in str(caught.value)


def test_a_pickle_in_the_package_is_refused(transformer: Model, tmp_path: Path) -> None:
    entry = transformer.entries["denoise"]
    file = tmp_path / entry.files[0]
    file.parent.mkdir(parents=True)
    shutil.copyfile(transformer.folder / entry.files[0], file)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("denoise/data/sample_inputs/model.pt", b"pickle")
    with pytest.raises(GateError) as caught:
        load(Files(tmp_path), entry, transformer.weights(), CPU)
    assert caught.value.code == "VIDC-BUNDLE-PICKLE"


def test_a_weight_that_is_missing_is_named(transformer: Model, tmp_path: Path) -> None:
    name = "blocks.1.attn1.to_k.weight"
    kept = load_file(transformer.folder / "weights" / "transformer.safetensors")
    del kept[name]
    save_file(kept, tmp_path / "transformer.safetensors")
    weights = Weights({"transformer": tmp_path / "transformer.safetensors"}, CPU)
    with pytest.raises(GateError, match=name) as caught:
        load(Files(transformer.folder), transformer.entries["denoise"], weights, CPU)
    assert caught.value.code == "VIDC-ENGINE-SIGNATURE"


def refused(model: Model, entry: manifest.Engine, weights: Weights) -> str:
    with pytest.raises(GateError) as caught:
        load(Files(model.folder), entry, weights, CPU)
    assert caught.value.code == "VIDC-ENGINE-SIGNATURE"
    return caught.value.message


def test_refuses_a_signature_that_is_not_the_packages(transformer: Model) -> None:
    entry = transformer.entries["denoise"]
    tensors = list(entry.signature)
    states = [i for i, spec in enumerate(tensors) if spec.name.startswith("ring.")][:2]
    swapped = [*tensors]
    swapped[states[0]], swapped[states[1]] = tensors[states[1]], tensors[states[0]]
    taller = [*tensors]
    taller[0] = replace(tensors[0], shape=(2, *tensors[0].shape[1:]))
    other = [*tensors]
    other[0] = replace(tensors[0], dtype="float16")
    elsewhere = [*tensors]
    elsewhere[states[0]] = replace(tensors[states[0]], in_place=False)
    for changed in (swapped, taller, other, elsewhere, tensors[1:]):
        signature = Signature(tuple(changed))
        refused(transformer, replace(entry, signature=signature), transformer.weights())


def test_a_package_that_fails_while_it_runs_has_a_code(transformer: Model) -> None:
    engine = transformer.load(transformer.weights())["denoise"]
    buffers, states = first_block(engine)
    buffers.set({"position": -(10**9)})
    with pytest.raises(
        UnavailableError, match=r"engine denoise \(.*denoise.pt2\) failed"
    ) as caught:
        engine.run(buffers, states)
    assert caught.value.code == "VIDC-ENGINE-RUN"


def test_refuses_options_that_are_not_the_packages(transformer: Model) -> None:
    entry = transformer.entries["denoise"]
    options = {**entry.options, "channels_last": ["transformer.patch_embedding.weight"]}
    refused(transformer, replace(entry, options=options), transformer.weights())


@pytest.mark.parametrize("change", ["shape", "dtype"])
def test_refuses_a_weight_that_the_code_does_not_expect(
    transformer: Model, tmp_path: Path, change: str
) -> None:
    name = "blocks.1.attn1.to_k.weight"
    kept = load_file(transformer.folder / "weights" / "transformer.safetensors")
    kept[name] = kept[name][:-1].clone() if change == "shape" else kept[name].half()
    save_file(kept, tmp_path / "transformer.safetensors")
    weights = Weights({"transformer": tmp_path / "transformer.safetensors"}, CPU)
    assert name in refused(transformer, transformer.entries["denoise"], weights)


def test_a_package_that_does_not_load_leaves_nothing_behind(
    transformer: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry, unpacked = transformer.entries["denoise"], tmp_path / "tmp"
    unpacked.mkdir()
    file = tmp_path / entry.files[0]
    file.parent.mkdir(parents=True)
    data = bytearray((transformer.folder / entry.files[0]).read_bytes())
    start = data.index(b"\x7fELF")
    data[start : start + 64] = bytes(64)
    file.write_bytes(data)
    monkeypatch.setattr(tempfile, "tempdir", str(unpacked))
    with pytest.raises(UnavailableError, match="VIDC-ENGINE-LOAD"):
        load(Files(tmp_path), replace(entry, files=entry.files[:1]), transformer.weights(), CPU)
    assert list(unpacked.iterdir()) == []


def test_a_package_with_broken_text_has_a_code(transformer: Model, tmp_path: Path) -> None:
    """Torch quotes it in a message that is no UTF-8."""
    entry = transformer.entries["denoise"]
    file = tmp_path / entry.files[0]
    file.parent.mkdir(parents=True)
    with (
        zipfile.ZipFile(transformer.folder / entry.files[0]) as archive,
        zipfile.ZipFile(file, "w") as changed,
    ):
        for name in archive.namelist():
            data = archive.read(name)
            broken = name.endswith("_metadata.json")
            changed.writestr(name, b"{\xdf" + data[1:] if broken else data)
    with pytest.raises(UnavailableError, match="VIDC-ENGINE-LOAD"):
        load(Files(tmp_path), replace(entry, files=entry.files[:1]), transformer.weights(), CPU)


@pytest.mark.parametrize(
    ("precision", "limit"), [("bf16", 3e-2), pytest.param("fp16", 4e-3, marks=pytest.mark.deep)]
)
def test_half_precisions(tmp_path: Path, precision: str, limit: float) -> None:
    model = build(tmp_path, "transformer", precision, "denoise")
    assert largest_error(model, blocks=5) < limit


# tests/bundle/test_engines.py compiles a TAEHV too.
@pytest.mark.parametrize("group", ["vae", pytest.param("taehv", marks=pytest.mark.deep)])
def test_a_decoder_reads_its_caches_before_it_overwrites_them(tmp_path: Path, group: str) -> None:
    name = f"{group}_decode"
    model = build(tmp_path, group, "fp32", name)
    engines = [model.load(model.weights())[name], model.eager()[name]]
    buffers = [Buffers(engine.signature, CPU) for engine in engines]
    states = [States([engine.signature], CPU) for engine in engines]
    generator = torch.Generator().manual_seed(4)
    caches = [spec.name for spec in engines[0].signature.states]
    for cache in caches:
        states[1][cache].copy_(states[0][cache].normal_(generator=generator))
    for _ in range(2):
        latent = torch.randn(buffers[0]["latent"].shape, generator=generator)
        for engine, own, kept in zip(engines, buffers, states, strict=True):
            own.set({"latent": latent})
            engine.run(own, kept)
        assert compare(buffers[0]["frames"], buffers[1]["frames"]).relative_l2 < 1e-4
        for cache in caches:
            assert compare(states[0][cache], states[1][cache]).relative_l2 < 1e-4
