"""The weights that ship: whole, small enough, the preset's, and of use."""

import hashlib
import json
import tomllib

import pytest
import torch
from demo_model.evaluate import eager_bundle, videos
from demo_model.export import SHIPPED
from demo_model.networks import PRESET
from demo_model.reader import score
from demo_model.world import UNKNOWN, Clip, Scene, Thing, first_frame, tokenizer

BEFORE, AFTER = (Scene((Thing(color, "square", "left"),), "grass") for color in ("red", "blue"))


def test_files_are_those_of_the_digests_and_small():
    files = {f.relative_to(SHIPPED).as_posix(): f.read_bytes() for f in SHIPPED.rglob("*.*")}
    document = json.loads(files.pop("digests.json"))
    assert sum(map(len, files.values())) == document["bytes"] <= 25_000_000
    for name, digest in document["files"].items():
        data = files.pop(name)
        assert digest == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    assert not files


def test_prompts_of_the_preset_are_captions_and_a_switch():
    preset = tomllib.loads(PRESET.read_text())
    assert preset["validate"]["prompts"] == [BEFORE.caption, AFTER.caption]
    prompts = tokenizer().encode_batch(preset["calibrate"]["prompts"])
    assert not any(UNKNOWN in prompt.tokens for prompt in prompts)


@pytest.mark.parametrize("decoder", ["vae", "taehv"])
def test_the_model_shows_the_prompts_of_its_preset(decoder):
    clip = Clip(BEFORE, AFTER, first_frame(2))
    with torch.no_grad():
        (video,) = videos(eager_bundle(SHIPPED, 1, "cpu"), [clip], range(4), 2, decoder)
    for start, stop in ((0, first_frame(2)), (first_frame(3), first_frame(4))):
        scores = score(video[:, start:stop], clip, torch.arange(start, stop))
        assert all(all(thing.values()) for thing in scores), scores
