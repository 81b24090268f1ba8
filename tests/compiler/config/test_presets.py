import tomllib

import pytest

from vidc.compiler.config.presets import (
    DEFAULT_PRESET,
    load_preset,
    preset_document,
    preset_names,
)
from vidc.compiler.config.resolve import resolve
from vidc.compiler.config.toml import to_toml
from vidc.plugins.errors import UsageError

LOGGED = [
    ("quality", (1000, 750, 500, 250), 12),
    ("balanced", (1000, 750, 500, 250), 12),
    ("turbo", (1000, 500, 250), 8),
    ("turbo_fp8", (1000, 500, 250), 8),
    ("ultra", (1000, 250), 6),
    ("low_memory", (1000, 750, 500, 250), 12),
    ("speed", (1000, 750, 500, 250), 12),
]
"""Presets of the public log that this project answers, with their steps and window."""
QUANTIZED = ("turbo_fp8", "ultra", "low_memory", "speed")
"""Those in a precision that not every target has: tests/compiler/cli/test_presets.py."""
EQUAL = [("balanced", "longlive-1.3b"), ("quality", "longlive-1.3b"), ("speed", "low_memory")]


def test_the_presets_that_users_rely_on_are_there():
    assert set(preset_names()) >= {
        "longlive-1.3b",
        "self-forcing-1.3b",
        "wan-14b-causal",
        "tiny",
        *(name for name, *_ in LOGGED),
    }
    assert DEFAULT_PRESET in preset_names()


@pytest.mark.parametrize("name", QUANTIZED)
def test_precision_flag_overrides_preset_with_recipe(name):
    found = resolve(name, gpu="h200", precision="bf16", environ={})
    assert found.precision["transformer"] == "bf16"
    assert found.quantization is None


@pytest.mark.parametrize(("name", "other"), EQUAL)
def test_preset_that_equals_another_says_so(name, other):
    preset = load_preset(name)
    assert preset.description == f"Another name for {other}"
    assert preset.layer == load_preset(other).layer


@pytest.mark.parametrize("gpu", ["cpu", "t4", "h100"])
def test_preset_names_its_recipe(gpu):
    backend = "onnxruntime" if gpu == "cpu" else "aoti"
    found = resolve("low_memory", gpu=gpu, backend=backend, environ={})
    assert found.quantization is not None
    assert (found.quantization.precision, found.quantization.recipe.name) == ("int8", "kv-int8")
    assert found.values()["quantization.recipe"] == "kv-int8"
    assert found.origins["quantization.recipe"] == "preset low_memory"
    assert found.precision == resolve("quality", gpu=gpu, backend=backend, environ={}).precision


def test_recipe_follows_precedence(tmp_path):
    def recipe(**flags):
        found = resolve("low_memory", gpu="cpu", environ={}, **flags)
        assert found.quantization is not None
        return found.quantization.recipe.name, found.origins["quantization.recipe"]

    config = tmp_path / "config.toml"
    config.write_text('recipe = "int8-weight-only"\n')
    of_config = ("int8-weight-only", f"--config {config}")
    assert recipe(precision="int8") == ("kv-int8", "preset low_memory")
    assert recipe(config=config) == of_config
    assert recipe(config=config, precision="int8") == of_config
    assert recipe(config=config, assignments=["recipe=int8-static"])[1] == "--set recipe"
    flags = {"config": config, "assignments": ["recipe=int8-static"]}
    assert recipe(**flags, recipe="kv-int8") == ("kv-int8", "--recipe")
    plain = resolve("tiny", gpu="cpu", precision="int8", environ={})
    assert plain.origins["quantization.recipe"] == "target cpu"


@pytest.mark.parametrize(
    "flags",
    [
        {"precision": "fp32", "recipe": "kv-int8"},
        {"precision": "fp32", "assignments": ["recipe=kv-int8"]},
        {"recipe": "fp8-linear"},
    ],
)
def test_recipe_that_contradicts_the_precision_is_refused(flags):
    with pytest.raises(UsageError, match="VIDC-RECIPE-PRECISION"):
        resolve("low_memory", gpu="cpu", environ={}, **flags)


def test_recipe_beside_a_high_precision_in_one_preset_is_refused(tmp_path):
    preset = tmp_path / "own.toml"
    preset.write_text('description = "d"\nextends = "tiny"\nrecipe = "kv-int8"\n')
    with pytest.raises(UsageError, match=r"VIDC-RECIPE-PRECISION.*preset own"):
        resolve(str(preset), gpu="cpu", environ={})


@pytest.mark.parametrize(("name", "steps", "window"), LOGGED)
def test_the_logged_presets_have_their_steps_and_window(name, steps, window):
    settings = resolve(name, gpu="h200", precision="bf16", environ={})
    assert settings.model.sampler.steps == steps
    assert settings.model.stream.window == window
    assert settings.model.transformer == resolve("longlive-1.3b", environ={}).model.transformer


@pytest.mark.parametrize("name", preset_names())
def test_a_shown_preset_is_a_preset(name, tmp_path):
    document = preset_document(load_preset(name))
    text = to_toml(document)
    assert tomllib.loads(text) == document
    copy = tmp_path / "copy.toml"
    copy.write_text(text)
    assert preset_document(load_preset(str(copy))) == document


def test_longlive_sizes_match_checkpoint():
    model = resolve("longlive-1.3b", gpu="cpu", environ={}).model
    transformer, stream = model.transformer, model.stream
    assert (transformer.dim, transformer.ffn_dim) == (1536, 8960)
    assert (transformer.heads, transformer.layers, transformer.head_dim) == (12, 30, 128)
    assert (stream.window, stream.sink, stream.block) == (12, 3, 3)
    assert model.latent_size == (60, 104)
    assert model.frame_tokens == 1560
    assert model.sampler.steps == (1000, 750, 500, 250)


def test_preset_inherits_missing_settings(tmp_path):
    (tmp_path / "base.toml").write_text('extends = "tiny"\n[stream]\nwindow = 9\n')
    child = tmp_path / "child.toml"
    child.write_text('description = "mine"\nextends = "base.toml"\n[stream]\nsink = 0\n')
    preset = load_preset(str(child))
    assert (preset.name, preset.description, preset.family) == ("child", "mine", "causal_video")
    said = {name: (setting.value, setting.origin) for name, setting in preset.layer.items()}
    assert said["stream.sink"] == (0, "preset child")
    assert said["stream.window"] == (9, "preset base")
    assert said["model.dim"] == (96, "preset tiny")


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ('extends = "tinny"', "VIDC-CONFIG-PRESET", "'tiny'"),
        ('extends = "own.toml"', "VIDC-CONFIG-PRESET", "extends itself"),
        ('family = "causal_video"', "VIDC-CONFIG-PRESET", "no description"),
        ('description = "d"', "VIDC-CONFIG-PRESET", "no family"),
        ('description = "d"\nfamily = "causal_vide"', "VIDC-CONFIG-PRESET", "'causal_video'"),
        ('extends = "tiny"\n[stream]\nwindw = 3', "VIDC-CONFIG-SETTING", "'window'"),
        ('extends = "tiny', "VIDC-CONFIG-FILE", "not TOML"),
    ],
)
def test_a_wrong_preset_is_refused(tmp_path, text, code, words):
    file = tmp_path / "own.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as raised:
        load_preset(str(file))
    assert raised.value.code == code
    assert words in str(raised.value)


def test_a_missing_preset_file_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"gone\.toml: No such file"):
        load_preset(str(tmp_path / "gone.toml"))
