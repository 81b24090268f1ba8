"""Recipes to TOML that ``load_recipe`` reads back, and a person can edit."""

from collections.abc import Sequence
from dataclasses import fields

from vidc.compiler.config.formats import AttentionFormat, LinearFormat
from vidc.compiler.config.recipe import Recipe
from vidc.compiler.config.toml import toml_value

_LINE = 100
"""Characters: a longer list of layers has a line for each."""
_ALWAYS = ("weights", "keys", "values")
"""Fields that are written though they are what the reader would assume."""


def recipe_toml(recipe: Recipe, comments: Sequence[str] = ()) -> str:
    """A recipe as TOML, with a final newline; its name is the file's, and not in it.

    Args:
        recipe: to write.
        comments: lines at its top, without the ``#``.
    """
    head = [f"# {_printable(line)}".rstrip() for line in comments]
    parts = ["\n".join([*head, f"description = {toml_value(recipe.description)}"])]
    parts += [_rule("linear", rule.layers, rule.format) for rule in recipe.linear]
    parts += [_rule("attention", rule.layers, rule.format) for rule in recipe.attention]
    return "\n\n".join(parts) + "\n"


def _rule(kind: str, layers: Sequence[str], form: LinearFormat | AttentionFormat) -> str:
    lines = [f"[[{kind}]]", f"layers = {toml_value(list(layers))}"]
    if len(lines[1]) > _LINE:
        lines[1] = "\n".join(
            ["layers = [", *(f"    {toml_value(layer)}," for layer in layers), "]"]
        )
    for field in fields(form):
        value = getattr(form, field.name)
        if value != field.default or field.name in _ALWAYS:
            lines.append(f"{field.name} = {toml_value(value)}")
    return "\n".join(lines)


def _printable(line: str) -> str:
    """A line without what would end a comment, or TOML does not allow in one."""
    return "".join(character if character.isprintable() else " " for character in line)
