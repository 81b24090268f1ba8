"""A model's runtime program: its spec, its modules, and the `vidc run` command for a bundle."""

from typing import Any

from vidc.compiler.store.sources import class_modules
from vidc.exporters.families.family import Family
from vidc.plugins.names import TOKENIZER
from vidc.runtime.manifest import Manifest
from vidc.runtime.program import PROGRAMS, program, spec_class
from vidc.runtime.strict import read


def program_spec(model: Family) -> Any:
    """Returns the parameters of a model's program, an instance of the program's ``Spec``."""
    return read(model.spec(), spec_class(model.program), "spec")


def model_modules(model: Family) -> tuple[str, ...]:
    """Returns modules for ``source_digest`` that cover a model's family and its program."""
    where = PROGRAMS.get(model.program)
    # A module of one of vidc's own programs imports the modules of the session's base classes.
    played = class_modules(program(model.program)) if where is None else (where.partition(":")[0],)
    return tuple(dict.fromkeys((*class_modules(type(model)), *played)))


def run_words(manifest: Manifest, bundle: str) -> list[str]:
    """Returns the words of a ``vidc run`` command for a bundle's folder, with its inputs."""
    spec = manifest.spec
    if TOKENIZER in manifest.files:
        given = ["--prompt", "TEXT"]
    elif spec.prompt_shape:
        given = ["--prompt-embeds", "FILE.safetensors"]
    elif "action" in spec.condition_shapes:
        given = ["--actions", "FILE.csv"]
    else:
        given = ["--image", "PICTURE.png"]
    return ["vidc", "run", bundle, *given, "-o", "out.mp4"]
