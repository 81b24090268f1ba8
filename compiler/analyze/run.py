"""Sensitivity analysis of a transformer: the damage of each group, and the mix of a budget."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vidc.compiler.analyze.choose import TIME, Budget, Choice, Scored, require_saving, require_time
from vidc.compiler.analyze.cost import Costs, predict
from vidc.compiler.analyze.groups import LayerGroup, layer_groups, with_high
from vidc.compiler.analyze.stages import ChooseMix, Sensitivity, Subject, score
from vidc.compiler.analyze.trials import FRAMES, LATENTS
from vidc.compiler.backends import backend
from vidc.compiler.build.calibration_prompts import Prompts
from vidc.compiler.build.sources import Sources
from vidc.compiler.build.stages import load_stage, slot
from vidc.compiler.config.backend import choose_builder
from vidc.compiler.config.layers import Setting
from vidc.compiler.config.precision import require_built
from vidc.compiler.config.quantization import default_recipe, precision_of
from vidc.compiler.config.recipe import Recipe, load_recipe
from vidc.compiler.config.resolve import Settings
from vidc.compiler.config.targets import Target
from vidc.compiler.quantize.apply import Quantization, apply_recipe
from vidc.compiler.quantize.formats import require_supported
from vidc.compiler.quantize.support import AOTI_GPU, QuantizationSupport
from vidc.compiler.store.run import Progress, run
from vidc.compiler.store.stage import Stage
from vidc.compiler.store.store import Store
from vidc.exporters.families.family import Family
from vidc.plugins.errors import UnavailableError, UsageError

VERIFIED = 10
"""Estimated number of rollouts that choosing a mix takes, for the announced time."""


@dataclass(frozen=True)
class Plan:
    """Plan of an analysis.

    Attributes:
        recipe: the recipe that quantizes all groups.
        target: the target of the predicted times.
        formats: the recipe's formats for the model.
        groups: groups of quantized layers.
        costs: predicted costs.
        budget: budget of the mix; None for no mix.
    """

    recipe: Recipe
    target: Target
    formats: Quantization
    groups: tuple[LayerGroup, ...]
    costs: Costs
    budget: Budget | None

    @property
    def saved(self) -> dict[LayerGroup, float]:
        """Predicted seconds that each group saves per block."""
        saved = self.costs.saved
        return {group: sum(saved[layer] for layer in group.layers) for group in self.groups}


@dataclass(frozen=True)
class Mix:
    """Mix of quantized and high-precision groups that a budget allows.

    Attributes:
        recipe: recipe of the mix.
        quantized: quantized groups.
        high: groups that stay in high precision.
        psnr_db: measured PSNR of the worst block.
        ratio: predicted time of a block relative to high precision.
        flops_share: 8-bit share, 0 to 1, of the FLOPs of a denoising pass's matmuls with weights.
    """

    recipe: Recipe
    quantized: tuple[Scored, ...]
    high: tuple[Scored, ...]
    psnr_db: float
    ratio: float
    flops_share: float


@dataclass(frozen=True)
class Analysis:
    """Finished analysis.

    Attributes:
        plan: its plan.
        scored: all groups, the most damaging first.
        compared: what PSNR compares: ``frames`` or ``latents``.
        prompts: number of prompts; each figure is the worst over them.
        precision: precision of the reference rollouts.
        mix: mix of the budget, or None.
    """

    plan: Plan
    scored: tuple[Scored, ...]
    compared: str
    prompts: int
    precision: str
    mix: Mix | None


def make_plan(
    recipe: str | None,
    model: Family,
    target: Target,
    budget: Budget | None,
    backend: Setting | None = None,
) -> Plan:
    """Plans an analysis, and rejects what cannot succeed.

    Args:
        recipe: a name or a path, or None for the target's default, FP8 preferred.
        model: the model.
        target: the target of the predicted times.
        budget: budget of the mix, or None.
        backend: the backend setting, or None for the target's default.

    Raises:
        UnavailableError: ``VIDC-RECIPE-NONE``, as ``predict`` and, with a budget, as
            ``require_buildable``.
        UsageError: ``VIDC-SENSITIVITY-GROUPS``, the recipe quantizes nothing, saves no time, or
            has rules for convolutions; ``VIDC-BUDGET-UNREACHABLE``; as ``load_recipe`` and
            ``apply_recipe``.
    """
    family = type(model)
    name = recipe or default_recipe("fp8", target, family) or default_recipe("int8", target, family)
    if name is None:
        raise UnavailableError(
            "VIDC-RECIPE-NONE",
            f"{target.name} has no default recipe to analyze",
            "pass --recipe with a name or a file",
        )
    loaded = load_recipe(name)
    if loaded.convolution:
        raise UsageError(
            "VIDC-SENSITIVITY-GROUPS",
            f"recipe {loaded.name} has [[convolution]] rules, and an analysis ranks linear layers "
            "and attention alone",
            "pass --recipe with one without them; vidc calibrate without --analyze and --budget "
            "records the ranges of convolutions too",
        )
    formats = apply_recipe(loaded, model)
    groups = layer_groups(model, formats)
    if not groups:
        raise UsageError(
            "VIDC-SENSITIVITY-GROUPS",
            f"recipe {loaded.name} leaves every layer in high precision: there is nothing to rank",
            "pass --recipe with one that quantizes, such as int8-static or fp8",
        )
    support = planned_support(target, backend)
    costs = predict(model, target, formats, support)
    plan = Plan(loaded, target, formats, groups, costs, budget)
    if budget is not None:
        require_buildable(loaded, formats, target, backend)
        unplayed = [Scored(g, math.inf, math.inf, seconds) for g, seconds in plan.saved.items()]
        require_saving(unplayed)
        if budget.kind == TIME:
            require_time(budget.value, unplayed, plan.costs.seconds)
    return plan


def rollout_count(plan: Plan, prompts: int) -> int:
    """Returns the estimated number of rollouts of an analysis."""
    return prompts * (1 + 2 * len(plan.groups) + (VERIFIED if plan.budget else 0))


def analysis_stages(
    plan: Plan,
    settings: Settings,
    sources: Sources,
    prompts: Prompts,
    seed: int,
    calibration: Stage,
) -> list[Stage]:
    """Returns all stages of an analysis in order, the weights and the calibration included.

    Args:
        plan: the plan.
        settings: settings of the model on this machine.
        sources: sources of the weights; blocks are decoded if they include the decoder's.
        prompts: at least one prompt; each has a rollout of its own.
        seed: seed of the noise.
        calibration: the stage that gives the ranges.
    """
    decoded = decodes(settings.model, sources)
    subject = Subject(settings, plan.formats, prompts, seed, decoded)
    made: list[Stage] = [load_stage(settings, sources, group) for group in subject.groups]
    made += [calibration, *(Sensitivity(subject, group) for group in plan.groups)]
    if plan.budget is not None:
        made.append(ChooseMix(subject, plan.budget, plan.saved, plan.costs.seconds))
    return made


def analyze(
    plan: Plan,
    settings: Settings,
    stages: Sequence[Stage],
    prompts: int,
    cache: Path,
    progress: Progress,
) -> Analysis:
    """Measures every group of a plan, and chooses the mix of its budget.

    The store keeps the figures of each group: an interrupted analysis resumes, and another budget
    or a recipe with the same formats reuses them.

    Args:
        plan: the plan.
        settings: settings of the model on this machine.
        stages: result of ``analysis_stages``.
        prompts: number of prompts.
        cache: folder of the stages' results.
        progress: receives the progress.

    Raises:
        UsageError: ``VIDC-BUDGET-UNREACHABLE``; as ``read_calibration``.
        GateError: ``VIDC-CALIBRATION-ZERO``, as ``require_heads``.
        UnavailableError: ``VIDC-GPU-MEMORY``, ``VIDC-GPU-LOST``.
        VidcError: as the stages and the store.
    """
    with Store(cache) as store:
        made = run(stages, store, slot(settings), progress)
        outputs = {name: result.path for name, result in made.items()}
        scored, mix = score(plan.saved, outputs), None
        if plan.budget is not None:
            mix = _mix(plan, settings.model, scored, ChooseMix.read(outputs["mix"], scored))
    precision = settings.precision[settings.model.quantized_group]
    compared = FRAMES if f"load:{settings.model.decoder_group}" in outputs else LATENTS
    return Analysis(plan, scored, compared, prompts, precision, mix)


def decodes(model: Family, sources: Sources) -> bool:
    """Returns True if the sources include the model's decoder, so that blocks can be decoded."""
    return model.decoder_group in sources.checkpoints or sources.seed is not None


def _mix(plan: Plan, model: Family, scored: Sequence[Scored], choice: Choice) -> Mix:
    high = tuple(each for each in scored if each not in choice.groups)
    description = plan.recipe.description
    if high:
        description += f"; less what --budget {plan.budget} keeps in high precision"
    recipe = with_high(plan.recipe, plan.groups, {each.group for each in high}, description)
    return Mix(
        recipe,
        choice.groups,
        high,
        choice.psnr_db,
        1 - sum(each.saved for each in choice.groups) / plan.costs.seconds,
        apply_recipe(recipe, model).flops_share,
    )


def require_buildable(
    recipe: Recipe, formats: Quantization, target: Target, asked: Setting | None
) -> None:
    """Rejects a recipe as ``vidc build`` does.

    A mix of a supported recipe is supported, because it only drops formats.

    Args:
        recipe: the recipe that a mix is chosen from.
        formats: its formats for the model.
        target: the target to build for.
        asked: the setting ``backend``, or None for the target's default.

    Raises:
        UsageError: ``VIDC-RECIPE-PRECISION``, its formats do not fit into one build.
        UnavailableError: ``VIDC-RECIPE-LOWERING``, ``VIDC-BACKEND-PRECISION`` or
            ``VIDC-BACKEND-TARGET``, the backend does not support it.
    """
    precision = Setting(precision_of(recipe), f"recipe {recipe.name}")
    chosen = choose_builder(asked, target, Setting(target.name, target.name)).value
    require_built([precision], chosen, target)
    require_supported(recipe.name, formats, backend(chosen).quantization(target))


def planned_support(target: Target, asked: Setting | None) -> QuantizationSupport:
    """Returns the quantization support of the target's backend; aoti's if there is no backend."""
    try:
        chosen = choose_builder(asked, target, Setting(target.name, target.name)).value
    except UnavailableError:
        return AOTI_GPU
    return backend(chosen).quantization(target)
