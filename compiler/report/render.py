"""Fills a report's template, which extends ``base.html.j2`` of this package."""

from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined


def render(template: str, filters: Mapping[str, Callable[..., Any]], **values: Any) -> str:
    """Renders a template; every text in ``values`` is escaped.

    Args:
        template: package and file, such as ``vidc.compiler.report/base.html.j2``; ``extends`` in a
            template takes such a name too.
        filters: further filters of the template by name; ``sentence`` is always there.
        values: variables of the template.

    Raises:
        UndefinedError: jinja's, the template uses a variable that is not in ``values``.
    """
    environment = Environment(
        loader=FunctionLoader(_source),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"sentence": sentence, **filters}
    return environment.get_template(template).render(values)


def sentence(text: str) -> str:
    """Capitalizes the first letter only; jinja's ``capitalize`` lowers the rest: ``Vae``."""
    return text[:1].upper() + text[1:]


def _source(name: str) -> str:
    package, _, file = name.partition("/")
    return files(package).joinpath(file).read_text(encoding="utf-8")
