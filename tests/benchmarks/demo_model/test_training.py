"""Stages, their checkpoints and the export."""

import hashlib
import json
import time

import pytest
import torch
from demo_model.export import export
from demo_model.loop import Budget, Optimizer, learning_rate, load, train
from demo_model.stages import MINUTES, build
from safetensors.torch import load_file

STEPS = 4


def stage_of(name, sizes, plan, done):
    torch.manual_seed(0)
    return build(name, sizes, plan, "cpu", 0, done)


@pytest.mark.parametrize("name", MINUTES)
def test_a_resumed_run_is_an_unbroken_one_bit_for_bit(name, sizes, plan, done, tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for folder in (whole, broken):
        folder.mkdir()
    never = time.monotonic() + 1e6
    assert train(stage_of(name, sizes, plan, done), 1e-3, Budget(1, STEPS), whole, never)
    interrupted = stage_of(name, sizes, plan, done)
    backward, steps = interrupted.backward, []

    def until_third(step, progress):
        if step == 2:
            raise KeyboardInterrupt
        steps.append(step)
        return backward(step, progress)

    # A run that stops in time and one that ends: the second builds its clips anew.
    assert not train(interrupted, 1e-3, Budget(1, STEPS), broken, time.monotonic() - 1)
    interrupted.backward = until_third
    with pytest.raises(KeyboardInterrupt):
        train(interrupted, 1e-3, Budget(1, STEPS), broken, never)
    assert steps == [0, 1]
    assert train(stage_of(name, sizes, plan, done), 1e-3, Budget(1, STEPS), broken, never)
    first, second = (load(folder / f"{name}.pt") for folder in (whole, broken))
    assert first["step"] == second["step"] == STEPS
    assert first["facts"] == second["facts"]
    for key in ("network", "ema"):
        for weight, value in first[key].items():
            assert torch.equal(value, second[key][weight]), weight


def test_a_stage_ends_by_the_clock_and_its_rate_with_it():
    budget = Budget(minutes=2)
    assert budget.progress(999, 60) == 0.5
    assert budget.progress(1, 120) == 1
    rates = [learning_rate(1e-3, progress / 100) for progress in range(101)]
    assert max(rates) == rates[50] == 1e-3
    assert rates[0] < 1e-4
    assert rates[100] == 0
    assert rates[60:] == sorted(rates[60:], reverse=True)


def test_muon_changes_a_convolution_in_place():
    network = torch.nn.Sequential(torch.nn.Conv3d(2, 4, 3), torch.nn.GroupNorm(1, 4))
    before = {name: weight.detach().clone() for name, weight in network.named_parameters()}
    network(torch.randn(1, 2, 4, 4, 4)).square().mean().backward()
    Optimizer(network).step(1e-2)
    for name, weight in network.named_parameters():
        assert not torch.equal(weight, before[name]), name


def test_a_row_of_steps_without_a_gradient_ends_the_run(sizes, plan, done, tmp_path):
    stage = stage_of("tiny", sizes, plan, done)
    weight = next(iter(stage.network.parameters()))
    stage.loss = lambda step, progress: {"loss": (weight * torch.nan).sum()}
    with pytest.raises(FloatingPointError, match="tiny: no finite gradient"):
        train(stage, 1e-3, Budget(1, 20), tmp_path, time.monotonic() + 1e6)


def test_the_tiny_stage_trains_what_vidc_runs(sizes, plan, done):
    """Decoding and encoding of a clip are those of the part's components, block by block."""
    stage, part = stage_of("tiny", sizes, plan, done), sizes.config.taehv_part
    components = part.components(stage.network)
    latents = torch.randn(1, 6, 16, *sizes.stream.latent[1:])
    frames = 2 * torch.rand(1, 3, 21, *sizes.stream.video) - 1
    padded = torch.cat([frames, *[frames[:, :, -1:]] * 3], 2).transpose(1, 2)
    with torch.no_grad():
        whole = {"decode": stage._decode(latents).clamp(-1, 1).transpose(1, 2)}
        whole["encode"] = stage._encode(frames)
        for direction, inputs in (("decode", latents), ("encode", padded)):
            names = [name for name in components if direction in name]
            first, later = sorted(names, key=lambda name: "first" not in name)
            states = [torch.zeros(s.shape) for s in components[later].signature.states]
            halves = inputs.chunk(2, 1)
            made = [
                components[name].module(half, *states)[0]
                for name, half in zip((first, later), halves, strict=True)
            ]
            torch.testing.assert_close(torch.cat(made, 1), whole[direction], atol=1e-5, rtol=0)


def test_exported_weights_are_what_their_digests_say(sizes, preset, done, tmp_path):
    document = export(done, sizes, preset, tmp_path / "weights")
    assert document == json.loads((tmp_path / "weights/digests.json").read_text())
    for name, entry in document["files"].items():
        data = (tmp_path / "weights" / name).read_bytes()
        assert hashlib.sha256(data).hexdigest() == entry["sha256"]
    vae = load_file(tmp_path / "weights/vae/diffusion_pytorch_model.safetensors")
    for name, tensor in done["vae"]["ema"].items():
        assert torch.equal(vae[name], tensor.half())
    broken = {**done, "tiny": {**done["tiny"], "ema": {"x": torch.tensor([1e6])}}}
    with pytest.raises(ValueError, match="taehv: x has values"):
        export(broken, sizes, preset, tmp_path / "other")
