"""Choices of forms with injected times: the rule, the record, and what a build says of them."""

import json
from functools import partial

import pytest
import torch

from vidc.compiler.backends.aoti import convolution_choices, convolution_timing
from vidc.compiler.backends.aoti.convolution_choices import (
    BUDGET_SECONDS,
    MARGIN,
    Chooser,
    Decided,
    decide,
    engine_chooser,
)
from vidc.compiler.backends.aoti.convolution_forms import Form, Sizes, by_rule
from vidc.compiler.backends.aoti.convolution_timing import Times, measure_forms
from vidc.compiler.store.sources import source_modules

SMALL = Sizes(384, 384, 3, 60, 104, operator=True)
LARGE = Sizes(192, 192, 12, 240, 416, operator=True)
IMAGES = Sizes(384, 192, 12, 120, 208, upsampled=True)
DIRECT, F3 = Form.DIRECT, Form.F3


class Gpu:
    """Measures: the times of each call, and the sizes that were asked for."""

    def __init__(self, *times: Times) -> None:
        self.times, self.asked = list(times), []

    def __call__(self, sizes: Sizes) -> Times:
        self.asked.append(sizes)
        return self.times.pop(0)


def slower(factor: float) -> Times:
    """Times of a shape for which the rule's F(3, 3) takes so many times as long as conv3d."""
    return Times({DIRECT: 0.4, F3: 0.4 * factor}, {})


@pytest.mark.parametrize(
    ("factor", "form"), [(0.5, F3), (1.0, F3), (1.04, F3), (1.06, DIRECT), (2.0, DIRECT)]
)
def test_another_form_must_be_faster_by_more_than_the_margin(factor, form):
    assert by_rule(SMALL) is F3
    assert MARGIN == 0.05
    assert decide(SMALL, slower(factor)) is form


def test_a_form_with_a_lower_bound_alone_is_not_chosen():
    times = Times({Form.F2: 2.0, F3: 1.5, Form.F4: 1.7}, {DIRECT: 4.0})
    assert decide(LARGE, times) is F3
    assert decide(SMALL, Times({F3: 1.0}, {DIRECT: 1.1})) is F3


def test_equal_sizes_are_measured_once():
    gpu = Gpu(slower(2.0))
    chooser = Chooser(gpu, device="H100", build="torch 1")
    assert [chooser(SMALL), chooser(SMALL)] == [DIRECT, DIRECT]
    assert gpu.asked == [SMALL]
    (choice,) = chooser.choices.values()
    assert (choice.decided, choice.device, choice.build) == (Decided.MEASURED, "H100", "torch 1")
    assert choice.times_ms == {"conv3d": 0.4, "F(3, 3)": 0.8}
    assert chooser.notes == ()


@pytest.mark.parametrize("sizes", [SMALL, LARGE, IMAGES])
def test_without_measuring_the_rule_chooses_and_says_why(sizes):
    chooser = Chooser(None, "there is no GPU")
    assert chooser(sizes) is by_rule(sizes)
    (choice,) = chooser.choices.values()
    assert (choice.decided, choice.reason) == (Decided.BY_RULE, "there is no GPU")
    assert chooser.notes == ()


def test_transforms_that_inductor_computes_are_not_measured():
    chooser = Chooser(Gpu())
    assert chooser(Sizes(384, 384, 3, 60, 104)) is F3
    (choice,) = chooser.choices.values()
    assert choice.decided is Decided.BY_RULE
    assert "norm_silu_winograd" in choice.reason


def test_a_convolution_with_one_form_is_not_measured():
    chooser = Chooser(Gpu())
    assert chooser(Sizes(96, 3, 12, 480, 832)) is DIRECT
    (choice,) = chooser.choices.values()
    assert (choice.decided, choice.reason) == (Decided.BY_RULE, "it has one form")


@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, torch.AcceleratorError])
def test_a_full_gpu_leaves_the_choice_to_the_rule(tmp_path, kind):
    def full(_sizes: Sizes) -> Times:
        raise kind("CUDA error: out of memory\nMore of it")

    chooser = Chooser(full, record=tmp_path / "record.json")
    assert chooser(SMALL) is F3
    (choice,) = chooser.choices.values()
    assert choice.reason == "it could not be measured: CUDA error: out of memory"
    assert chooser.notes == (f"convolution {SMALL}: F(3, 3); {choice.reason}",)
    assert not (tmp_path / "record.json").exists()


def test_a_lost_gpu_ends_the_build():
    def lost(_sizes: Sizes) -> Times:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(torch.AcceleratorError, match="illegal memory access"):
        Chooser(lost)(SMALL)


def test_measuring_ends_when_it_took_long(monkeypatch):
    clock = iter([0.0, BUDGET_SECONDS + 1])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    chooser = Chooser(Gpu(slower(2.0)))
    assert [chooser(SMALL), chooser(LARGE)] == [DIRECT, by_rule(LARGE)]
    choice = chooser.choices[str(LARGE)]
    assert (choice.decided, choice.reason) == (Decided.BY_RULE, "others took 21 s to measure")
    assert chooser.notes == (f"convolution {LARGE}: {choice.form}; {choice.reason}",)


@pytest.fixture
def build(tmp_path):
    """Makes a chooser with the record of one GPU in the build cache."""
    record = tmp_path / "aoti" / "convolutions-H100.json"
    return partial(Chooser, device="H100", record=record)


def test_a_second_build_takes_the_recorded_choice(build):
    first = build(Gpu(slower(2.0), Times({Form.F4: 2.0}, {DIRECT: 5.0})), build="torch 1")
    assert [first(SMALL), first(LARGE)] == [DIRECT, Form.F4]
    second = build(Gpu(), build="torch 1")  # It would choose F(3, 3), but is not asked.
    assert [second(LARGE), second(SMALL)] == [Form.F4, DIRECT]
    assert {choice.decided for choice in second.choices.values()} == {Decided.RECORDED}
    assert second.choices[str(LARGE)].at_least_ms == {"conv3d": 5.0}
    assert second.notes == ()


def test_another_choice_with_other_software_is_reported_once_with_both_times(build):
    build(Gpu(slower(2.0)), build="torch 1")(SMALL)
    second = build(Gpu(slower(0.5)), build="torch 2")
    assert second(SMALL) is F3
    (note,) = second.notes
    assert note == (
        "convolution 384 > 384, 3 frames of 60x104: F(3, 3); an earlier build with torch 1 chose "
        "conv3d (conv3d 0.4 ms, F(3, 3) 0.8 ms), this one with torch 2 measures conv3d 0.4 ms, "
        "F(3, 3) 0.2 ms"
    )
    third = build(Gpu(), build="torch 2")
    assert third(SMALL) is F3
    assert third.notes == ()


def test_the_same_choice_with_other_software_is_no_news(build):
    build(Gpu(slower(2.0)), build="torch 1")(SMALL)
    second = build(Gpu(slower(3.0)), build="torch 2")
    assert second(SMALL) is DIRECT
    assert second.choices[str(SMALL)].decided is Decided.MEASURED
    assert second.notes == ()


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: "{",
        lambda text: text.replace('"schema": 1', '"schema": 2'),
        lambda text: text.replace('"form": "conv3d"', '"form": "F(4, 3)"'),
        lambda text: text.replace('"form": "conv3d"', '"form": "fastest"'),
    ],
    ids=["no JSON", "schema", "a form for other frames", "an unknown form"],
)
def test_a_damaged_record_is_measured_again_and_replaced(build, tmp_path, damage):
    build(Gpu(slower(2.0)), build="torch 1")(SMALL)
    record = tmp_path / "aoti" / "convolutions-H100.json"
    text = record.read_text()
    assert damage(text) != text
    record.write_text(damage(text))
    again = build(Gpu(slower(2.0)), build="torch 1")
    assert again(SMALL) is DIRECT
    assert again.choices[str(SMALL)].decided is Decided.MEASURED
    assert json.loads(record.read_text()) == json.loads(text)


def test_a_record_depends_on_the_sources_that_measure_and_on_those_that_decide(
    monkeypatch, tmp_path
):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "H100")
    modules = set()

    def digest(entries):
        modules.update(source_modules(entries))
        return "d" * 64

    monkeypatch.setattr(convolution_choices, "source_digest", digest)
    engine_chooser(True, tmp_path)
    assert {convolution_choices.__name__, convolution_timing.__name__} <= modules


def test_an_engine_is_measured_on_a_gpu_alone(tmp_path):
    assert engine_chooser(False, tmp_path)(SMALL) is F3
    chooser = engine_chooser(True, tmp_path)
    assert chooser(SMALL) is F3
    (choice,) = chooser.choices.values()
    assert choice.reason == "there is no GPU"
    assert list(tmp_path.iterdir()) == []


def clock(milliseconds):
    """A clock that runs each form once and gives it these times, call by call."""
    rounds = iter(milliseconds)

    def sample(works):
        for work in works.values():
            work()
        times = next(rounds)
        assert works.keys() == times.keys()
        return times

    return sample


CPU = torch.device("cpu")


def test_a_convolution_that_is_slower_alone_is_not_measured_whole():
    sizes = Sizes(32, 32, 6, 5, 6, operator=True)
    tiles = {Form.F2: 2.0, F3: 1.0}
    found = measure_forms(sizes, CPU, clock([{DIRECT: 1.5, **tiles}]))
    assert found == Times(tiles, {DIRECT: 1.5})


@pytest.mark.parametrize("outputs", [2, 32], ids=["a matmul of taps", "cuDNN"])
def test_a_convolution_that_is_faster_alone_is_measured_with_its_norm(outputs):
    sizes = Sizes(96, outputs, 3, 5, 6, batch=2, operator=True)
    whole = {DIRECT: 1.2, F3: 1.1}
    found = measure_forms(sizes, CPU, clock([{DIRECT: 0.9, F3: 1.0}, whole]))
    assert found == Times(whole, {})


def test_all_forms_of_upsampled_images_are_measured():
    sizes = Sizes(8, 4, 2, 5, 6, upsampled=True)
    times = {Form.UPSAMPLED: 3.0, Form.PHASES: 1.0, Form.ROWS: 2.0}
    assert measure_forms(sizes, CPU, clock([times])) == Times(times, {})


def test_few_pixels_are_convolved_with_one_filter_after_another():
    """The time of a form is that of one of them."""
    sizes = Sizes(8, 4, 2, 5, 6, kernel=(3, 3), stride=(2, 2), padding=(1, 1))
    found = measure_forms(sizes, CPU, clock([{Form.IMAGES: 64.0, Form.PATCHES: 32.0}]))
    assert found == Times({Form.IMAGES: 2.0, Form.PATCHES: 1.0}, {})


def test_the_forms_of_few_pixels_give_the_same():
    sizes = Sizes(8, 4, 2, 5, 6, kernel=(3, 3), stride=(2, 2), padding=(1, 1))
    results = {}

    def sample(works):
        results.update({form: work() for form, work in works.items()})
        return dict.fromkeys(works, 1.0)

    measure_forms(sizes, CPU, sample)
    convolved, multiplied = results[Form.IMAGES], results[Form.PATCHES]
    assert len(convolved) == len(multiplied) == 32
    for one, other in zip(convolved, multiplied, strict=True):
        torch.testing.assert_close(one.movedim(1, -1), other, rtol=0, atol=4e-3)
