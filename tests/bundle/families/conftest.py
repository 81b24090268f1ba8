"""Small worlds, each built once for every test of this folder."""

import os
from functools import cache
from pathlib import Path

import pytest
from world_cases import CASES, build


@pytest.fixture(scope="session")
def worlds(tmp_path_factory):
    """Builds the world of a case once; returns its ``BuiltWorld``."""

    @cache
    def built(name):
        # The cache of the command line, for the tests that build.
        folder = tmp_path_factory.mktemp(name)
        return build(CASES[name], folder, Path(os.environ["VIDC_CACHE"]))

    return built
