"""`vidc calibrate --analyze` that is interrupted, and goes on; what it plays is made up."""

import shutil
from dataclasses import replace

import pytest
from modelopt_here import needs_modelopt

from vidc.compiler.analyze import run as running
from vidc.compiler.analyze.budget import Budget
from vidc.compiler.analyze.run import analyze, forget, make_plan
from vidc.compiler.analyze.trials import Damage
from vidc.compiler.build.calibrate_command import calibrate
from vidc.compiler.build.calibration_prompts import default_prompts
from vidc.compiler.build.sources import Sources
from vidc.compiler.config.program import program_spec
from vidc.compiler.config.resolve import resolve
from vidc.compiler.quantize.artifact import read_calibration, write_calibration
from vidc.plugins.errors import GateError, UsageError

pytestmark = needs_modelopt
SOURCES = Sources({}, seed=1)
FLOOR = Budget("psnr", 40.0)


class Noted:
    """Progress that is remembered, and interrupts before what has this name."""

    def __init__(self, interrupt_at=None):
        self.done = {}
        self._interrupt_at = interrupt_at

    def started(self, name):
        if name == self._interrupt_at:
            raise KeyboardInterrupt

    def finished(self, name, hit, seconds):
        self.done[name] = hit

    def note(self, text):
        pass


class MadeUp:
    """Trials whose figures follow from the names of layers."""

    compared = "latents"

    def damage(self, layers):
        return Damage(20.0, 40.0 + sum(map(ord, layers[0])) % 7 / 3)

    def psnr(self, layers):
        return 45.0 - len(layers) / 3


@pytest.fixture(scope="module")
def settings():
    return resolve("tiny", gpu="cpu", environ={})


@pytest.fixture(scope="module")
def prompts(settings):
    return default_prompts(program_spec(settings.model), 1, texts=False)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def calibrated(settings, prompts, cache, tmp_path_factory):
    """The folder of a calibration whose analysis has not begun."""
    output = tmp_path_factory.mktemp("calibrated") / "calibration"
    calibrate(settings, SOURCES, prompts, 0, output, cache, Noted())
    return output


@pytest.fixture
def go(settings, prompts, cache, calibrated, tmp_path, monkeypatch):
    """Calibrates and analyzes into the same folder, as the command does."""
    monkeypatch.setattr(running, "_trials", lambda *_: MadeUp())

    def run(noted, recipe="int8-static", budget=FLOOR, precision=None):
        if not (tmp_path / "calibration").exists():
            shutil.copytree(calibrated.parent, tmp_path, dirs_exist_ok=True)
        here = settings if precision is None else replace(settings, precision=precision)
        plan = make_plan(recipe, settings.model, settings.target, budget)
        output = tmp_path / "calibration"
        done = calibrate(settings, SOURCES, prompts, 0, output, cache, noted)
        analysis = analyze(plan, here, SOURCES, prompts, 0, done.output, cache, noted)
        forget(done.output)
        return analysis

    return run


@pytest.fixture
def groups(settings):
    plan = make_plan("int8-static", settings.model, settings.target, None)
    return [group.pattern for group in plan.groups]


def left(tmp_path):
    return sorted(path.name for path in tmp_path.iterdir())


def test_interrupted_analysis_resumes_with_same_result(go, groups, tmp_path):
    whole = go(Noted())
    assert left(tmp_path) == ["calibration"]
    with pytest.raises(KeyboardInterrupt):
        go(Noted(groups[2]))
    assert left(tmp_path) == [".calibration.analysis.json", "calibration"]
    noted = Noted()
    again = go(noted)
    assert noted.done["calibrate:transformer"]
    assert [noted.done[group] for group in groups] == [True] * 2 + [False] * (len(groups) - 2)
    assert (again.scored, again.mix) == (whole.scored, whole.mix)
    assert left(tmp_path) == ["calibration"]


def test_other_budget_reuses_measured_groups(go, groups, tmp_path):
    with pytest.raises(UsageError, match="VIDC-BUDGET-UNREACHABLE"):
        go(Noted(), budget=Budget("psnr", 119.0))
    noted = Noted()
    found = go(noted)
    assert all(noted.done[group] for group in groups)
    assert found.mix.psnr_db >= FLOOR.value
    assert left(tmp_path) == ["calibration"]


@pytest.mark.parametrize(
    "other",
    [{"recipe": "int8-weight-only"}, {"precision": {"transformer": "bf16", "vae": "fp32"}}],
)
def test_state_of_other_analysis_is_ignored(go, groups, other):
    with pytest.raises(KeyboardInterrupt):
        go(Noted(groups[1]), budget=None, **other)
    noted = Noted()
    go(noted, budget=None)
    assert not any(noted.done[group] for group in groups)


def test_truncated_state_is_ignored(go, groups, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        go(Noted(groups[1]), budget=None)
    file = tmp_path / ".calibration.analysis.json"
    file.write_bytes(file.read_bytes()[:-2])
    noted = Noted()
    go(noted, budget=None)
    assert not noted.done[groups[0]]


def test_rejects_dead_head_before_rollouts(settings, prompts, cache, calibrated, tmp_path):
    found = read_calibration(calibrated, settings.model)
    values = found.tensors["blocks.1.attn1.v"].clone()
    values[:, 1] = 0
    (tmp_path / "dead").mkdir()
    tensors = {**found.tensors, "blocks.1.attn1.v": values}
    write_calibration(tmp_path / "dead", found.document, tensors)
    plan = make_plan("kv-int8", settings.model, settings.target, None)
    noted = Noted()
    with pytest.raises(GateError, match=r"VIDC-CALIBRATION-ZERO.*blocks\.1\.attn1: .* head 1"):
        analyze(plan, settings, SOURCES, prompts, 0, tmp_path / "dead", cache, noted)
    assert not noted.done
