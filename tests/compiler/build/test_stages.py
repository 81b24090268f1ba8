"""Contents of stages' keys, without building anything."""

import json
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from vidc.compiler.backends.aoti import cxx
from vidc.compiler.build.build import whole
from vidc.compiler.build.sources import Sources
from vidc.compiler.build.stages import load_stage, stages
from vidc.compiler.cli.progress import LineProgress
from vidc.compiler.config.resolve import Settings, resolve
from vidc.compiler.store.sources import source_modules
from vidc.compiler.store.stage import Input, Stage
from vidc.exporters.families.flags import flag_of, title_of
from vidc.exporters.parts.umt5.config import TextEncoderConfig
from vidc.plugins.errors import BuildError, UsageError

ENCODER = TextEncoderConfig(vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4)


@pytest.fixture(scope="module")
def settings() -> Settings:
    return resolve("tiny", gpu="cpu", environ={})


@pytest.fixture(scope="module")
def with_text(settings: Settings) -> Settings:
    model = replace(settings.model, text_encoder=ENCODER)
    return replace(settings, model=model, precision={**settings.precision, "text_encoder": "fp32"})


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """The index of a checkpoint of two shards; nothing here opens these."""
    files = ["a-1.safetensors", "a-2.safetensors"]
    for name in files:
        (tmp_path / name).write_text(name)
    index = tmp_path / "a.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {name: name for name in files}}))
    return index


@pytest.fixture
def spiece(tmp_path: Path) -> Path:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    for name in ("spiece.model", "tokenizer_config.json", "special_tokens_map.json"):
        (folder / name).write_text(name)
    return folder / "spiece.model"


def consumed(stage: Stage) -> set[str]:
    return {path.name for path in stage.key().files.values()}


def test_every_shard_of_an_index_is_consumed(settings: Settings, shards: Path) -> None:
    for checkpoint in (shards, shards.parent):
        stage = load_stage(settings, Sources({"vae": checkpoint}), "vae")
        assert consumed(stage) == {shards.name, "a-1.safetensors", "a-2.safetensors"}


def test_a_missing_shard_is_told_before_anything_is_built(
    settings: Settings, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shards.parent / "a-2.safetensors").unlink()
    sources = Sources({"transformer": shards, "vae": shards})
    started: list[str] = []
    monkeypatch.setattr(LineProgress, "started", lambda _, stage: started.append(stage))
    with pytest.raises(BuildError, match=r"VIDC-CHECKPOINT-SHARD.*a-2"):
        whole(settings, sources).run(tmp_path / "out", tmp_path / "cache", LineProgress())
    assert started == []


def test_a_lora_s_config_is_consumed(settings: Settings, tmp_path: Path) -> None:
    checkpoint, lora = tmp_path / "base.pt", tmp_path / "lora.safetensors"
    sources = Sources({"transformer": checkpoint, "vae": checkpoint}, loras=(lora,))
    assert consumed(load_stage(settings, sources, "transformer")) == {checkpoint.name, lora.name}
    (tmp_path / "adapter_config.json").write_text("{}")
    assert "adapter_config.json" in consumed(load_stage(settings, sources, "transformer"))
    assert consumed(load_stage(settings, sources, "vae")) == {checkpoint.name}


def test_every_lora_is_consumed(settings: Settings, tmp_path: Path) -> None:
    loras = (tmp_path / "a" / "lora.safetensors", tmp_path / "b" / "lora.safetensors")
    sources = Sources({"transformer": tmp_path / "base.pt"}, loras=loras)
    files = load_stage(settings, sources, "transformer").key().files
    assert list(files.values()) == [tmp_path / "base.pt", *loras]


def test_what_surrounds_a_sentencepiece_model_is_consumed(
    with_text: Settings, tmp_path: Path, spiece: Path
) -> None:
    weights = {"text_encoder": tmp_path / "model.safetensors"}
    beside = {"tokenizer_config.json", "special_tokens_map.json"}
    stage = load_stage(with_text, Sources(weights, tokenizer=spiece), "text_encoder")
    assert consumed(stage) == {"model.safetensors", "spiece.model", *beside}
    assert {"sentencepiece", "protobuf"} <= stage.key().tools().keys()
    plain = Sources(weights, tokenizer=spiece.with_name("tokenizer.json"))
    stage = load_stage(with_text, plain, "text_encoder")
    assert consumed(stage) == {"model.safetensors", "tokenizer.json"}
    assert "sentencepiece" not in stage.key().tools()


def test_golden_data_depend_on_weights_alone(with_text: Settings, spiece: Path) -> None:
    golden = stages(with_text, Sources({}, seed=1, tokenizer=spiece))[-1]
    assert golden.inputs == (
        Input("load:text_encoder", ("weights/text_encoder.safetensors", "tokenizer.json")),
        Input("load:transformer", ("weights/transformer.safetensors",)),
        Input("load:vae", ("weights/vae.safetensors",)),
    )
    assert "ftfy" in golden.key().tools()


def test_tools_of_compiling_hold_what_reads_the_graph(settings: Settings) -> None:
    (stage,) = (s for s in stages(settings, Sources({}, seed=1)) if s.name == "compile:denoise")
    assert stage.key().tools().keys() == {"onnxruntime", "onnx-ir"}


@pytest.mark.parametrize(
    ("target", "backend", "reads"),
    [
        ("rtx4090", "tensorrt", True),
        ("rtx4090", "torch_tensorrt", True),
        ("cpu", "onnxruntime", False),
    ],
)
def test_a_limit_on_workspace_is_in_the_key_of_what_keeps_to_it(target, backend, reads) -> None:
    def compiling(*assignments: str) -> Stage:
        given = {"gpu": target, "precision": "fp16", "assignments": assignments}
        chosen = resolve("tiny", backend=backend, environ={}, **given)
        made = stages(chosen, Sources({}, seed=1))
        return next(stage for stage in made if stage.name == "compile:denoise")

    free, limited = compiling(), compiling("tensorrt.workspace_gb=1.5")
    assert free.key().config == {"precision": "fp16"}
    limit = {"workspace_bytes": 1_500_000_000} if reads else {}
    assert limited.key().config == {"precision": "fp16"} | limit


@pytest.mark.parametrize(
    ("target", "backend", "reads"),
    [("h100", "aoti", True), ("cpu", "aoti", False), ("h100", "onnxruntime", False)],
)
def test_measuring_is_in_the_key_of_what_measures(target, backend, reads) -> None:
    def config(*assignments: str) -> object:
        given = {"gpu": target, "precision": "fp16", "assignments": assignments}
        chosen = resolve("tiny", backend=backend, environ={}, **given)
        made = stages(chosen, Sources({}, seed=1))
        return next(s for s in made if s.name == "compile:denoise").key().config

    assert config() == {"precision": "fp16"}
    without = {"measure": False} if reads else {}
    assert config("aoti.measure=false") == {"precision": "fp16"} | without


@pytest.mark.parametrize(
    ("group", "sources"),
    [("vae", Sources({})), ("text_encoder", Sources({}, seed=1))],
    ids=["no seed", "no tokenizer"],
)
def test_a_group_without_weights_is_named(
    group: str, sources: Sources, with_text: Settings
) -> None:
    with pytest.raises(UsageError, match="VIDC-BUILD-SOURCES") as error:
        sources.weights(with_text.model.parts[group])
    assert title_of(group) in error.value.message
    assert flag_of(group) in error.value.hint


def portable(settings: Settings, sources: Sources | None) -> dict[str, Stage]:
    return {stage.name: stage for stage in stages(settings, sources) if stage.portable}


def same_but_for_files(settings: Settings, sources: Sources) -> dict[str, Stage]:
    """The portable stages; without sources they have the same sources and settings."""
    made, known = portable(settings, sources), portable(settings, None)
    assert known.keys() == made.keys()
    for name, stage in made.items():
        key, of_known = stage.key(), known[name].key()
        assert of_known.entries == key.entries
        assert isinstance(key.config, dict)
        assert isinstance(of_known.config, dict)
        assert {**key.config, **of_known.config} == key.config
    return made


def test_what_portable_stages_do_is_known_without_their_sources(
    with_text: Settings, spiece: Path
) -> None:
    made = same_but_for_files(with_text, Sources({}, seed=1, tokenizer=spiece))
    for stage in made.values():
        assert {consumed.stage for consumed in stage.inputs} <= made.keys()


def test_stages_go_to_worker_processes(with_text: Settings, spiece: Path) -> None:
    for stage in stages(with_text, Sources({}, seed=1, tokenizer=spiece)):
        assert pickle.loads(pickle.dumps(stage)) == stage


def test_the_compiler_is_asked_for_its_version_once(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    run = subprocess.run

    def count(command: tuple[str, ...], **options: object) -> object:
        asked.append(command)
        return run(command, **options)  # type: ignore[call-overload]

    cxx._version.cache_clear()
    monkeypatch.setattr(subprocess, "run", count)
    for stage in stages(replace(settings, backend="aoti"), Sources({}, seed=1)):
        stage.key().tools()
    assert len(asked) == 1


def test_loading_weights_runs_nothing_of_the_runtime(settings: Settings) -> None:
    """So that a change there loads no checkpoint again."""
    modules = source_modules(load_stage(settings, None, "vae").key().entries)
    assert "vidc.exporters.checkpoint.read" in modules
    assert [name for name in modules if name.startswith("vidc.runtime")] == []


def test_a_list_of_stages_loads_nothing_that_only_runs() -> None:
    script = "import sys, vidc.compiler.build.build; print(*sys.modules, sep='\\n')"
    modules = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert "vidc.compiler.build.golden" in modules
    runs = ("vidc.exporters.onnx", "vidc.exporters.checkpoint", "vidc.compiler.validate.golden")
    assert [name for name in modules if name.startswith(runs)] == []


@pytest.mark.parametrize("gpu", ["h100", "h200"])
@pytest.mark.parametrize(
    ("precision", "recipe"), [("fp8", "fp8-linear"), ("int8", "int8-weight-only")]
)
def test_a_hopper_gpu_s_own_recipe_is_one_that_its_engines_hold(
    tmp_path: Path, gpu: str, precision: str, recipe: str
) -> None:
    settings = resolve("longlive-1.3b", gpu=gpu, precision=precision, environ={})
    assert settings.backend == "aoti"
    assert settings.quantization is not None
    assert settings.quantization.recipe.name == recipe
    for name in ("calibration.json", "calibration.safetensors"):
        (tmp_path / name).write_bytes(b"")
    sources = Sources({}, seed=1, calibration=tmp_path)
    same_but_for_files(settings, sources)
    made = {s.name: s for s in stages(settings, sources)}
    exported = made["export:denoise"].key()
    assert exported.config["layers"] == made["quantize:transformer"].key().config["layers"] != {}
    assert made["export:vae_decode"].key().config["layers"] == {}
    # ONNX has no form of what Hopper engines compute.
    assert "onnx" not in exported.tools()
    assert "onnx" in made["export:vae_decode"].key().tools()
    assert ("calibrate:transformer" in made) == (precision == "fp8")
    assert (Input("calibrate:transformer") in made["quantize:transformer"].inputs) == (
        precision == "fp8"
    )


@pytest.mark.parametrize(("precision", "recipe"), [("fp8", "fp8-linear"), ("int8", "int8-static")])
def test_engines_of_tensorrt_come_from_quantized_programs(
    tmp_path: Path, precision: str, recipe: str
) -> None:
    settings = resolve("longlive-1.3b", gpu="rtx4090", precision=precision, environ={})
    assert settings.backend == "tensorrt"
    assert settings.quantization is not None
    assert settings.quantization.recipe.name == recipe
    for name in ("calibration.json", "calibration.safetensors"):
        (tmp_path / name).write_bytes(b"")
    made = {s.name: s for s in stages(settings, Sources({}, seed=1, calibration=tmp_path))}
    assert made["export:denoise"].key().config["layers"]
    # A plan is built without weights and ranges: another calibration changes none.
    assert {each.stage for each in made["compile:denoise"].inputs} == {"export:denoise"}
