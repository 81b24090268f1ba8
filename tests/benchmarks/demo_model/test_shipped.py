"""The weights that ship: whole, small enough, the preset's, and of use."""

import hashlib
import json
import shutil

import pytest
import torch
from demo_model.evaluate import eager_bundle, videos, with_decoder
from demo_model.export import MOST_BYTES, NOTICE, ship
from demo_model.networks import PRESET
from demo_model.reader import score
from demo_model.tokens import UNKNOWN, tokenizer
from demo_model.world import Clip, Scene, Thing, first_frame

from vidc.compiler.config.presets import load_preset
from vidc.compiler.config.schema import CalibrateConfig, ValidateConfig
from vidc.compiler.config.tables import read_table

FOLDER = PRESET.parents[1] / "demo"
BEFORE, AFTER = (Scene((Thing(color, "square", "left"),), "grass") for color in ("red", "blue"))


def test_files_are_those_of_the_digests_and_small():
    document = json.loads((FOLDER / "digests.json").read_text())
    files = [path for path in FOLDER.rglob("*") if path.is_file() and path.name != "digests.json"]
    assert {path.relative_to(FOLDER).as_posix() for path in files} == document["files"].keys()
    for path in files:
        entry = document["files"][path.relative_to(FOLDER).as_posix()]
        assert hashlib.sha256(path.read_bytes()).hexdigest() == entry["sha256"]
    assert sum(path.stat().st_size for path in files) == document["bytes"] <= MOST_BYTES
    assert (FOLDER / "NOTICE.md").read_text() == NOTICE


def test_shipping_replaces_weights_and_statistics_or_nothing(tmp_path):
    preset, weights, out = (tmp_path / name for name in ("demo.toml", "weights", "demo"))
    preset.write_text(PRESET.read_text().replace("latents_mean", "other"))
    shutil.copytree(FOLDER, weights)
    (out / "old").mkdir(parents=True)
    with pytest.raises(ValueError, match="0 lines latents_mean"):
        ship(weights, out, preset)
    preset.write_text(PRESET.read_text())
    (weights / "NOTICE.md").write_text("other")
    with pytest.raises(ValueError, match=r"not the files of digests.json: \['NOTICE.md'\]"):
        ship(weights, out, preset)
    assert [path.name for path in out.iterdir()] == ["old"]
    document = ship(FOLDER, out, preset)
    names = [{p.relative_to(each) for p in each.rglob("*")} for each in (out, FOLDER)]
    assert names[0] == names[1]
    assert document == json.loads((out / "digests.json").read_text())
    assert preset.read_text() == PRESET.read_text()
    assert {path.name for path in tmp_path.iterdir()} == {"demo.toml", "weights", "demo"}


def test_prompts_of_the_preset_are_captions_and_a_switch():
    layer = load_preset("demo").layer
    prompts = read_table(CalibrateConfig, layer, "calibrate").prompts
    assert len(prompts) == 32
    assert not any(UNKNOWN in each.tokens for each in tokenizer().encode_batch(prompts))
    validated = read_table(ValidateConfig, layer, "validate").prompts
    assert [*validated] == [BEFORE.caption, AFTER.caption]


@pytest.mark.parametrize("decoder", ["vae", "taehv"])
def test_the_model_shows_the_prompts_of_its_preset(decoder):
    clip = Clip(BEFORE, AFTER, first_frame(2))
    bundle = with_decoder(eager_bundle(FOLDER, 1, "cpu"), decoder)
    with torch.no_grad():
        (video,) = videos(bundle, [clip], range(4), 2, seed=0)
    for start, stop in ((0, first_frame(2)), (first_frame(3), first_frame(4))):
        scores = score(video[:, start:stop], clip, torch.arange(start, stop))
        assert all(all(thing.values()) for thing in scores), scores
