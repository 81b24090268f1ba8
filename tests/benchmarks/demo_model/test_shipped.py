"""The weights that ship: whole, small enough, the preset's, and of use."""

import hashlib
import json

import pytest
import torch
from demo_model.evaluate import eager_bundle, videos, with_decoder
from demo_model.export import MOST_BYTES, NOTICE, ship
from demo_model.networks import PRESET
from demo_model.reader import score
from demo_model.world import Clip, first_frame, parse

from vidc.compiler.config.presets import load_preset
from vidc.compiler.config.schema import CalibrateConfig, ValidateConfig
from vidc.compiler.config.tables import read_table

FOLDER = PRESET.parents[1] / "demo"
BEFORE, AFTER = read_table(ValidateConfig, load_preset("demo").layer, "validate").prompts


def test_files_are_those_of_the_digests_and_small():
    document = json.loads((FOLDER / "digests.json").read_text())
    files = [path for path in FOLDER.rglob("*") if path.is_file() and path.name != "digests.json"]
    assert {path.relative_to(FOLDER).as_posix() for path in files} == document["files"].keys()
    for path in files:
        entry = document["files"][path.relative_to(FOLDER).as_posix()]
        assert hashlib.sha256(path.read_bytes()).hexdigest() == entry["sha256"]
    assert sum(path.stat().st_size for path in files) == document["bytes"] <= MOST_BYTES
    assert (FOLDER / "NOTICE.md").read_text() == NOTICE


def test_shipping_what_ships_changes_nothing(tmp_path):
    """The preset has the statistics of the weights, and ``ship`` takes over every file."""
    preset = tmp_path / "demo.toml"
    preset.write_text(PRESET.read_text())
    document = ship(FOLDER, tmp_path / "demo", preset)
    assert document == json.loads((FOLDER / "digests.json").read_text())
    assert preset.read_text() == PRESET.read_text()


def test_prompts_of_the_preset_are_captions_and_a_switch():
    prompts = read_table(CalibrateConfig, load_preset("demo").layer, "calibrate").prompts
    assert len(prompts) == 32
    assert not any(parse(prompt).held_out for prompt in prompts)
    assert parse(BEFORE).things[0].color != parse(AFTER).things[0].color


@pytest.mark.parametrize("decoder", ["vae", "taehv"])
def test_the_model_shows_the_prompts_of_its_preset(decoder):
    clip = Clip(parse(BEFORE), parse(AFTER), first_frame(2))
    bundle = with_decoder(eager_bundle(FOLDER, 1, "cpu"), decoder)
    with torch.no_grad():
        (video,) = videos(bundle, [clip], range(4), 2, seed=0)
    for start, stop in ((0, first_frame(2)), (first_frame(3), first_frame(4))):
        scores = score(video[:, start:stop], clip, torch.arange(start, stop))
        assert all(all(thing.values()) for thing in scores), scores
