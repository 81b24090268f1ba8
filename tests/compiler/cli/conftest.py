import pytest


@pytest.fixture
def cache_folder(tmp_path, monkeypatch):
    """The build cache of the commands under test."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("VIDC_CACHE", str(folder))
    return folder
