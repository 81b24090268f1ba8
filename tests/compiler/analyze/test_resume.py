"""`vidc calibrate --analyze` that is interrupted, and goes on; what it plays is made up."""

import math
import shutil
from dataclasses import replace

import pytest
from modelopt_here import needs_modelopt

from vidc.compiler.analyze.choose import Budget
from vidc.compiler.analyze.run import analysis_stages, analyze, make_plan
from vidc.compiler.analyze.stages import Subject, sensitivity_name
from vidc.compiler.analyze.trials import Damage
from vidc.compiler.build.calibrate import Calibrate
from vidc.compiler.build.calibrate_command import calibrate
from vidc.compiler.build.calibration_prompts import default_prompts
from vidc.compiler.build.sources import Sources
from vidc.compiler.config.program import program_spec
from vidc.compiler.config.recipe import Rule, load_recipe, recipe_toml
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
def calibrated(settings, prompts, tmp_path_factory):
    """The folder of a calibration, and the cache with its weights."""
    output, cache = (tmp_path_factory.mktemp("analysis") / name for name in ("ranges", "cache"))
    calibrate(settings, SOURCES, prompts, 0, output, cache, Noted())
    return output, cache


@pytest.fixture
def go(settings, prompts, calibrated, tmp_path, monkeypatch):
    """Runs an analysis over a cache of the test's own."""
    ranges, cache = calibrated
    shutil.copytree(cache, tmp_path / "cache")
    monkeypatch.setattr(Subject, "trials", lambda *_: MadeUp())

    def run(noted, recipe="int8-static", budget=FLOOR, precision=None, ranges=ranges):
        here = settings if precision is None else replace(settings, precision=precision)
        plan = make_plan(recipe, settings.model, settings.target, budget)
        given = Calibrate(settings.model, ranges)
        stages = analysis_stages(plan, here, SOURCES, prompts, 0, given)
        return analyze(plan, here, stages, len(prompts), tmp_path / "cache", noted)

    return run


@pytest.fixture
def groups(settings):
    """Names of the stages of all groups."""
    plan = make_plan("int8-static", settings.model, settings.target, None)
    return [sensitivity_name(group) for group in plan.groups]


def test_interrupted_analysis_resumes_with_same_result(go, groups, monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        go(Noted(groups[2]))
    noted = Noted()
    found = go(noted)
    assert [noted.done[group] for group in groups] == [True] * 2 + [False] * (len(groups) - 2)
    assert not noted.done["mix"]
    monkeypatch.setattr(Subject, "trials", None)
    again = go(Noted())
    assert (again.scored, again.mix) == (found.scored, found.mix)


def test_other_budget_reuses_measured_groups(go, groups):
    with pytest.raises(UsageError, match="VIDC-BUDGET-UNREACHABLE"):
        go(Noted(), budget=Budget("psnr", 119.0))
    noted = Noted()
    found = go(noted)
    assert all(noted.done[group] for group in groups)
    assert found.mix.psnr_db >= FLOOR.value
    other = Noted()
    assert go(other, budget=Budget("psnr", 41.0)).mix.psnr_db >= 41
    assert not other.done["mix"]


def test_recipe_with_same_formats_reuses_measured_groups(go, groups, tmp_path):
    recipe = load_recipe("int8-static")
    (rule,) = recipe.linear
    fewer = Rule(("blocks.*.ffn.**",), rule.format)
    file = tmp_path / "fewer.toml"
    file.write_text(recipe_toml(replace(recipe, linear=(fewer,))))
    go(Noted(), budget=None)
    noted = Noted()
    go(noted, str(file), budget=None)
    measured = [name for name in noted.done if name in groups]
    assert measured
    assert all(noted.done[name] for name in measured)


@pytest.mark.parametrize(
    "other",
    [{"recipe": "int8-weight-only"}, {"precision": {"transformer": "bf16", "vae": "fp32"}}],
)
def test_figures_of_other_analysis_are_not_used(go, groups, other):
    go(Noted(), budget=None, **other)
    noted = Noted()
    go(noted, budget=None)
    assert not any(noted.done[group] for group in groups)


def test_infinite_figures_are_stored_exactly(go, monkeypatch):
    monkeypatch.setattr(MadeUp, "damage", lambda *_: Damage(0.1 + 0.2, math.inf))
    for _ in range(2):
        found = go(Noted(), budget=None)
        assert {(each.sqnr_db, each.psnr_db) for each in found.scored} == {(0.1 + 0.2, math.inf)}


def test_rejects_dead_head_before_rollouts(settings, prompts, calibrated, tmp_path):
    ranges, cache = calibrated
    found = read_calibration(ranges, settings.model)
    values = found.tensors["blocks.1.attn1.v"].clone()
    values[:, 1] = 0
    (tmp_path / "dead").mkdir()
    tensors = {**found.tensors, "blocks.1.attn1.v": values}
    write_calibration(tmp_path / "dead", found.document, tensors)
    plan = make_plan("kv-int8", settings.model, settings.target, None)
    given = Calibrate(settings.model, tmp_path / "dead")
    stages = analysis_stages(plan, settings, SOURCES, prompts, 0, given)
    noted = Noted()
    with pytest.raises(GateError, match=r"VIDC-CALIBRATION-ZERO.*blocks\.1\.attn1: .* head 1"):
        analyze(plan, settings, stages, 1, cache, noted)
    assert not any(name.startswith("sensitivity") for name in noted.done)
