"""Reading attributes off latents, and teaching a model to be read as its prompts say."""

import json
import math

import pytest
import torch
from demo_model import train_following
from demo_model.attributes import Colour, Direction, Scene, Shape, Thing
from demo_model.export_weights import export
from demo_model.import_weights import import_weights
from demo_model.palette import OBJECTS
from demo_model.train_flow import load_trained, networks_of
from demo_model.train_following import Batches, FollowingLoss
from demo_model.train_reader import ReaderLoss, load_reader, new_reader
from demo_model.train_reader import run as run_reader
from demo_model.train_vae import load_vae
from demo_model.training import checkpoint, log
from demo_model.training.loop import Options, train
from demo_model.training.lowered import in_bf16
from demo_model.training.reader import ABSENT, attributes_of, reading_loss
from demo_model.training.shelves import Shelves

SMALL = Batches(clips=1, starts=2)


@pytest.fixture(scope="module")
def reader_folder(sizes, vae_folder, shelf_plan, tmp_path_factory):
    folder = tmp_path_factory.mktemp("reader")
    run_reader(Options(folder, 3, steps=2, log_steps=1), sizes, vae_folder, shelf_plan, (1, 2), 4)
    return folder


def test_attributes_are_those_of_each_colour_s_object():
    red = Thing(Shape.STAR, Colour.RED, Direction.LEFT)
    blue = Thing(Shape.CIRCLE, Colour.BLUE, Direction.LEFT_AND_RIGHT)
    found = attributes_of([Scene((red, blue)), Scene((blue,))])
    assert found.shape == (2, 6, 2)
    colours = list(OBJECTS)
    expected = torch.full((2, 6, 2), ABSENT)
    expected[0, colours.index(Colour.RED)] = torch.tensor([4, 1])
    expected[:, colours.index(Colour.BLUE)] = torch.tensor([1, 5])
    assert torch.equal(found, expected)


def test_a_shelf_says_what_each_block_of_a_clip_shows(encoder, shelf_plan):
    shelves = Shelves(encoder, shelf_plan, 1)
    for step in range(12):
        shelf = shelves.clips(step)
        switch = shelf.layout.switch
        batch = train_following.draw_batch(shelf, 2, torch.Generator().manual_seed(step))
        before, after = batch.attributes[:, 0], batch.attributes[:, -1]
        assert torch.equal(before, after) == (switch is None)
        if switch is not None:
            assert torch.equal(batch.attributes[:, switch], after)
            assert torch.equal(batch.attributes[:, switch - 1], before)


def test_a_reader_does_not_mind_where_objects_are(sizes):
    """Edges are joined."""
    reader = new_reader(sizes)
    latents = torch.randn(2, 3, 16, 8, 8)
    moved = latents.roll((3, 5), (3, 4))
    for one, other in zip(reader(latents), reader(moved), strict=True):
        assert one.shape == (2, 6, 7)
        torch.testing.assert_close(one, other, atol=1e-4, rtol=0)


def test_a_reader_learns_its_clips(sizes, encoder, shelf_plan, tmp_path):
    options = Options(tmp_path, 3, steps=24, rate=3e-3, warmup=1, log_steps=4)
    reader = new_reader(sizes)
    loss = ReaderLoss(reader, Shelves(encoder, shelf_plan, 1), (1, 2), options)
    train(options, reader, lambda step: loss(0), {})
    rows = log.read(tmp_path / "log.jsonl")
    assert rows[-1]["shape"] < 0.5 * rows[0]["shape"]


def test_a_trained_reader_is_loaded_frozen(sizes, reader_folder):
    reader = load_reader(reader_folder, sizes, "cpu")
    assert not any(parameter.requires_grad for parameter in reader.parameters())


def test_training_runs(sizes, vae_folder, trained_folder, reader_folder, shelf_plan, tmp_path):
    folders = {"vae": vae_folder, "few": trained_folder, "reader": reader_folder}
    options = Options(tmp_path, 3, steps=2, log_steps=1)
    train_following.run(options, sizes, folders, shelf_plan, SMALL)
    assert len(log.read(tmp_path / "log.jsonl")) == 2
    moved = load_trained(tmp_path, sizes, "cpu").state_dict()
    begun = load_trained(trained_folder, sizes, "cpu").state_dict()
    assert any(not torch.equal(moved[name], value) for name, value in begun.items())


def following(sizes, encoder, trained_folder, reader_folder, shelf_plan, options, batches=SMALL):
    modules = load_trained(trained_folder, sizes, "cpu")
    fixed = load_trained(trained_folder, sizes, "cpu").requires_grad_(False)
    student = networks_of(modules, sizes, shelf_plan.farthest, options)
    before = networks_of(fixed, sizes, 1, options)
    reader = load_reader(reader_folder, sizes, "cpu")
    shelves = Shelves(encoder, shelf_plan, 1)
    loss = FollowingLoss(student, before, reader, shelves, sizes, batches, options)
    return loss, modules, fixed


@pytest.mark.parametrize("bf16", [False, True])
def test_a_loss_reaches_both_networks_and_nothing_else(
    sizes, encoder, trained_folder, reader_folder, shelf_plan, tmp_path, monkeypatch, bf16
):
    if bf16:
        monkeypatch.setattr(train_following, "lowered", lambda net, _, use: in_bf16(net, use))
    options = Options(tmp_path, 1)
    loss, modules, fixed = following(
        sizes, encoder, trained_folder, reader_folder, shelf_plan, options
    )
    value, parts = loss(0)
    value.backward()
    idle = [n for n, p in modules.named_parameters() if p.grad is None or not p.grad.any()]
    assert idle == []
    assert all(p.grad.isfinite().all() for p in modules.parameters())
    assert all(parameter.grad is None for parameter in fixed.parameters())
    # Nothing has been taught yet, so the model finds what it found before.
    assert float(parts["starts error"]) < (1e-3 if bf16 else 1e-9)
    with torch.no_grad():
        assert float(loss(3)[0]) == float(loss(3)[0])


def test_what_is_taught_is_read_better(
    sizes, encoder, trained_folder, reader_folder, shelf_plan, tmp_path
):
    options = Options(tmp_path, 3, steps=12, rate=5e-3, warmup=1, log_steps=2)
    batches = Batches(clips=1, starts=2, reading=1.0)
    loss, modules, _ = following(
        sizes, encoder, trained_folder, reader_folder, shelf_plan, options, batches
    )
    train(options, modules, lambda step: loss(0), {})
    rows = log.read(tmp_path / "log.jsonl")
    assert rows[-1]["starts doubt"] < rows[0]["starts doubt"]


def test_a_training_goes_on_from_shipped_weights(sizes, vae_folder, trained_folder, tmp_path):
    export(vae_folder, trained_folder, tmp_path / "shipped", sizes)
    import_weights(tmp_path / "shipped", tmp_path / "again", sizes)
    before = load_trained(trained_folder, sizes, "cpu").state_dict()
    after = load_trained(tmp_path / "again/few", sizes, "cpu").state_dict()
    for name, tensor in before.items():
        assert torch.equal(tensor.half().float(), after[name]), name
    vae, statistics = load_vae(tmp_path / "again/vae", sizes, "cpu")
    assert statistics.mean == tuple(sizes.config.vae.latents_mean)
    assert vae.state_dict().keys() == load_vae(vae_folder, sizes, "cpu")[0].state_dict().keys()
    assert json.loads((tmp_path / "again/vae/latents.json").read_text())["std"]
    told = checkpoint.trained(tmp_path / "again/few/checkpoint")[1]
    assert told["part"] == "few"


def test_the_reader_s_scale(sizes, reader_folder):
    """Cross entropies are sums over the six colours: of equal chances, six logarithms of seven."""
    reader = load_reader(reader_folder, sizes, "cpu")
    for head in (reader.shape, reader.direction):
        torch.nn.init.zeros_(head.weight)
        torch.nn.init.zeros_(head.bias)
    wanted = attributes_of([Scene((Thing(Shape.STAR, Colour.RED, Direction.LEFT),))])
    shape, direction, _ = reading_loss(reader, torch.randn(1, 3, 16, 8, 8), wanted)
    assert float(shape.mean()) == pytest.approx(6 * math.log(7), rel=1e-5)
    assert float(direction.mean()) == pytest.approx(float(shape.mean()))
