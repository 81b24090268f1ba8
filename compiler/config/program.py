"""The runtime program of a model: its spec, as a bundle's manifest stores it, and its modules."""

from typing import Any

from vidc.compiler.store.sources import class_modules
from vidc.exporters.families.family import Family
from vidc.runtime.program import PROGRAMS, program, spec_class
from vidc.runtime.strict import read


def program_spec(model: Family) -> Any:
    """Returns the parameters of a model's program, an instance of the program's ``Spec``."""
    return read(model.spec(), spec_class(model.program), "spec")


def model_modules(model: Family) -> tuple[str, ...]:
    """Returns modules for ``source_digest`` that cover a model's family and its program."""
    where = PROGRAMS.get(model.program)
    # The bases of vidc's own programs are in modules that theirs import.
    played = class_modules(program(model.program)) if where is None else (where.partition(":")[0],)
    return tuple(dict.fromkeys((*class_modules(type(model)), *played)))
