"""The runtime program of a model: its spec, as a bundle's manifest stores it, and its modules."""

from typing import Any

from vidc.compiler.store.sources import class_modules
from vidc.exporters.families.family import Family
from vidc.runtime.program import program
from vidc.runtime.strict import read


def program_spec(model: Family) -> Any:
    """Returns the parameters of a model's program, an instance of the program's ``Spec``."""
    return read(model.spec(), program(model.program).Spec, "spec")


def model_modules(model: Family) -> tuple[str, ...]:
    """Returns modules for ``source_digest`` that cover a model's family and its program."""
    kinds = (type(model), program(model.program))
    return tuple(dict.fromkeys(module for kind in kinds for module in class_modules(kind)))
