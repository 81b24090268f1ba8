"""Stages, their checkpoints and the export."""

import hashlib
import itertools
import json
import math
import random
import tomllib
from dataclasses import replace

import pytest
import torch
from demo_model.data import Shelf
from demo_model.export import export
from demo_model.loop import Optimizer, Training, learning_rate, load
from demo_model.stages import STAGES, FlowStage, TinyStage, pixels
from demo_model.stream import Layout, Streams
from demo_model.world import LENGTH
from safetensors.torch import load_file
from tiny_demo import PLAN, new_stage


@pytest.mark.parametrize("kind", STAGES)
def test_a_resumed_run_is_an_unbroken_one_bit_for_bit(kind, sizes, done, tmp_path, monkeypatch):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert Training(new_stage(kind, sizes, done), whole).run(1, 4, math.inf)
    with monkeypatch.context() as clock:
        clock.setattr("time.monotonic", itertools.count().__next__)
        assert not Training(new_stage(kind, sizes, done), broken).run(1, 4, deadline=1)
    assert load(broken / f"{kind.name}.pt")["step"] == 1
    assert Training(new_stage(kind, sizes, done), broken).run(1, 4, math.inf)
    first, second = (load(folder / f"{kind.name}.pt") for folder in (whole, broken))
    assert first["step"] == second["step"] == 4
    assert first["facts"] == second["facts"]
    assert all("param_groups" not in each for each in first["optimizer"]), "no rate, no device"
    began = new_stage(kind, sizes, done).network.state_dict()
    torch.testing.assert_close(first["ema"], second["ema"], rtol=0, atol=0)
    assert not any(torch.equal(value, began[name]) for name, value in first["ema"].items())


def test_a_stage_ends_by_the_clock_and_its_rate_with_it(sizes, done, tmp_path, monkeypatch):
    with monkeypatch.context() as clock:
        clock.setattr("time.monotonic", itertools.count(0, 10).__next__)
        assert Training(new_stage(TinyStage, sizes, done), tmp_path).run(0.5, None, math.inf)
    assert load(tmp_path / "tiny.pt")["step"] == 3  # Of ten seconds each.
    rates = [learning_rate(1e-3, step, step / 100) for step in range(101)]
    assert rates[:50] == sorted(set(rates[:50])), "it rises by steps"
    assert max(rates) == rates[50] == 1e-3
    assert rates[60:] == sorted(rates[60:], reverse=True)
    assert (rates[0] < 1e-4, rates[100]) == (True, 0)
    assert learning_rate(1e-3, 0, 0.3) < 1e-4, "however long a first step takes"


def test_a_row_without_a_finite_gradient_ends_the_run(sizes, done, tmp_path, monkeypatch):
    stage = new_stage(TinyStage, sizes, done)
    weights = [*stage.network.parameters()]
    stage.loss = lambda step, _: {
        "loss": sum(weight.sum() for weight in weights) * (torch.nan if step >= 20 else 1)
    }
    monkeypatch.setattr("time.monotonic", itertools.count(0, 10).__next__)
    with pytest.raises(FloatingPointError, match="tiny: no finite gradient from 20"):
        Training(stage, tmp_path).run(1, 60, math.inf)
    saved = load(tmp_path / "tiny.pt")
    assert (saved["step"], saved["seconds"]) == (20, 200), "steps and their time"
    with pytest.raises(FloatingPointError, match="tiny: no finite gradient from 20"):
        Training(stage, tmp_path).run(1, 23, math.inf)  # A row of three steps.


def test_the_optimizer_moves_weights_as_pytorch_does():
    network, other = torch.nn.Linear(3, 5), torch.nn.Linear(3, 5)
    other.load_state_dict(network.state_dict())
    ours = Optimizer(network)
    theirs = [
        torch.optim.Muon([other.weight], weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW([other.bias], betas=(0.9, 0.98), weight_decay=0.0),
    ]
    for step in range(8):
        for each in (network, other):
            torch.manual_seed(step)
            each.zero_grad()
            (each(torch.randn(7, 3)) ** 3).sum().backward()
        norm = torch.nn.utils.clip_grad_norm_(other.parameters(), 1.0)
        for optimizer in theirs:
            optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
            optimizer.step()
        torch.testing.assert_close(ours.step(0.1 / (step + 1)), norm)
        torch.testing.assert_close(network.state_dict(), other.state_dict())


def test_an_error_on_an_object_weighs_nine_times_as_much(sizes, done):
    frames, weight = new_stage(TinyStage, sizes, done).video(random.Random(0), 3, 2)
    assert weight.shape == (3, 1, *frames.shape[2:])
    errors = [(weight == value).float() for value in (1, 9)]
    ground, thing = (pixels(each, weight) / each.mean() for each in errors)
    assert float(thing / ground) == pytest.approx(9)


def test_errors_after_a_switch_weigh_as_much_as_planned(sizes, done):
    stage = new_stage(FlowStage, sizes, done)
    layout = Layout(range(4), known=1, switch=2)
    shelf = Shelf(
        Streams(layout, sizes.stream, stage.device),
        *(torch.rand(2, 4, 3, *shape) for shape in (sizes.stream.latent, (1, 1))),
        torch.ones(2, 2, LENGTH, dtype=torch.int64),
    )
    tokens, *batch = stage._batch(shelf, 2, torch.Generator().manual_seed(0))
    errors = []
    for weight in (0, 1, 3):
        stage.plan = replace(PLAN, after_switch=weight)
        errors.append(float(stage._error(shelf, (), *stage._embeds([tokens]), *batch)))
    none, once, thrice = errors
    assert 0 < none < once
    assert thrice - none == pytest.approx(3 * (once - none), rel=1e-4)


def test_the_tiny_stage_trains_what_vidc_runs(sizes, done):
    """Decoding and encoding of a clip are those of the part's components, block by block."""
    stage = new_stage(TinyStage, sizes, done)
    components = sizes.config.taehv_part.components(stage.network)
    latents = torch.randn(1, 6, 16, *sizes.stream.latent[1:])
    frames = 2 * torch.rand(1, 3, 21, *sizes.stream.video) - 1
    padded = torch.cat([frames, *[frames[:, :, -1:]] * 3], 2).transpose(1, 2)
    with torch.no_grad():
        whole = {"decode": stage.decode(latents).clamp(-1, 1).transpose(1, 2)}
        whole["encode"] = stage.encode(frames)
        for direction, inputs in (("decode", latents), ("encode", padded)):
            later = components[f"taehv_{direction}"]
            states = [torch.zeros(state.shape) for state in later.signature.states]
            modules = (components[f"taehv_{direction}_first"].module, later.module)
            halves = zip(modules, inputs.chunk(2, 1), strict=True)
            made = torch.cat([module(half, *states)[0] for module, half in halves], 1)
            torch.testing.assert_close(made, whole[direction], atol=1e-5, rtol=0)


def test_exported_weights_are_what_their_digests_say(sizes, preset, done, tmp_path, monkeypatch):
    export(done, sizes, preset, tmp_path)
    files = json.loads((tmp_path / "digests.json").read_text())["files"]
    vae = tomllib.loads((tmp_path / "preset.toml").read_text())["vae"]
    assert vae["latents_mean"] == pytest.approx(done["vae"]["facts"]["mean"], abs=1e-4)
    for name, entry in files.items():
        assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() == entry["sha256"]
    for part, stage in (("vae", "vae"), ("taehv", "tiny")):
        found = load_file(tmp_path / part / "diffusion_pytorch_model.safetensors")
        assert found.keys() == done[stage]["ema"].keys()
        assert all(torch.equal(found[n], w.half()) for n, w in done[stage]["ema"].items())
    twice = tmp_path / "preset.toml"
    twice.write_text(f"{twice.read_text()}latents_std = []\n")
    broken = {**done, "tiny": {**done["tiny"], "ema": {"x": torch.tensor([1e6])}}}
    for given, of, said in ((broken, preset, r"tiny\.x has values"), (done, twice, "has 2 lines")):
        with pytest.raises(ValueError, match=said):
            export(given, sizes, of, tmp_path)
    monkeypatch.setattr("demo_model.export.save_file", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export(done, sizes, preset, tmp_path)
    assert load_file(tmp_path / "vae/diffusion_pytorch_model.safetensors")
