"""Training on latents: what shelves hold, and that steps on them teach and repeat."""

from dataclasses import replace

import pytest
import torch
from demo_model.split import Split, sample
from demo_model.switch import sample_switch
from demo_model.tokens import END, PAD
from demo_model.train_flow import Batches, FlowLoss, networks_of, run, trainable
from demo_model.training import checkpoint, log, shelves
from demo_model.training.batches import draw_batch, flow_loss, without_prompt
from demo_model.training.clips import Prompted
from demo_model.training.flow import clean_of, draw_levels, noised, shifted
from demo_model.training.layout import Pass
from demo_model.training.loop import Options, generator
from demo_model.training.shelves import Shelves


def test_levels_are_those_of_the_sampler(sizes):
    sampler = sizes.config.sampler
    shares = torch.tensor(sampler.steps) / 1000
    expected = torch.tensor(sampler.sigmas)
    torch.testing.assert_close(shifted(shares, sampler.shift), expected)
    drawn = draw_levels((40, 25), sampler.shift, torch.Generator().manual_seed(1))
    assert drawn.shape == (40, 25)
    assert 0 <= drawn.min() < 0.01
    assert 0.999 < drawn.max() <= 1
    # Half of the sampler's time is above the level of its middle.
    middle = float(shifted(torch.tensor(0.5), sampler.shift))
    assert float((drawn > middle).float().mean()) == pytest.approx(0.5, abs=0.01)


def test_a_flow_leads_back_to_the_clean_latent():
    clean, noise = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    level = torch.tensor([0.3, 0.9])
    noisy = noised(clean, noise, level)
    torch.testing.assert_close(noisy[1], 0.1 * clean[1] + 0.9 * noise[1])
    torch.testing.assert_close(clean_of(noisy, noise - clean, level), clean)


def test_a_stretch_from_far_on_is_the_stream_s(encoder, monkeypatch):
    """With all that the encoder's memory spans before it; fewer frames leave a part of that out."""
    prompted = Prompted([sample(Split.TRAIN, 1).clip], [("", "")])
    whole = encoder.blocks(prompted, 0, 11)[0][:, 10:].float()
    errors = []
    for warm_up in (28, 6, 1):
        monkeypatch.setattr(shelves, "WARM_UP", warm_up)
        stretch = encoder.blocks(prompted, 10, 1)[0].float()
        errors.append(float((whole - stretch).square().mean().sqrt() / whole.std()))
    assert errors[0] < 0.01
    assert errors[0] < errors[1] < errors[2]


def test_shelves_follow_from_their_numbers(encoder, shelf_plan):
    first, again = (Shelves(encoder, shelf_plan, seed=1) for _ in range(2))
    for step in (0, 3, 9, 17):
        one = first.clips(step)
        other = again.clips(step) if step > 3 else one
        assert torch.equal(one.latents, other.latents)
        assert one.layout == other.layout
    layouts = [first._clips(number).layout for number in range(8)]
    assert any(layout.positions[1] > 1 for layout in layouts)
    assert any(layout.of(Pass.RECACHED) for layout in layouts)
    for layout in layouts:
        noisy = [layout.groups[group] for group in layout.of(Pass.NOISY)]
        far = layout.positions[1] > 1
        # From far on, whatever is noisy sees the sink and the two blocks before.
        assert all(len(group.keys) == 4 for group in noisy if far)
        assert [group.index for group in noisy] == list(range(3 if far else 0, 5))


def test_a_switch_shows_from_its_block_on(sizes, encoder, shelf_plan):
    """The latents of a switched shelf leave those of the unswitched clips where the prompt does."""
    made = Shelves(encoder, shelf_plan, seed=1)
    number = next(n for n in range(20) if made._clips(n).layout.of(Pass.RECACHED))
    shelf = made._clips(number)
    turn = min(g.index for g in shelf.layout.groups if g.prompt and g.kind is Pass.NOISY)
    prompts = shelf.tokens
    assert all(not torch.equal(*pair) for pair in prompts)
    first = made._first(number)
    unswitched = [sample_switch(Split.TRAIN, first + i).before.clip for i in range(2)]
    start = shelf.layout.positions[1]
    plain, _ = encoder.blocks(Prompted(unswitched, [("", "")] * 2), start, 4)
    for index in range(1, 5):
        same = torch.allclose(shelf.latents[:, index], plain[:, index - 1], atol=2e-3)
        assert same == (index < turn)


def test_a_share_of_prompts_is_left_out():
    tokens = torch.full((400, 2, 8), 5)
    found = without_prompt(tokens, 0.25, torch.Generator().manual_seed(1))
    empty = (found[..., 0] == END) & (found[..., 1:] == PAD).all(-1)
    assert torch.equal(empty[:, 0], empty[:, 1])
    assert float(empty[:, 0].float().mean()) == pytest.approx(0.25, abs=0.06)
    assert torch.equal(found[~empty[:, 0]], tokens[~empty[:, 0]])


def test_training_lowers_the_loss(sizes, vae_folder, tmp_path, shelf_plan):
    options = Options(tmp_path, 3, steps=60, rate=5e-3, warmup=5, log_steps=6)
    run(options, sizes, vae_folder, shelf_plan, Batches(clips=1, starts=4))
    rows = log.read(tmp_path / "log.jsonl")
    assert rows[-1]["starts"] < 0.85 * rows[0]["starts"]
    assert rows[-1]["clips"] < 0.8 * rows[0]["clips"]
    state = checkpoint.trained(tmp_path / "checkpoint")[1]
    assert len(state["std"]) == 16


def test_a_step_is_the_same_whichever_run_takes_it(sizes, encoder, tmp_path, shelf_plan):
    options = Options(tmp_path, 1)
    torch.manual_seed(1)
    networks = networks_of(trainable(sizes), sizes, shelf_plan.farthest, options)
    values = []
    for past in (range(11), (10,)):
        loss = FlowLoss(networks, Shelves(encoder, shelf_plan, 0), sizes, Batches(1, 2), options)
        with torch.no_grad():
            values.append([float(loss(step)[0]) for step in past][-1])
    assert values[0] == values[1]


def test_both_networks_learn_from_both_parts(sizes, encoder, tmp_path, shelf_plan):
    """No parameter is left without a gradient, but for what a flow of zero at first cuts off."""
    options = Options(tmp_path, 1)
    torch.manual_seed(1)
    modules = trainable(sizes)
    torch.nn.init.normal_(modules["transformer"].proj_out.weight, std=0.02)
    networks = networks_of(modules, sizes, shelf_plan.farthest, options)
    loss = FlowLoss(networks, Shelves(encoder, shelf_plan, 0), sizes, Batches(1, 2), options)
    loss(0)[0].backward()
    # A bias of keys moves no softmax.
    idle = [n for n, p in modules.named_parameters() if p.grad is None or not p.grad.any()]
    assert idle == []


def test_a_batch_is_of_different_rows(encoder, shelf_plan):
    shelf = Shelves(encoder, shelf_plan, 0)._starts(0)
    batch = draw_batch(shelf, 3, generator(0, 0, 0, "cpu"))
    rows = {tuple(row.flatten()[:8].tolist()) for row in batch.latents}
    assert len(rows) == 3
    assert shelf.layout.full


def test_an_object_counts_for_more_the_less_noise_there_is(sizes, encoder, shelf_plan, tmp_path):
    """Whoever is wrong by one everywhere errs by one, and by more where weights are more."""
    options = Options(tmp_path, 1)
    modules = trainable(sizes)  # Its flow is zero, so the error is the flow itself.
    networks = networks_of(modules, sizes, shelf_plan.farthest, options)
    shelf = Shelves(encoder, shelf_plan, 0)._starts(0)

    def losses(emphasis: float, shown: bool) -> tuple[float, float]:
        draw = generator(0, 0, 0, "cpu")
        batch = draw_batch(shelf, 4, draw)
        batch = replace(batch, shown=torch.full_like(batch.shown, shown))
        with torch.no_grad():
            taught, plain = flow_loss(networks, batch, 5.0, emphasis, 0.0, draw)
        return float(taught), float(plain)

    plain = losses(0.0, True)
    assert plain[0] == plain[1]
    assert losses(8.0, False) == plain
    heavier = losses(8.0, True)
    assert heavier[1] == plain[1]
    # Half of the sampler's time is spent above five sixths of noise.
    assert 1.5 < heavier[0] / plain[0] < 5
