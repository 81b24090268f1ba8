"""Rolling a stream out, and teaching it few steps."""

from dataclasses import replace

import pytest
import torch
from demo_model import train_few_step
from demo_model.train_few_step import Batches, FewStepLoss, run, subsets
from demo_model.train_flow import load_trained, networks_of
from demo_model.training import log
from demo_model.training.batches import Networks, flows_of
from demo_model.training.flow import clean_of
from demo_model.training.forward import Angles, text_keys_values
from demo_model.training.layout import clip_layout
from demo_model.training.loop import Options, train
from demo_model.training.lowered import in_bf16
from demo_model.training.networks import new_text_encoder
from demo_model.training.rollout import Stream, few_steps, follow_flow
from demo_model.training.shelves import Shelves

SMALL = Batches(clips=1, starts=2, flow_steps=4)


@pytest.fixture(scope="module")
def networks(sizes, model) -> Networks:
    return Networks(model, new_text_encoder(sizes), Angles(sizes.stream, 12, torch.device("cpu")))


@pytest.mark.parametrize("switch", [None, 2, 5])
def test_a_rolled_out_stream_is_a_session_s(open_session, networks, sizes, model, switch):
    """Seven blocks in four steps each, from the noise that the session is given."""
    spec = sizes.stream
    generator = torch.Generator().manual_seed(3)
    embeds = torch.randn(1, 2, *spec.text, generator=generator)
    session = open_session(model, spec)
    session.prompt(embeds[:, 0])
    stream = Stream(networks, spec, text_keys_values(model, embeds))
    for block in range(7):
        if block == switch:
            session.switch_prompt(embeds[:, 1])
            stream.switch_prompt(block)
        noise = torch.randn(4, 1, spec.block, *spec.latent, generator=generator)
        expected = session.generate(noise)
        steps = few_steps(stream, noise, spec.sigmas, block)
        latent = steps[-1][1]
        torch.testing.assert_close(latent, expected, atol=1e-3, rtol=0)
        assert len(steps) == 4
        assert torch.equal(steps[0][0], noise[0])
        stream.remember(latent, block)


@pytest.mark.parametrize(("positions", "switch", "own"), [
    ((0, 1, 2, 3, 4, 5), None, 1),
    ((0, 1, 2, 3, 4, 5), 3, 2),
    ((0, 8, 9, 10, 11), 4, 3),
])  # fmt: skip
def test_one_forward_finds_what_the_stream_found(networks, sizes, model, positions, switch, own):
    spec = sizes.stream
    text = text_keys_values(model, torch.randn(2, 2, *spec.text))
    stream = Stream(networks, spec, text)
    blocks, noisy, found = [], [], []
    for index, block in enumerate(positions):
        if index == switch:
            stream.switch_prompt(block)
        steps = few_steps(stream, torch.randn(4, 2, spec.block, *spec.latent), spec.sigmas, block)
        blocks.append(steps[-1][1])
        if index >= own:
            noisy.append(steps[2][0])
            found.append(steps[2][1])
        stream.remember(blocks[-1], block)
    groups = clip_layout(positions, spec, switch, own).tensors()
    noisy = torch.stack(noisy, 1)
    level = torch.full(noisy.shape[:2], spec.sigmas[2])
    flows = flows_of(networks, groups, torch.stack(blocks, 1), noisy, level, text)
    torch.testing.assert_close(
        clean_of(noisy, flows, level), torch.stack(found, 1), atol=1e-3, rtol=0
    )


def test_versions_of_a_block_do_not_see_each_other(networks, sizes, model):
    spec = sizes.stream
    stream = Stream(networks, spec, text_keys_values(model, torch.randn(1, 1, *spec.text)))
    latents = torch.randn(1, 3, spec.block, *spec.latent)
    stream.remember(latents[:, 2], 0)
    levels = torch.tensor([[0.9, 0.4]])
    both = stream.flows(latents[:, :2], levels, 1)
    for index in range(2):
        one = slice(index, index + 1)
        alone = stream.flows(latents[:, one], levels[:, one], 1)
        torch.testing.assert_close(both[:, one], alone, atol=1e-4, rtol=0)


class Gaussian:
    """A stream whose data are normal with this deviation: its flow and where it leads are known."""

    def __init__(self, deviation: float, center: float = 0.0) -> None:
        self.deviation, self.center = deviation, center

    def flows(self, latents, levels, block):
        level = levels.view(1, 1, 1)
        variance = (1 - level) ** 2 * self.deviation**2 + level**2
        about = latents - (1 - level) * self.center
        mean = (level - (1 - level) * self.deviation**2) / variance
        return about * mean - self.center


@pytest.mark.parametrize("level", [1.0, 0.625])
def test_a_flow_is_followed_to_where_it_leads(level):
    """Of normal data that is a scale, by the ratio of deviations."""
    levels = torch.linspace(level, 0, 65).tolist()
    latent = torch.randn(1, 1, 64)
    found = follow_flow(Gaussian(0.7), latent, levels, 0)
    scale = 0.7 / (((1 - level) * 0.7) ** 2 + level**2) ** 0.5
    torch.testing.assert_close(found, latent * scale, atol=5e-3, rtol=0)


def test_guidance_goes_further_the_prompt_s_way():
    levels = torch.linspace(1, 0, 17).tolist()
    latent = torch.randn(1, 1, 64)
    plain = follow_flow(Gaussian(0.5, 1.0), latent, levels, 0)
    none = follow_flow(Gaussian(0.5, 1.0), latent, levels, 0, Gaussian(0.5, 0.0), 1.0)
    far = follow_flow(Gaussian(0.5, 1.0), latent, levels, 0, Gaussian(0.5, 0.0), 2.0)
    assert torch.equal(plain, none)
    assert (far > plain + 0.5).all()


def test_fewer_steps_begin_and_end_as_all_do():
    assert subsets((1.0, 0.9, 0.8, 0.6)) == [(1.0, 0.9, 0.8, 0.6), (1.0, 0.6), (1.0, 0.8, 0.6)]
    assert subsets((1.0,)) == [(1.0,)]


def test_training_runs_from_a_flow(sizes, vae_folder, trained_folder, shelf_plan, tmp_path):
    options = Options(tmp_path, 3, steps=2, log_steps=1)
    run(options, sizes, vae_folder, trained_folder, shelf_plan, SMALL)
    assert len(log.read(tmp_path / "log.jsonl")) == 2
    moved = load_trained(tmp_path, sizes, "cpu").state_dict()
    begun = load_trained(trained_folder, sizes, "cpu").state_dict()
    assert any(not torch.equal(moved[name], value) for name, value in begun.items())


def test_training_lowers_the_loss(sizes, encoder, trained_folder, shelf_plan, tmp_path):
    """On the same clips over and over, because every shelf is as hard as its clips are."""
    options = Options(tmp_path, 3, steps=16, rate=5e-3, warmup=1, log_steps=2)
    modules = load_trained(trained_folder, sizes, "cpu")
    teacher = load_trained(trained_folder, sizes, "cpu").requires_grad_(False)
    loss = FewStepLoss(
        networks_of(modules, sizes, shelf_plan.farthest, options),
        networks_of(teacher, sizes, 1, options),
        Shelves(encoder, shelf_plan, 1),
        sizes,
        SMALL,
        options,
    )
    train(options, modules, lambda step: loss(0), {})
    rows = log.read(tmp_path / "log.jsonl")
    assert rows[-1]["clips"] < 0.8 * rows[0]["clips"]


@pytest.mark.parametrize("bf16", [False, True])
def test_a_loss_reaches_what_made_the_history(
    sizes, encoder, trained_folder, shelf_plan, tmp_path, monkeypatch, bf16
):
    """Both networks learn, the teacher does not, and a step follows from its number."""
    if bf16:
        monkeypatch.setattr(train_few_step, "lowered", lambda net, _, use: in_bf16(net, use))
    options = Options(tmp_path, 1)
    modules = load_trained(trained_folder, sizes, "cpu")
    frozen = load_trained(trained_folder, sizes, "cpu").requires_grad_(False)
    student = networks_of(modules, sizes, shelf_plan.farthest, options)
    teacher = networks_of(frozen, sizes, 1, options)

    def loss() -> FewStepLoss:
        return FewStepLoss(student, teacher, Shelves(encoder, shelf_plan, 1), sizes, SMALL, options)

    value, parts = loss()(0)
    value.backward()
    idle = [n for n, p in modules.named_parameters() if p.grad is None or not p.grad.any()]
    assert idle == []
    assert all(p.grad.isfinite().all() for p in modules.parameters())
    assert set(parts) == {"clips", "last block", "starts"}
    assert all(parameter.grad is None for parameter in frozen.parameters())
    with torch.no_grad():
        assert float(loss()(3)[0]) == float(loss()(3)[0])


def test_a_teacher_of_few_steps_is_taken_at_its_word(
    sizes, encoder, trained_folder, shelf_plan, tmp_path
):
    """So first blocks of a student that is still the teacher have nothing to learn."""
    options = Options(tmp_path, 1)
    modules = load_trained(trained_folder, sizes, "cpu").requires_grad_(False)
    networks = networks_of(modules, sizes, shelf_plan.farthest, options)

    def starts(flow_steps: int) -> float:
        plan = replace(SMALL, flow_steps=flow_steps)
        shelves = Shelves(encoder, shelf_plan, 1)
        return float(FewStepLoss(networks, networks, shelves, sizes, plan, options)(0)[1]["starts"])

    assert starts(1) < 1e-9 < starts(8)
