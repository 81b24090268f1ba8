"""Early checks that the target's backend can build a recipe."""

from vidc.compiler.backends import backend
from vidc.compiler.config.backend import choose_builder
from vidc.compiler.config.layers import Setting
from vidc.compiler.config.precision import require_built
from vidc.compiler.config.quantization import precision_of
from vidc.compiler.config.recipe import Recipe
from vidc.compiler.config.targets import Target
from vidc.compiler.quantize.apply import Quantization
from vidc.compiler.quantize.lowering import require_lowered
from vidc.compiler.quantize.support import AOTI_GPU, QuantizationSupport
from vidc.plugins.errors import UnavailableError


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
    require_lowered(recipe.name, formats, backend(chosen).quantization(target))


def planned_support(target: Target, asked: Setting | None) -> QuantizationSupport:
    """Returns the quantization support of the target's backend; aoti's if there is no backend."""
    try:
        chosen = choose_builder(asked, target, Setting(target.name, target.name)).value
    except UnavailableError:
        return AOTI_GPU
    return backend(chosen).quantization(target)
