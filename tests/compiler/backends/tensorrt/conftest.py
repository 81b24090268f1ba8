from pathlib import Path

import plugin_build
import pytest

from vidc.plugins import loading


@pytest.fixture
def plugins(monkeypatch) -> Path:
    """The library of plugins in the package's place; returns its folder."""
    if plugin_build.lack is not None:
        pytest.skip(plugin_build.lack)
    folder = plugin_build.build(plugin_build.HEADERS[0])
    monkeypatch.setattr(loading, "files", lambda package: folder)
    return folder
