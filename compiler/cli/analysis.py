"""Options of `vidc calibrate` for sensitivity analysis and budgets."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vidc.compiler.cli import names
from vidc.compiler.cli.group import PATH, taken
from vidc.compiler.cli.output import why_not_writable
from vidc.exporters.families.flags import title_of
from vidc.plugins.errors import UsageError

if TYPE_CHECKING:
    from vidc.compiler.analyze.run import Analysis, Plan
    from vidc.compiler.build.calibration_prompts import Prompts
    from vidc.compiler.config.resolve import Settings


_PROMPTS = 2


@dataclass(frozen=True)
class AnalysisOptions:
    """Options of a sensitivity analysis.

    Attributes:
        analyze: True for ``--analyze``.
        budget: ``--budget``, such as ``psnr=30`` or ``time=0.7``.
        recipe: name or file of the analyzed recipe; None for the default.
        target: ``--for``, whose times are predicted; None for the target of the settings.
        requested_count: ``--analyze-prompts``; None for the default.
        file: ``--recipe-file``; None for a name beside the calibration.
    """

    analyze: bool
    budget: str | None
    recipe: str | None
    target: str | None
    requested_count: int | None
    file: Path | None

    @property
    def count(self) -> int:
        """Number of prompts for the analysis."""
        return self.requested_count or _PROMPTS

    @property
    def any(self) -> bool:
        """True if an analysis is requested."""
        return self.analyze or self.budget is not None

    def require_consistent(self) -> None:
        """Refuses options that would have no effect.

        Raises:
            UsageError: ``VIDC-CLI-USAGE``.
        """
        if not self.any and (self.recipe or self.target or self.file or self.requested_count):
            raise _useless(
                "--recipe, --for, --analyze-prompts and --recipe-file need --analyze or --budget"
            )
        if self.file is not None and self.budget is None:
            raise _useless("--recipe-file needs --budget, which chooses a recipe")

    def plan(self, settings: "Settings", folder: Path) -> "Plan":
        """Plans the analysis after checking the recipe file; raises as ``make_plan``."""
        from vidc.compiler.analyze.choose import parse_budget
        from vidc.compiler.analyze.run import make_plan
        from vidc.compiler.config.targets import find_target

        budget = None if self.budget is None else parse_budget(self.budget)
        target = find_target(self.target, "--for") if self.target else settings.target
        file = self.recipe_file(folder.resolve())
        if file.resolve().is_relative_to(folder.resolve()):
            raise UsageError(
                "VIDC-SENSITIVITY-OUTPUT",
                f"the recipe would be {file}, in the calibration's folder, which is replaced whole",
                "name another file with --recipe-file",
            )
        if budget is not None and file.parent.exists() and (why := why_not_writable(file)):
            raise UsageError(
                "VIDC-SENSITIVITY-OUTPUT",
                f"the recipe cannot be written to {file}: {why}",
                "name another file with --recipe-file",
            )
        backend = settings.asked_backend
        return make_plan(self.recipe, settings.model, target, budget, backend)

    def prompts(self, all_of_them: "Prompts") -> "Prompts":
        """Returns the first prompts, which the analysis plays."""
        embeddings = all_of_them.embeddings
        return replace(
            all_of_them,
            texts=all_of_them.texts[: self.count],
            embeddings=None if embeddings is None else embeddings[: self.count],
        )

    def recipe_file(self, folder: Path) -> Path:
        """Returns the recipe's file; raises UsageError ``VIDC-CLI-USAGE`` for a bad name."""
        file = self.file or folder.with_name(f"{folder.name}.toml")
        if file.suffix != ".toml":
            raise _useless(f"--recipe-file {file} does not end in .toml, as --recipe expects it")
        return file


def analysis_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of ``AnalysisOptions``, passed on together as ``options``."""

    @click.option(
        "--analyze", is_flag=True,
        help="Rank the recipe's layer groups by error in 8 bits and time saved.",
    )  # fmt: skip
    @click.option(
        "--budget", metavar="psnr=DB|time=RATIO",
        help="Analyze and write a recipe: the fastest whose worst block reaches DB, or the best "
        "whose blocks take at most RATIO of their high-precision time, such as 0.7.",
    )  # fmt: skip
    @click.option(
        "--recipe", metavar="R", shell_complete=names.RECIPE,
        help="Recipe to analyze: a name or a TOML file.  [default: the target's]",
    )  # fmt: skip
    @click.option(
        "--for", "target", metavar="TARGET", shell_complete=names.TARGET,
        help="Target whose times are predicted.  [default: that of --gpu]",
    )  # fmt: skip
    @click.option(
        "--analyze-prompts", "requested_count", type=click.IntRange(min=1),
        help="Number of prompts for the analysis; each is played twice for every group.  "
        f"[default: {_PROMPTS}]",
    )  # fmt: skip
    @click.option(
        "--recipe-file", "file", type=PATH, metavar="FILE",
        help="File for the budget's recipe.  [default: the calibration's folder with .toml]",
    )  # fmt: skip
    @functools.wraps(command)
    def with_analysis(**given: Any) -> Any:
        options = taken(AnalysisOptions, given)
        return command(options=options, **given)

    return with_analysis


def tell_plan(plan: "Plan", settings: "Settings", prompts: int, decoded: bool) -> None:
    """Prints the analyzed layer groups, and how long a CPU takes if that is minutes."""
    from vidc.compiler.analyze.run import rollout_count
    from vidc.compiler.build.calibration_rollouts import scenario
    from vidc.compiler.validate.estimate import about, latents_seconds, rollout_seconds

    count = rollout_count(plan, prompts)
    played = scenario(settings.model)
    seconds = rollout_seconds if decoded else latents_seconds
    takes = about(count * seconds(settings.model, played))
    how_long = f": {takes} on this CPU" if takes and not settings.target.is_gpu else ""
    click.echo(
        f"analyzing {len(plan.groups)} groups of recipe {plan.recipe.name} for "
        f"{plan.target.name}, some {count} rollouts{how_long}",
        err=True,
    )
    for note in plan.target.notes:
        click.echo(f"{plan.target.name}: {note}", err=True)
    if not decoded:
        decoder = title_of(settings.model.decoder_group)
        click.echo(f"no {decoder} is given: PSNR is of latents, not of frames", err=True)


def write_recipe(analysis: "Analysis", file: Path) -> None:
    """Writes the recipe that was chosen for a budget, with a summary as comments.

    Raises:
        UsageError: ``VIDC-SENSITIVITY-OUTPUT``.
    """
    from vidc.compiler.analyze.report import summary
    from vidc.compiler.config.recipe import recipe_toml

    assert analysis.mix is not None
    lines = ["Written by vidc calibrate --analyze; edit it, and pass it with --recipe.", ""]
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        text = recipe_toml(analysis.mix.recipe, [*lines, *summary(analysis)])
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            "VIDC-SENSITIVITY-OUTPUT",
            f"the recipe cannot be written to {file}: {error.strerror}",
            "name another file with --recipe-file",
        ) from error


def _useless(why: str) -> UsageError:
    return UsageError("VIDC-CLI-USAGE", why, "vidc calibrate --help")
