"""Shipped recipes by what they are for."""

from vidc.compiler.config.toml import shipped
from vidc.exporters.families import family_names, find_family


def of_targets() -> tuple[str, ...]:
    """Recipes that no family claims: those about the layers of a transformer's blocks."""
    claimed = {name for each in family_names() for name in find_family(each).recipes.values()}
    return tuple(name for name in shipped("recipes") if name not in claimed)
