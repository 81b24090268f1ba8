"""The weights that ship: whole, small enough, the preset's, and of use."""

import hashlib
import json
from pathlib import Path

import pytest
from demo_model.clip import frames_of
from demo_model.evaluation.eager import eager_bundle
from demo_model.evaluation.switches import AFTER
from demo_model.evaluation.videos import Script, videos
from demo_model.export_weights import DIGESTS, FILES, MOST_BYTES, NOTICE, NOTICE_TEXT
from demo_model.grammar import parse
from demo_model.score import SwitchScore, read, score, score_switch
from demo_model.split import Split, distinct, split_of
from demo_model.switch import sample_switch
from tokenizers import Tokenizer

from vidc.compiler.config.presets import load_preset
from vidc.compiler.config.schema import CalibrateConfig, ValidateConfig
from vidc.compiler.config.tables import read_table

FOLDER = Path(__file__).parents[3] / "configs/demo"


def test_each_file_is_the_one_that_was_written():
    document = json.loads((FOLDER / DIGESTS).read_text())
    found = {
        path.relative_to(FOLDER).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in FOLDER.rglob("*")
        if path.is_file() and path.name != DIGESTS
    }
    assert found == {path: entry["sha256"] for path, entry in document["files"].items()}
    assert {*FILES.values(), NOTICE} <= set(found)
    assert (FOLDER / NOTICE).read_text() == NOTICE_TEXT
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) <= MOST_BYTES


def test_the_preset_has_the_statistics_of_its_latents():
    vae = load_preset("demo").model.vae
    assert len(set(vae.latents_mean)) == vae.z_dim
    assert all(1 < deviation < 3 for deviation in vae.latents_std)


def test_the_preset_is_calibrated_and_validated_with_prompts_that_it_knows():
    layer = load_preset("demo").layer
    texts = [
        *read_table(CalibrateConfig, layer, "calibrate").prompts,
        *read_table(ValidateConfig, layer, "validate").prompts,
    ]
    assert len(texts) == 32 + 2
    known = {
        split_of(parse(text)) for text in read_table(CalibrateConfig, layer, "calibrate").prompts
    }
    assert known == {Split.TRAIN}
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer/tokenizer.json"))
    assert not any("<unk>" in tokenizer.encode(text).tokens for text in texts)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    config = load_preset("demo").model
    return eager_bundle(config, FOLDER, tmp_path_factory.mktemp("weights"))[1]


@pytest.mark.deep
def test_videos_are_of_what_held_out_prompts_ask_for(bundle):
    examples = list(distinct(Split.HELD_OUT, 12))
    scripts = [Script(example.caption) for example in examples]
    made = zip(videos(bundle, scripts, 2, seed=0), examples, strict=True)
    scores = [one for video, example in made for one in score(read(video), example.scene)]
    assert len(scores) == 18
    # All are right but one direction; one more of each may be wrong where floats round otherwise.
    assert sum(one.color for one in scores) >= 17
    assert sum(one.shape for one in scores) >= 17
    assert sum(one.direction for one in scores) >= 16


def test_a_switch_changes_what_it_names_and_leaves_the_other_object(bundle):
    cases = [sample_switch(Split.HELD_OUT, index) for index in (24, 1)]
    assert [len(case.after.things) for case in cases] == [2, 2]
    scripts = [Script(*case.captions) for case in cases]
    turn = frames_of(2 * bundle.spec.block)
    made = videos(bundle, scripts, 2 + AFTER, seed=0, switch=2)
    found = [score_switch(video, turn, case) for video, case in zip(made, cases, strict=True)]
    assert found == [SwitchScore(before=True, follows=True, stays=True)] * 2
