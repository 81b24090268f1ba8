import pytest

from vidc.compiler.config.targets import Target, targets


@pytest.fixture(scope="module")
def target(library, hopper) -> Target:
    return next(t for t in targets().values() if t.compute_capability == "9.0")
