"""Recipes as TOML, shipped with vidc or written by a user: formats of layers by pattern."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Generic, TypeVar

from vidc.compiler.config.toml import read_toml, shipped, toml_value
from vidc.exporters.table import Table
from vidc.plugins.errors import UsageError, nearest

HIGH = "high"
FORMATS = (HIGH, "fp8", "int8")
"""``high`` is the 16 or 32 bits of the unquantized model, ``fp8`` E4M3, ``int8`` symmetric."""
STATIC, DYNAMIC = "static", "dynamic"
SCALES = (STATIC, DYNAMIC)


@dataclass(frozen=True)
class LinearFormat(Table):
    """Format of a linear layer.

    Attributes:
        weights: format of weights, with per-channel scales.
        activations: ``high``, or the weights' format; then the matmul is quantized.
        scale: of activations: ``static`` is one number, from the calibration; ``dynamic`` is
            computed for each token.
        smooth: SmoothQuant's alpha, the share of the activations' outliers that moves into the
            weights, channel by channel; 0 moves none.
        center: True to subtract the activations' per-channel mean, from the calibration, before
            quantization; the bias then contains the matmul of weights and mean.
    """

    weights: str = HIGH
    activations: str = HIGH
    scale: str = STATIC
    smooth: float = 0.0
    center: bool = False

    @property
    def problem(self) -> str | None:
        """Returns what is inconsistent, or None."""
        if self.activations not in (HIGH, self.weights):
            return f"activations in {self.activations} need weights in {self.activations} too"
        if self.activations == HIGH and (self.smooth or self.center or self.scale != STATIC):
            return "scale, smooth and center are about activations, which stay high"
        if not 0 <= self.smooth <= 1:
            return f"smooth = {self.smooth} does not lie between 0 and 1"
        return None

    @property
    def choices(self) -> dict[str, tuple[str, ...]]:
        """Returns the allowed values of its fields."""
        return {"weights": FORMATS, "activations": FORMATS, "scale": SCALES}

    @property
    def computes(self) -> bool:
        """True if the matmul is computed in 8 bits."""
        return self.activations != HIGH


@dataclass(frozen=True)
class ConvolutionFormat(Table):
    """Format of a convolution.

    Attributes:
        weights: ``high``, or ``int8`` with per-channel scales.
        activations: the weights' format; one static scale, from the calibration.
    """

    weights: str = HIGH
    activations: str = HIGH

    @property
    def problem(self) -> str | None:
        """Returns what is inconsistent, or None."""
        if self.activations != self.weights:
            return f"a convolution in {self.weights} needs activations in {self.weights} too"
        return None

    @property
    def choices(self) -> dict[str, tuple[str, ...]]:
        """Returns the allowed values of its fields."""
        return {"weights": (HIGH, "int8"), "activations": (HIGH, "int8")}

    @property
    def as_linear(self) -> LinearFormat:
        """The format as that of a matmul over patches."""
        return LinearFormat(self.weights, self.activations)


@dataclass(frozen=True)
class AttentionFormat(Table):
    """Format of a self-attention: dtype of its ring and of its matmuls.

    Attributes:
        queries: ``high``, or the keys' format; then both matmuls are quantized.
        keys: format of keys in the ring.
        values: format of values in the ring.
        scale: ``static`` is one number a head, from the calibration; ``dynamic`` is computed for
            each token and head, which PyTorch can evaluate and no engine supports.
        center: True to subtract the keys' mean per head and channel, from the calibration, before
            quantization. It shifts all scores of a query alike, so softmax does not change.
    """

    queries: str = HIGH
    keys: str = HIGH
    values: str = HIGH
    scale: str = STATIC
    center: bool = False

    @property
    def problem(self) -> str | None:
        """Returns what is inconsistent, or None."""
        if self.queries not in (HIGH, self.keys):
            return f"queries in {self.queries} need keys in {self.queries} too"
        if self.queries != HIGH and self.values == HIGH:
            return f"queries in {self.queries} need values in 8 bits too"
        if self.keys == HIGH and self.center:
            return "center is about keys in 8 bits, and these stay high"
        if self.keys == self.values == HIGH and self.scale != STATIC:
            return "scale is about keys and values in 8 bits, and these stay high"
        return None

    @property
    def choices(self) -> dict[str, tuple[str, ...]]:
        """Returns the allowed values of its fields."""
        return {"queries": FORMATS, "keys": FORMATS, "values": FORMATS, "scale": SCALES}

    @property
    def computes(self) -> bool:
        """True if both matmuls are computed in 8 bits."""
        return self.queries != HIGH


Format = TypeVar("Format", LinearFormat, ConvolutionFormat, AttentionFormat)


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
        convolution: rules for convolutions.
    """

    name: str
    description: str
    linear: tuple[Rule[LinearFormat], ...]
    attention: tuple[Rule[AttentionFormat], ...]
    convolution: tuple[Rule[ConvolutionFormat], ...] = ()

    def rules(self) -> dict[str, list[dict[str, Any]]]:
        """Returns the rules without the recipe's name, as plain JSON values."""
        return {
            "linear": [{"layers": list(r.layers), **asdict(r.format)} for r in self.linear],
            "attention": [{"layers": list(r.layers), **asdict(r.format)} for r in self.attention],
            **(
                {"convolution": [{"layers": list(r.layers), **asdict(r.format)} for r in found]}
                if (found := self.convolution)
                else {}
            ),
        }


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
        UsageError: ``VIDC-RECIPE-FIELD``, a field is unknown, missing, of a wrong type or
            inconsistent with another.
    """
    known = ("description", "linear", "attention", "convolution")
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
        _rules(table.get("convolution", []), ConvolutionFormat, f"recipe {name}: [[convolution]]"),
    )
    if not (rules.linear or rules.attention or rules.convolution):
        raise _wrong(
            f"recipe {name} has no rules", "add a [[linear]], a [[convolution]] or an [[attention]]"
        )
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
    parts += [_rule_toml("convolution", rule.layers, rule.format) for rule in recipe.convolution]
    parts += [_rule_toml("attention", rule.layers, rule.format) for rule in recipe.attention]
    return "\n\n".join(parts) + "\n"


def _rule_toml(
    kind: str,
    layers: Sequence[str],
    form: LinearFormat | ConvolutionFormat | AttentionFormat,
) -> str:
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


_PATTERN = re.compile(r"(\*\*|[\w*]+)(\.(\*\*|[\w*]+))*", re.ASCII)
"""A pattern of layer names: ``*`` matches within a part between dots, ``**`` whole parts."""
_MOST_LISTED = 12
"""Most kinds of layers that an error's hint lists."""
_INDEX = re.compile(r"(?<=\.)\d+(?=\.)")
"""The number of a block or layer in a layer's name."""


def is_pattern(text: str) -> bool:
    """Returns True if a text is a pattern or a name."""
    return _PATTERN.fullmatch(text) is not None and "***" not in text


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """Returns the names that a pattern matches, in order.

    ``blocks.*.ffn.**`` matches every layer of every block's feed-forward, ``blocks.0.attn1.to_*``
    every projection of one attention.
    """
    parts = pattern.split(".")
    return [name for name in names if _matches(parts, name.split("."))]


def require_matching(pattern: str, names: Sequence[str], where: str) -> list[str]:
    """Returns ``matching`` if it is not empty.

    Raises:
        UsageError: ``VIDC-RECIPE-LAYER``, with the nearest name.
    """
    found = matching(pattern, names)
    if not found:
        kinds = list(dict.fromkeys(_INDEX.sub("*", name, count=1) for name in names))
        close = get_close_matches(pattern, [*kinds, *names], n=1, cutoff=0.5)
        suggestion = f"did you mean {close[0]!r}? " if close else ""
        more = f" and {len(kinds) - _MOST_LISTED} more" if len(kinds) > _MOST_LISTED else ""
        raise UsageError(
            "VIDC-RECIPE-LAYER",
            f"{where}: the model has no layer {pattern!r}",
            f"{suggestion}layers: {', '.join(kinds[:_MOST_LISTED])}{more}",
        )
    return found


def _matches(pattern: Sequence[str], parts: Sequence[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_matches(pattern[1:], parts[skipped:]) for skipped in range(len(parts) + 1))
    if not parts:
        return False
    part = re.escape(pattern[0]).replace(r"\*", ".*")
    return re.fullmatch(part, parts[0]) is not None and _matches(pattern[1:], parts[1:])
