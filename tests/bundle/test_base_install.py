"""A finished bundle runs on the base install: the extras add dependencies, not features."""

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from vidc.plugins.installation import install_extra

RUN_WITHOUT = """
import sys

class Blocker:
    blocked = set({blocked!r})
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.blocked:
            raise ModuleNotFoundError(f"{{name}} is not part of the base install", name=name)

sys.meta_path.insert(0, Blocker())
from vidc.compiler.cli import main
main({arguments!r})
"""


def base_distributions() -> set[str]:
    """The distributions that ``pip install vidc`` brings, without any extra."""
    found: set[str] = set()
    todo = ["vidc"]
    while todo:
        name = canonicalize_name(todo.pop())
        if name in found:
            continue
        found.add(name)
        try:
            needed = requires(name) or []
        except PackageNotFoundError:
            continue
        for text in needed:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                todo.append(requirement.name)
    return found


def blocked_modules() -> list[str]:
    """Top-level modules of every other distribution that is installed here."""
    base = base_distributions()
    return sorted(
        module
        for module, owners in packages_distributions().items()
        if not {canonicalize_name(owner) for owner in owners} & base
    )


def test_the_block_is_one():
    blocked = blocked_modules()
    assert {"diffusers", "transformers", "onnx", "onnxscript", "peft", "pytest"} <= set(blocked)
    assert not {"torch", "numpy", "click", "onnxruntime", "vidc"} & set(blocked)


@pytest.mark.parametrize(
    "arguments",
    [
        ["validate", "{bundle}", "--report", "{folder}/report.html"],
        ["run", "{bundle}", "--prompt", "a cat", "--blocks", "2", "-o", "{folder}/out.mp4"],
        ["bench", "{bundle}", "--samples", "1", "--warmup", "0",
         "--cold-starts", "0",
         "--report", "{folder}/bench.html"],
        ["inspect", "{bundle}"],
        ["doctor"],
        ["presets", "list"],
    ],
    ids=lambda arguments: arguments[0],
)  # fmt: skip
def test_a_command_on_the_base_install(project, tmp_path, arguments):
    filled = [a.format(bundle=project.bundle, folder=tmp_path) for a in arguments]
    script = RUN_WITHOUT.format(blocked=blocked_modules(), arguments=filled)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_eager_baseline_needs_the_build_packages(project):
    arguments = ["bench", str(project.bundle), "--against", "eager", "--samples", "1"]
    script = RUN_WITHOUT.format(blocked=blocked_modules(), arguments=arguments)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 3, done.stderr
    assert "VIDC-ENV-BUILD" in done.stderr
    assert install_extra("build") in done.stderr
