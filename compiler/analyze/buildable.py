"""What engines hold of a recipe, known before hours go into choosing a part of it."""

from vidc.compiler.backends import backend
from vidc.compiler.config.backend import choose_builder
from vidc.compiler.config.layers import Setting
from vidc.compiler.config.precision import require_built
from vidc.compiler.config.quantization import TRANSFORMER, precision_of
from vidc.compiler.config.recipe import Recipe
from vidc.compiler.config.targets import Target
from vidc.compiler.quantize.apply import Quantization
from vidc.compiler.quantize.form import PROGRAM, Form
from vidc.compiler.quantize.lowering import require_lowered
from vidc.plugins.errors import UnavailableError


def require_buildable(
    recipe: Recipe, formats: Quantization, target: Target, asked: Setting | None
) -> None:
    """Refuses a recipe that ``vidc build`` would refuse, in the same words.

    What holds for all of its layers holds for any of them: a mix keeps formats or drops them.

    Args:
        recipe: that a mix is chosen from.
        formats: what it makes of the model.
        target: what is to be built for.
        asked: the setting ``backend``, or None for the target's own.

    Raises:
        UsageError: ``VIDC-RECIPE-PRECISION``, its formats go into no one build.
        UnavailableError: ``VIDC-RECIPE-LOWERING``, the backend's engines do not hold it;
            ``VIDC-BACKEND-PRECISION``, ``VIDC-BACKEND-TARGET``, it builds nothing of the kind.
    """
    precision = Setting(precision_of(recipe), f"recipe {recipe.name}")
    chosen = choose_builder(asked, target, Setting(target.name, target.name)).value
    require_built({TRANSFORMER: precision}, chosen, target)
    require_lowered(recipe.name, formats, backend(chosen).form(target))


def planned_form(target: Target, asked: Setting | None) -> Form:
    """How the backend that would build takes what is quantized; a program's where none would."""
    try:
        chosen = choose_builder(asked, target, Setting(target.name, target.name)).value
    except UnavailableError:
        return PROGRAM
    return backend(chosen).form(target)
