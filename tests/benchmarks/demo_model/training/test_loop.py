"""What every training shares: checkpoints, schedules, logs and their loop."""

import json
from dataclasses import replace

import pytest
import torch
from demo_model.training import checkpoint, log
from demo_model.training.ema import Ema
from demo_model.training.loop import Options, generator, train
from demo_model.training.optimizer import optimizer_for
from demo_model.training.schedule import Schedule
from torch import nn


class Line:
    """A loss whose steps differ by chance alone."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        self.network = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def __call__(self, step: int):
        x = torch.randn(16, 4, generator=generator(7, step, 0, "cpu"))
        error = (self.network(x)[:, 0] - x.sum(1)).square().mean()
        return error, {"error": error}


def weights(folder) -> dict[str, torch.Tensor]:
    return checkpoint.trained(folder / "checkpoint")[0]


def test_a_resumed_training_takes_the_steps_of_an_unbroken_one(tmp_path):
    whole, broken, resumed = Line(), Line(), Line()
    train(Options(tmp_path / "whole", 1, steps=30, log_steps=5), whole.network, whole, {})

    def until_11(step: int):
        if step == 11:
            raise KeyboardInterrupt
        return broken(step)

    often = Options(tmp_path / "broken", 1, steps=30, log_steps=5, save_minutes=0)
    with pytest.raises(KeyboardInterrupt):
        train(often, broken.network, until_11, {})
    assert checkpoint.trained(tmp_path / "broken" / "checkpoint")[1]["step"] == 11
    train(often, resumed.network, resumed, {})
    expected, found = weights(tmp_path / "whole"), weights(tmp_path / "broken")
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
    steps = [row["step"] for row in log.read(tmp_path / "broken" / "log.jsonl")]
    assert steps[-1] == 29
    assert steps == sorted(set(steps))


def test_a_training_begins_with_another_s_mean_and_goes_on_with_its_own(tmp_path):
    first, second, third = Line(), Line(), Line()
    train(Options(tmp_path / "first", 1, steps=20, log_steps=5), first.network, first, {})
    mean = weights(tmp_path / "first")
    second_run = Options(tmp_path / "second", 1, steps=0, log_steps=5, begin=tmp_path / "first")
    train(second_run, second.network, second, {})
    for name, value in weights(tmp_path / "second").items():
        assert torch.equal(value, mean[name]), name
    # Where there is a checkpoint, that is what a run goes on from.
    train(replace(second_run, steps=10), second.network, second, {})
    moved = weights(tmp_path / "second")
    train(replace(second_run, steps=10), third.network, third, {})
    assert any(not torch.equal(moved[name], value) for name, value in mean.items())
    for name, value in moved.items():
        assert torch.equal(weights(tmp_path / "second")[name], value), name
    with pytest.raises(FileNotFoundError):
        train(replace(second_run, begin=tmp_path / "none"), Line().network, first, {})


def test_the_first_row_of_a_resumed_run_is_the_mean_of_its_own_steps(tmp_path):
    line = Line()
    train(Options(tmp_path, 1, steps=7, log_steps=5), line.network, line, {})
    (tmp_path / "log.jsonl").unlink()
    train(Options(tmp_path, 1, steps=10, log_steps=5), line.network, lambda step: line(3), {})
    (row,) = log.read(tmp_path / "log.jsonl")
    assert row["step"] == 9
    # The same batch each time, and a rate that is nearly nothing.
    assert row["loss"] == pytest.approx(line(3)[0].item(), rel=0.05)


def test_training_lowers_the_loss_and_keeps_the_mean_of_weights(tmp_path):
    line = Line()
    train(Options(tmp_path, 1, steps=300, rate=0.02, log_steps=50), line.network, line, {"a": 1})
    rows = log.read(tmp_path / "log.jsonl")
    assert rows[-1]["loss"] < 0.2 * rows[0]["loss"]
    mean, state = checkpoint.trained(tmp_path / "checkpoint")
    assert state["step"] == 300
    assert state["a"] == 1
    own = dict(line.network.named_parameters())
    assert any(not torch.equal(own[name], value) for name, value in mean.items())


def test_a_run_stops_in_time_and_the_finishing_one_ends_its_schedule(tmp_path):
    line = Line()
    # What torch imports when it is first used takes longer than this run may.
    train(Options(tmp_path / "first", 1, steps=1), line.network, line, {})
    taken = train(Options(tmp_path, 0.01, log_steps=5), line.network, line, {})
    assert taken > 0
    train(Options(tmp_path, 0.02, finish=True, log_steps=5), line.network, line, {})
    state = json.loads((tmp_path / "checkpoint" / "state.json").read_text())
    assert state["schedule"]["end"] is not None
    assert state["step"] > taken


def test_a_finished_training_goes_on_with_a_schedule_of_its_own(tmp_path):
    line = Line()
    train(Options(tmp_path, 1, steps=10, log_steps=1), line.network, line, {})
    train(Options(tmp_path, 0.02, log_steps=1), line.network, line, {})
    state = json.loads((tmp_path / "checkpoint" / "state.json").read_text())
    assert state["step"] > 10
    assert state["schedule"]["end"] is None
    rates = [row["rate"] for row in log.read(tmp_path / "log.jsonl")]
    assert rates[9] < rates[10]


def test_steps_whose_gradients_are_not_finite_change_nothing(tmp_path):
    line = Line()
    before = {name: value.clone() for name, value in line.network.state_dict().items()}

    def broken(step: int):
        value, parts = line(step)
        return value * float("nan"), parts

    with pytest.raises(FloatingPointError):
        train(Options(tmp_path, 1, steps=30), line.network, broken, {})
    assert all(torch.equal(before[n], v) for n, v in line.network.state_dict().items())


def test_an_interrupted_save_leaves_the_checkpoint_before_it(tmp_path, monkeypatch):
    network = nn.Linear(2, 2)
    training = checkpoint.Training(network, Ema(network), optimizer_for(network))
    checkpoint.save(tmp_path / "c", training, {"step": 1})
    rename = checkpoint.os.rename

    def failing(source, target):
        if source.name.endswith(".new"):
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(checkpoint.os, "rename", failing)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(tmp_path / "c", training, {"step": 2})
    assert checkpoint.exists(tmp_path / "c")
    assert checkpoint.restore(tmp_path / "c", training)["step"] == 1


def test_a_checkpoint_of_another_network_is_refused(tmp_path):
    network = nn.Linear(2, 2)
    training = checkpoint.Training(network, Ema(network), optimizer_for(network))
    checkpoint.save(tmp_path / "c", training, {"step": 1})
    other = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(RuntimeError, match="another network"):
        checkpoint.restore(
            tmp_path / "c", checkpoint.Training(other, Ema(other), optimizer_for(other))
        )


def test_rates_rise_stay_and_fall():
    schedule = Schedule(1.0, warmup=10, fall=20, end=30)
    assert [schedule(step) for step in (0, 9, 19, 25, 30)] == [0.1, 1.0, 1.0, 0.5, 0.0]
    assert schedule.over(30)
    assert not schedule.over(29)
    assert not Schedule(1.0).over(10**9)
    with pytest.raises(ValueError, match="ends"):
        Schedule(1.0, fall=3)


def test_a_mean_of_weights_takes_their_place_for_a_while():
    network = nn.Linear(1, 1, bias=False)
    network.weight.data.fill_(0.0)
    ema = Ema(network, decay=0.5)
    network.weight.data.fill_(1.0)
    ema.update(step=10**6)
    with ema.applied():
        assert network.weight.item() == 0.5
    assert network.weight.item() == 1.0


def test_a_table_shows_the_first_and_the_last_row():
    rows = [{"step": i, "loss": 1 / (i + 1)} for i in range(100)]
    lines = log.table(rows, most=3).splitlines()
    assert [line.split()[0] for line in lines] == ["step", "0", "50", "99"]
