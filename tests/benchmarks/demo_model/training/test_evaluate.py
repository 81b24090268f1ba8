"""The evaluation: on videos that are right, on ones that are not, and through a bundle."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from demo_model import contact_sheet, show
from demo_model.clip import Clip, frames_of
from demo_model.evaluate import evaluate, table, weights
from demo_model.evaluation import measures, switches
from demo_model.evaluation.measures import Counts
from demo_model.evaluation.videos import Script, reconstructed, videos, with_levels
from demo_model.export_weights import DIGESTS, FILES
from demo_model.grammar import parse
from demo_model.recipes import compared, rows
from demo_model.render import render
from demo_model.split import Split, sample
from demo_model.tokenizer import tokenizer
from demo_model.tokens import PAD
from demo_model.training.networks import new_text_encoder
from demo_model.training.vae import Statistics, decode, encode
from quantized import calibration

from vidc.compiler.config.presets import load_preset
from vidc.compiler.config.program import program_spec
from vidc.compiler.validate.reference import EagerEngine
from vidc.exporters.parts.wan_vae.network import create
from vidc.exporters.parts.wan_vae.random_weights import random_state_dict
from vidc.runtime.bundle import Bundle
from vidc.runtime.programs.base import Resources
from vidc.runtime.programs.causal_video import TEXT_ENCODER, CausalVideo
from vidc.runtime.text import TextEncoder

LATE = 10
"""The least number of blocks whose last one is under the light of block 5."""


@pytest.fixture(scope="module")
def vae(sizes):
    network = create(sizes.config.vae, torch.float32, "cpu")
    network.load_state_dict(random_state_dict(sizes.config.vae, 1, torch.float32))
    return network


@pytest.fixture(scope="module")
def bundle(sizes, model, vae) -> Bundle:
    """Two videos at a time, from weights that nobody trained, by PyTorch itself."""
    config = replace(sizes.config, stream=replace(sizes.config.stream, batch=2))
    torch.manual_seed(1)
    text = new_text_encoder(sizes).text_encoder
    length = config.transformer.text_len
    words = tokenizer()
    words.enable_truncation(length)
    words.enable_padding(length=length, pad_id=PAD, pad_token="<pad>")
    made = {
        **config.transformer_part.components(model),
        **config.vae_part.components(vae),
        **config.parts[TEXT_ENCODER].components(text),
    }
    engines = {name: EagerEngine(component) for name, component in made.items()}
    cpu = torch.device("cpu")
    encoder = TextEncoder(engines[TEXT_ENCODER], words.to_str().encode(), cpu)
    return Bundle(CausalVideo, Resources(program_spec(config), engines, cpu, shared=encoder))


def true_videos(bundle, scripts, blocks, seed, switch=None, kept=lambda block: True):
    """What a model would make that had learnt everything."""
    for index, script in enumerate(scripts):
        scenes = [(0, parse(script.prompt))]
        if switch is not None and script.later:
            scenes.append((12 * switch - 3, parse(script.later)))
        whole = render([Clip(index, tuple(scenes))], frames_of(3 * blocks))[0]
        parts = whole.split([9] + [12] * (blocks - 1), 1)
        yield torch.cat([part for block, part in enumerate(parts) if kept(block)], 1)


def stubborn_videos(bundle, scripts, blocks, seed, switch=None, kept=lambda block: True):
    """What one makes that takes no new prompt, and loses its ground."""
    plain = [Script(script.prompt) for script in scripts]
    for video in true_videos(bundle, plain, blocks, seed, None, kept):
        faded = torch.linspace(0, 0.5, video.shape[1]).view(1, -1, 1, 1)
        yield video + faded * torch.randn(video.shape, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def true(monkeypatch, bundle):
    monkeypatch.setattr(measures, "videos", true_videos)
    monkeypatch.setattr(switches, "videos", true_videos)
    return bundle


@pytest.fixture
def stubborn(monkeypatch, bundle):
    monkeypatch.setattr(measures, "videos", stubborn_videos)
    monkeypatch.setattr(switches, "videos", stubborn_videos)
    return bundle


def test_videos_that_are_right_pass(true):
    found, made = measures.prompts(true, Counts(prompts=6, blocks=3), seed=0)
    assert found["passed"]
    assert found["all three"] == 1
    assert len(made) == 6
    switched = switches.switches(true, 9, seed=0)
    assert switched["passed"]
    assert (switched["before"], switched["follows and others stay"]) == (1, 1)
    assert set(switched["follows by change"]) == {"color", "direction", "shape"}
    assert [found["cases"] for found in switched["by blocks before the switch"].values()] == [
        2, 2, 2, 2, 1,
    ]  # fmt: skip
    assert switched["wrong"] == []
    long = measures.long_runs(true, 3, seed=0, late=LATE)
    assert long["passed"]
    assert set(long["objects right"].values()) == {1}
    assert long["wrong"] == []
    assert long["least dB"] > 40


@pytest.mark.parametrize("size", [1, 8, 50])
def test_a_switch_comes_before_and_after_the_ring_is_full_whatever_the_batch(size):
    made = list(switches.batches(100, size))
    assert sorted(index for _, part in made for index in part) == list(range(100))
    assert all(len(part) <= size for _, part in made)
    blocks = {index: block for block, part in made for index in part}
    assert blocks == {index: switches.BLOCKS[index % 5] for index in range(100)}
    stream = program_spec(load_preset("demo").model)
    full = stream.window // stream.block
    assert min(blocks.values()) < full < max(blocks.values())


def test_videos_that_are_not_fail(stubborn):
    switched = switches.switches(stubborn, 6, seed=0)
    assert not switched["passed"]
    assert switched["follows"] < 0.3
    assert len(switched["wrong"]) == 6
    long = measures.long_runs(stubborn, 2, seed=0, late=LATE)
    assert not long["passed"]
    assert long["mean dB"] < 25


def test_other_prompts_are_wrong(monkeypatch, bundle):
    def others(bundle, scripts, *rest, **more):
        return true_videos(bundle, [*scripts[1:], scripts[0]], *rest, **more)

    monkeypatch.setattr(measures, "videos", others)
    found, _ = measures.prompts(bundle, Counts(prompts=6, blocks=2), seed=0)
    assert not found["passed"]
    assert found["all three"] < 0.5
    long = measures.long_runs(bundle, 4, seed=0, late=LATE)
    assert not long["passed"]
    assert long["objects right"]["last blocks"] == 1 - len(long["wrong"]) / 4 < 0.5
    assert all(any(not all(one.values()) for one in run["objects"]) for run in long["wrong"])


def test_objects_that_go_wrong_late_are_wrong_in_the_last_blocks_alone(monkeypatch, bundle):
    def turning(bundle, scripts, *rest, **more):
        late = [scripts[-1], *scripts[:-1]]
        pairs = zip(
            true_videos(bundle, scripts, *rest, **more),
            true_videos(bundle, late, *rest, **more), strict=True,
        )  # fmt: skip
        for video, other in pairs:
            yield torch.cat([video[:, :57], other[:, 57:]], 1)

    monkeypatch.setattr(measures, "videos", turning)
    long = measures.long_runs(bundle, 4, seed=0, late=LATE)
    assert not long["passed"]
    right = long["objects right"]
    assert right["first blocks"] == right["block 5"] == 1
    assert right["last blocks"] == 1 - len(long["wrong"]) / 4 < 0.5
    assert right[f"block {LATE}"] < 0.5


def test_rows_of_a_batch_have_prompts_of_their_own(bundle):
    scripts = [Script("a red square moving left"), Script("a blue circle moving up")]
    one, other = videos(bundle, scripts, 2, seed=3)
    again = list(videos(bundle, scripts[::-1], 2, seed=3))
    assert one.shape == (3, 21, 64, 64)
    assert not torch.equal(one, other)
    # Noise is a row's, prompts are its own: swapped prompts give other videos in both rows.
    assert not torch.equal(again[0], one)
    lone = list(videos(bundle, scripts[:1], 2, seed=3))
    assert len(lone) == 1
    torch.testing.assert_close(lone[0], one, atol=0.02, rtol=0)


def test_a_switch_changes_what_comes_after_it_alone(bundle):
    scripts = [Script("a red square moving left", "a blue circle moving up")] * 2
    plain, _ = videos(bundle, [Script(scripts[0].prompt)] * 2, 3, seed=3)
    switched, _ = videos(bundle, scripts, 3, seed=3, switch=2)
    assert torch.equal(plain[:, :21], switched[:, :21])
    assert not torch.equal(plain[:, 21:], switched[:, 21:])
    kept, _ = videos(bundle, scripts, 3, seed=3, switch=2, kept=lambda block: block == 2)
    assert torch.equal(kept, switched[:, 21:])


def test_a_reconstruction_is_what_the_vae_makes(sizes, bundle, vae):
    clips = render([sample(Split.HELD_OUT, i).clip for i in range(2)], 21, height=64, width=64)
    found = reconstructed(bundle, clips)
    config = sizes.config.vae
    statistics = Statistics(config.latents_mean, config.latents_std)
    with torch.no_grad():
        latents = statistics.normalized(encode(vae, clips, config).mean)
        expected = decode(vae, statistics.restored(latents)).clamp(-1, 1)
    assert (found - expected).abs().max() < 1 / 127


def test_other_levels_are_those_of_the_bundle(bundle):
    first, *_, last = bundle.spec.sigmas
    fewer = with_levels(bundle, (first, last))
    assert fewer.spec.timesteps == (bundle.spec.timesteps[0], bundle.spec.timesteps[-1])
    assert fewer.engines is bundle.engines
    with pytest.raises(ValueError, match="level"):
        with_levels(bundle, (0.3,))


def test_everything_is_judged_and_written(bundle):
    counts = Counts(clips=2, prompts=2, blocks=2, switches=2, runs=2)
    found = evaluate(bundle, counts, seed=0, late=LATE)
    assert not found["passed"]
    assert json.loads(json.dumps(found)) == found
    assert [row["steps"] for row in found["steps"]] == [4, 3, 2]
    assert found["steps"][0]["dB against all steps"] is None
    assert found["steps"][1]["dB against all steps"] > 0
    assert table(found).count("\n") == 19
    part = evaluate(bundle, counts, seed=0, only="switch")
    assert set(part) == {"switch", "seconds", "passed"}
    assert part["switch"] == found["switch"]


def test_what_was_judged_is_known_by_its_digests():
    folder = Path(__file__).parents[4] / "configs/demo"
    known = json.loads((folder / DIGESTS).read_text())["files"]
    assert weights(folder) == {path: known[path]["sha256"] for path in sorted(FILES.values())}


def test_videos_by_a_recipe_are_held_to_those_in_float32(sizes, bundle):
    config = replace(sizes.config, stream=replace(sizes.config.stream, batch=2))
    counts = Counts(prompts=2, blocks=2)
    names = ["int8-static", "fp8"]
    plain, *found = rows(config, bundle, calibration(config, 50.0), names, counts, seed=0)
    assert (plain["recipe"], plain["prompts"]) == (None, 2)
    assert [row["recipe"] for row in found] == names
    for row in found:
        assert 5 < row["least dB"] <= row["median dB"] < 60
        assert len(row["worst blocks"]) == 2
    (_, expected), (_, again) = (measures.prompts(bundle, counts, 0) for _ in range(2))
    near = compared(again, expected)
    assert (near["least dB"], near["least SSIM"]) == (math.inf, pytest.approx(1.0))
    spoilt = [video.clone() for video in expected]
    spoilt[1][:, -1] = -spoilt[1][:, -1]
    first, second = compared(spoilt, expected)["worst blocks"]
    assert second["dB"] < first["dB"] == math.inf


def test_a_picture_has_a_row_before_and_a_row_after(bundle, monkeypatch):
    """Of what the prompts say: red until the switch, blue after it."""
    monkeypatch.setattr(show, "videos", true_videos)
    prompts = [f"a big {color} square moving left over grass" for color in ("red", "blue")]
    made = show.picture(bundle, Script(*prompts), switch=3, columns=4, seed=0)
    side, gap, row = 128, 2, 128 + contact_sheet.LINE + 4
    assert made.size == (4 * (side + gap) - gap, 2 * row)
    settled = np.asarray(made).astype(int)[:, 2 * (side + gap) :]  # The last frames of a row.

    def count(rows, channel: int) -> int:
        others = np.delete(rows, channel, axis=2).max(2)
        return int((rows[..., channel] - others > 80).sum())

    before, after = settled[:row], settled[row:]
    assert count(before, 0) > 500 > count(before, 2)
    assert count(after, 2) > 500 > count(after, 0)
