"""Recipes as TOML: shipped with vidc or written by a user."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Generic, TypeVar

from vidc.compiler.config.formats import AttentionFormat, LinearFormat
from vidc.compiler.config.patterns import is_pattern
from vidc.compiler.config.toml import read_toml, shipped, toml_value
from vidc.plugins.errors import UsageError, nearest

Format = TypeVar("Format", LinearFormat, AttentionFormat)


@dataclass(frozen=True)
class Rule(Generic[Format]):
    """Format of the layers that match any of these patterns."""

    layers: tuple[str, ...]
    format: Format


@dataclass(frozen=True)
class Recipe:
    """Recipe: which layers are quantized, and how.

    Attributes:
        name: name of the recipe or its file.
        description: one line.
        linear: rules for linear layers; the last rule that matches a layer wins.
        attention: rules for self-attentions.
    """

    name: str
    description: str
    linear: tuple[Rule[LinearFormat], ...]
    attention: tuple[Rule[AttentionFormat], ...]

    def rules(self) -> dict[str, list[dict[str, Any]]]:
        """Returns the rules without the recipe's name, as plain JSON values."""
        return {
            "linear": [{"layers": list(r.layers), **asdict(r.format)} for r in self.linear],
            "attention": [{"layers": list(r.layers), **asdict(r.format)} for r in self.attention],
        }


def recipe_names() -> tuple[str, ...]:
    """Returns the names of the shipped recipes."""
    return tuple(shipped("recipes"))


def load_recipe(name: str) -> Recipe:
    """Loads the recipe of this name, or from the TOML file at this path.

    Raises:
        UsageError: ``VIDC-RECIPE-NAME`` for an unknown name; ``VIDC-CONFIG-FILE`` for a file that
            cannot be read; ``VIDC-RECIPE-FIELD``.
    """
    if name.endswith(".toml"):
        return parse_recipe(read_toml(Path(name)), Path(name).stem)
    known = shipped("recipes")
    if name not in known:
        raise UsageError("VIDC-RECIPE-NAME", f"no recipe {name!r}", nearest(name, known))
    return parse_recipe(read_toml(known[name]), name)


def parse_recipe(table: Mapping[str, Any], name: str) -> Recipe:
    """Builds a recipe from its parsed TOML.

    Raises:
        UsageError: ``VIDC-RECIPE-FIELD``, a field is unknown, missing, of another type or at odds
            with another.
    """
    known = ("description", "linear", "attention")
    for key in table:
        if key not in known:
            raise _wrong(f"recipe {name} has no field {key!r}", nearest(key, known))
    description = table.get("description")
    if not isinstance(description, str) or not description.strip():
        raise _wrong(f"recipe {name} has no description", 'add description = "..." at its top')
    rules = Recipe(
        name,
        description,
        _rules(table.get("linear", []), LinearFormat, f"recipe {name}: [[linear]]"),
        _rules(table.get("attention", []), AttentionFormat, f"recipe {name}: [[attention]]"),
    )
    if not rules.linear and not rules.attention:
        raise _wrong(f"recipe {name} has no rules", "add a [[linear]] or an [[attention]]")
    return rules


def _rules(tables: Any, kind: type[Format], where: str) -> tuple[Rule[Format], ...]:
    if not isinstance(tables, list):
        raise _wrong(f"{where} is no list of tables", "write it with two brackets")
    return tuple(_rule(table, kind, f"{where} {i}") for i, table in enumerate(tables, 1))


def _rule(table: Any, kind: type[Format], where: str) -> Rule[Format]:
    if not isinstance(table, dict):
        raise _wrong(f"{where} is no table", "write it with two brackets")
    fields = dict(table)
    layers = fields.pop("layers", None)
    if not isinstance(layers, list) or not layers:
        raise _wrong(f"{where} names no layers", 'add layers = ["blocks.*.ffn.**"] or others')
    for layer in layers:
        if not isinstance(layer, str) or not is_pattern(layer):
            raise _wrong(f"{where}: {layer!r} is no pattern", "such as blocks.*.attn1.to_q")
    try:
        found = kind.from_table(fields, where)
    except UsageError as error:
        raise _wrong(error.message, error.hint) from error
    for field, choices in found.choices.items():
        value = getattr(found, field)
        if value not in choices:
            raise _wrong(f"{where}: {field} = {value!r}", nearest(value, choices))
    if found.problem is not None:
        raise _wrong(f"{where}: {found.problem}", "change it, or what it goes with")
    return Rule(tuple(layers), found)


def _wrong(message: str, hint: str) -> UsageError:
    return UsageError("VIDC-RECIPE-FIELD", message, hint)


_LINE = 100
"""Longest line in characters; a longer list of layers has one line for each."""
_ALWAYS = ("weights", "keys", "values")
"""Fields that are written even if they have their defaults."""


def recipe_toml(recipe: Recipe, comments: Sequence[str] = ()) -> str:
    """Writes a recipe as TOML with a final newline; its name is the file's.

    Args:
        recipe: to write.
        comments: lines at its top, without the ``#``.
    """
    head = [f"# {_printable(line)}".rstrip() for line in comments]
    parts = ["\n".join([*head, f"description = {toml_value(recipe.description)}"])]
    parts += [_rule_toml("linear", rule.layers, rule.format) for rule in recipe.linear]
    parts += [_rule_toml("attention", rule.layers, rule.format) for rule in recipe.attention]
    return "\n\n".join(parts) + "\n"


def _rule_toml(kind: str, layers: Sequence[str], form: LinearFormat | AttentionFormat) -> str:
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
    """Replaces characters that a TOML comment cannot hold."""
    return "".join(character if character.isprintable() else " " for character in line)
