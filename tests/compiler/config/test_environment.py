from pathlib import Path

import pytest

from vidc.compiler.config.environment import cache_root, environment_layer
from vidc.plugins.errors import UsageError


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"VIDC_CACHE": "/big/disk", "XDG_CACHE_HOME": "/x"}, Path("/big/disk")),
        ({"XDG_CACHE_HOME": "/x"}, Path("/x/vidc")),
        ({}, Path.home() / ".cache" / "vidc"),
        ({"VIDC_CACHE": ""}, Path.home() / ".cache" / "vidc"),
    ],
)
def test_the_cache_is_where_the_environment_says(environ, expected):
    assert cache_root(environ) == expected


def test_empty_variable_is_ignored():
    assert environment_layer({"VIDC_GPU": "", "VIDC_CUDA": "1", "PATH": "/bin"}) == {}


@pytest.mark.parametrize("read", [cache_root, environment_layer])
def test_an_unknown_variable_is_refused(read):
    with pytest.raises(UsageError, match="VIDC_CAHCE"):
        read({"VIDC_CAHCE": "/big/disk"})
