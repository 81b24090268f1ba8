"""A family of another package: found by its entry point, and asked for what vidc asks of one."""

import json
from types import SimpleNamespace

import pytest
from toy_family import PRESET, Toy

from vidc.compiler.bench.sweep import variant_settings
from vidc.compiler.bench.work import component_work
from vidc.compiler.build.calibrate import calibrate_name
from vidc.compiler.build.sources import Sources
from vidc.compiler.build.stages import export_stage, load_stage
from vidc.compiler.config.program import program_spec
from vidc.compiler.config.recipe import LinearFormat, Recipe, Rule
from vidc.compiler.config.recorded import recorded_settings
from vidc.compiler.config.resolve import resolve
from vidc.compiler.config.tables import model_from_json
from vidc.compiler.quantize.apply import apply_recipe
from vidc.exporters.families import family_names, find_family
from vidc.plugins.errors import UsageError


@pytest.fixture
def preset(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(PRESET.format(width=8))
    return str(path)


@pytest.fixture
def settings(preset):
    return resolve(preset, gpu="cpu", environ={})


def test_an_entry_point_makes_it_known():
    assert "toy" in family_names()
    assert find_family("toy") is Toy
    with pytest.raises(UsageError, match=r"VIDC-CONFIG-FAMILY.*'toi'.*\n.*'toy'"):
        find_family("toi")


def test_a_module_s_path_is_no_name():
    with pytest.raises(UsageError, match="VIDC-CONFIG-FAMILY"):
        find_family("toy_family:Toy")


def test_its_settings_are_its_own(preset, settings):
    assert settings.model.to_json()["mixer"] == {"width": 8, "layers": 2}
    assert settings.precision.keys() == {"mixer", "painter"}
    assert settings.values()["mixer.layers"] == 2
    assert "stream" not in settings.to_json()
    other = resolve(preset, gpu="cpu", assignments=["mixer.layers=3"], environ={})
    assert other.model.to_json()["mixer"]["layers"] == 3
    with pytest.raises(UsageError, match=r"VIDC-CONFIG-SETTING.*stream\.window"):
        resolve(preset, gpu="cpu", assignments=["stream.window=3"], environ={})


def test_a_record_of_its_settings_is_read_back(settings):
    document = json.loads(json.dumps(settings.to_json()))
    assert recorded_settings(document, settings.origins, "s").to_json() == settings.to_json()
    assert model_from_json(document) == settings.model


def test_stages_depend_on_its_sources_and_sizes(preset, settings):
    wider = resolve(preset, gpu="cpu", assignments=["painter.size=12"], environ={})
    for name, same in (("advance", True), ("paint", False)):
        before, after = export_stage(settings, name).key(), export_stage(wider, name).key()
        assert "toy_family" in before.entries
        assert (before.config == after.config) == same
    assert "toy_family" in load_stage(settings, Sources({}, seed=1), "mixer").key().entries


def test_its_calibration_is_named_by_its_group(settings):
    assert calibrate_name(settings.model) == "calibrate:mixer"


def test_a_sweep_varies_its_settings(settings):
    manifest = SimpleNamespace(
        config=settings.to_json(), preset="small", family="toy", target=settings.target
    )
    variant = variant_settings(manifest, "mixer.layers", "3")
    expected = settings.to_json()
    expected["mixer"]["layers"] = 3
    assert variant.to_json() == expected


def test_its_components_are_counted(settings):
    manifest = SimpleNamespace(
        config=settings.to_json(), program="toy", spec=program_spec(settings.model)
    )
    assert {name: each.total for name, each in component_work(manifest).items()} == {
        "advance": 2 * 2 * 8 * 8,
        "paint": 2 * 8 * 3 * 16 * 16,
    }


def test_a_recipe_means_its_layers(settings):
    recipe = Recipe("r", "d", (Rule(("*",), LinearFormat("int8", "int8")),), ())
    formats = apply_recipe(recipe, settings.model)
    assert formats.linear.keys() == {"0", "1"}
    assert formats.flops_share == 1
    assert formats.attention == {}
