"""Sensitivity analysis of a transformer: the damage of each group, and the mix of a budget."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import torch

from vidc.compiler.analyze.budget import TIME, Budget
from vidc.compiler.analyze.buildable import planned_support, require_buildable
from vidc.compiler.analyze.choose import (
    Scored,
    by_damage,
    choose,
    require_saving,
    require_time,
)
from vidc.compiler.analyze.cost import Costs, predict
from vidc.compiler.analyze.groups import (
    LayerGroup,
    layer_groups,
    layers_of,
    with_high,
)
from vidc.compiler.analyze.state import State
from vidc.compiler.analyze.trials import Damage, Trials
from vidc.compiler.build.calibration_prompts import Prompts, pairs
from vidc.compiler.build.calibration_recording import (
    loaded_groups,
    machine,
    prompt_embeddings,
)
from vidc.compiler.build.calibration_rollouts import rollout_inputs
from vidc.compiler.build.sources import Sources
from vidc.compiler.build.stages import load_stage, slot
from vidc.compiler.config.layers import Setting
from vidc.compiler.config.program import model_modules
from vidc.compiler.config.quantization import default_recipe
from vidc.compiler.config.recipe import Recipe, load_recipe
from vidc.compiler.config.resolve import Settings
from vidc.compiler.config.targets import Target
from vidc.compiler.quantize.apply import Quantization, apply_recipe
from vidc.compiler.quantize.artifact import Calibration, model_tables, read_calibration
from vidc.compiler.quantize.attention import require_heads
from vidc.compiler.quantize.switch import QuantizedLayers
from vidc.compiler.store.digest import sha256_json
from vidc.compiler.store.publish import exclusive
from vidc.compiler.store.run import Progress, Result, run
from vidc.compiler.store.sources import source_digest
from vidc.compiler.store.store import Store
from vidc.compiler.store.versions import versions
from vidc.compiler.validate.eager import quantized_network
from vidc.compiler.validate.reference import eager_engines
from vidc.exporters.families.family import Family
from vidc.plugins.errors import UnavailableError, UsageError
from vidc.plugins.names import weights_path
from vidc.runtime.faults import gpu_faults
from vidc.runtime.program import program

_SOURCES = ("vidc.compiler.analyze.run", "vidc.compiler.validate.reference", "vidc.runtime.text")
"""Modules whose code a group's figures depend on."""
VERIFIED = 10
"""Estimated number of rollouts of a choice, for the announced time."""
Done = TypeVar("Done")


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

    def saved(self, group: LayerGroup) -> float:
        """Returns the predicted seconds that a group saves per block."""
        return sum(self.costs.saved[layer] for layer in group.layers)


@dataclass(frozen=True)
class Mix:
    """Mix of quantized and high-precision groups that a budget allows.

    Attributes:
        recipe: recipe of the mix.
        quantized: quantized groups.
        high: groups that stay in high precision.
        psnr_db: measured PSNR of the worst block.
        ratio: predicted time of a block relative to high precision.
        flops_share: share of a denoising pass's matmul FLOPs with weights in 8 bits.
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
        UsageError: ``VIDC-SENSITIVITY-GROUPS``, the recipe quantizes nothing, or saves no time;
            ``VIDC-BUDGET-UNREACHABLE``; as ``load_recipe`` and ``apply_recipe``.
    """
    name = recipe or default_recipe("fp8", target) or default_recipe("int8", target)
    if name is None:
        raise UnavailableError(
            "VIDC-RECIPE-NONE",
            f"{target.name} has no default recipe to analyze",
            "pass --recipe with a name or a file",
        )
    loaded = load_recipe(name)
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
        unplayed = [Scored(group, math.inf, math.inf, plan.saved(group)) for group in groups]
        require_saving(unplayed)
        if budget.kind == TIME:
            require_time(budget.value, unplayed, plan.costs.seconds)
    return plan


def rollout_count(plan: Plan, prompts: int) -> int:
    """Returns the estimated number of rollouts of an analysis."""
    return prompts * (1 + 2 * len(plan.groups) + (VERIFIED if plan.budget else 0))


def step_count(plan: Plan) -> int:
    """Returns the number of progress steps of an analysis."""
    return 2 + len(plan.groups) + (1 if plan.budget else 0)


def analyze(
    plan: Plan,
    settings: Settings,
    sources: Sources,
    prompts: Prompts,
    seed: int,
    calibration: Path,
    cache: Path,
    progress: Progress,
) -> Analysis:
    """Measures every group of a plan, and chooses the mix of its budget.

    Measured groups are saved until ``forget``: an interrupted analysis resumes, and another budget
    reuses them.

    Args:
        plan: the plan.
        settings: settings of the model on this machine.
        sources: sources of the weights; blocks are decoded if they include a VAE.
        prompts: at least one prompt; each has a rollout of its own.
        seed: seed of the noise.
        calibration: folder of the calibration.
        cache: folder of the stages' results.
        progress: receives the progress.

    Raises:
        UsageError: ``VIDC-BUDGET-UNREACHABLE``; as ``read_calibration``.
        GateError: ``VIDC-CALIBRATION-ZERO``, as ``require_heads``.
        UnavailableError: ``VIDC-GPU-MEMORY``, ``VIDC-GPU-LOST``.
        VidcError: as the stages and the store.
    """
    device = torch.device(settings.target.device_type)
    ranges = read_calibration(calibration, settings.model)
    require_heads(plan.formats.attention, ranges)
    decoder = (settings.model.decoder_group,) if decodes(settings.model, sources) else ()
    needed = (*loaded_groups(settings.model, prompts), *decoder)
    with Store(cache) as store, gpu_faults(device):
        stages = [load_stage(settings, sources, group) for group in needed]
        loaded = run(stages, store, slot(settings), progress)
        folders = {group: loaded[f"load:{group}"].path for group in needed}
        trials = _timed(
            "rollouts in high precision",
            lambda: _trials(plan, settings, prompts, seed, ranges, folders, device),
            progress,
        )
        key = _key(plan, settings, prompts, seed, ranges, loaded, device)
        with exclusive(store, calibration, progress.note):
            state = State(_state(calibration), key)
            scores = [_score(plan, trials, state, group, progress) for group in plan.groups]
            scored, mix = tuple(by_damage(scores)), None
            if (budget := plan.budget) is not None:
                mix = _timed(
                    str(budget),
                    lambda: _mix(plan, budget, settings.model, scored, trials, state),
                    progress,
                )
    return Analysis(
        plan,
        scored,
        trials.compared,
        len(prompts),
        settings.precision[settings.model.quantized_group],
        mix,
    )


def forget(calibration: Path) -> None:
    """Removes the saved figures of an analysis.

    Args:
        calibration: absolute path of the calibration's folder.
    """
    _state(calibration).unlink(missing_ok=True)


def _state(calibration: Path) -> Path:
    return calibration.with_name(f".{calibration.name}.analysis.json")


def decodes(model: Family, sources: Sources) -> bool:
    """Returns True if the sources include the model's decoder, so that blocks can be decoded."""
    return model.decoder_group in sources.checkpoints or sources.seed is not None


def _trials(
    plan: Plan,
    settings: Settings,
    prompts: Prompts,
    seed: int,
    calibration: Calibration,
    folders: Mapping[str, Path],
    device: torch.device,
) -> Trials:
    model = settings.model
    embeddings = pairs(prompt_embeddings(model, settings.precision, prompts, folders, device))
    groups = [g for g in (model.quantized_group, model.decoder_group) if g in folders]
    weights = {group: folders[group] / weights_path(group) for group in groups}
    engines = eager_engines(model, weights, settings.precision, device)
    network = quantized_network(engines, model)
    inputs = [
        rollout_inputs(model, seed, index, pair).to(device) for index, pair in enumerate(embeddings)
    ]
    return Trials(
        model,
        {name: engines[name] for name in program(model.program).decoders if name in engines},
        QuantizedLayers(model.quantized_part, network, plan.formats, calibration),
        inputs,
    )


def _key(
    plan: Plan,
    settings: Settings,
    prompts: Prompts,
    seed: int,
    calibration: Calibration,
    loaded: Mapping[str, Result],
    device: torch.device,
) -> str:
    """Returns the digest of all that a group's figures depend on; costs and budget do not."""
    formats = plan.formats
    return sha256_json(
        {
            "model": model_tables(settings.model),
            "precision": dict(settings.precision),
            "prompts": [prompts.kind, len(prompts), prompts.sha256],
            "seed": seed,
            "ranges": calibration.document.tensors.sha256,
            "weights": {stage: result.digests for stage, result in loaded.items()},
            "layers": {group.pattern: list(group.layers) for group in plan.groups},
            "formats": {
                n: asdict(f) for n, f in (*formats.linear.items(), *formats.attention.items())
            },
            "sources": source_digest((*_SOURCES, *model_modules(settings.model))),
            "tools": versions("torch"),
            "machine": machine(device),
        }
    )


def _score(
    plan: Plan, trials: Trials, state: State, group: LayerGroup, progress: Progress
) -> Scored:
    def play() -> Damage:
        return _timed(group.pattern, lambda: trials.damage(group.layers), progress)

    known = state.has_group(group.pattern)
    damage = state.damage(group.pattern, play)
    if known:
        progress.finished(group.pattern, True, 0.0)
    return Scored(group, damage.sqnr_db, damage.psnr_db, plan.saved(group))


def _mix(
    plan: Plan,
    budget: Budget,
    model: Family,
    scored: tuple[Scored, ...],
    trials: Trials,
    state: State,
) -> Mix:
    def measure(mixed: Sequence[Scored]) -> float:
        groups = [each.group for each in mixed]
        return state.psnr([g.pattern for g in groups], lambda: trials.psnr(layers_of(groups)))

    seconds = plan.costs.seconds
    choice = choose(budget, scored, seconds, measure)
    high = tuple(each for each in scored if each not in choice.groups)
    description = plan.recipe.description
    if high:
        description += f"; less what --budget {budget} keeps in high precision"
    recipe = with_high(plan.recipe, plan.groups, {each.group for each in high}, description)
    return Mix(
        recipe,
        tuple(each for each in scored if each in choice.groups),
        high,
        choice.psnr_db,
        1 - sum(each.saved for each in choice.groups) / seconds,
        apply_recipe(recipe, model).flops_share,
    )


def _timed(name: str, work: Callable[[], Done], progress: Progress) -> Done:
    progress.started(name)
    started = time.perf_counter()
    done = work()
    progress.finished(name, False, time.perf_counter() - started)
    return done
