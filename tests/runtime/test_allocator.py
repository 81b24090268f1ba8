import pytest
import torch

from vidc.runtime.allocator import growing_segments


@pytest.fixture
def settings(monkeypatch):
    """All settings, the newest last; torch itself parses nothing."""
    found = [""]
    get = "_accelerator_getAllocatorSettings"
    monkeypatch.setattr(torch._C, get, lambda: found[-1], raising=False)
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", found.append)
    return found


@pytest.mark.parametrize(
    ("before", "inside", "after"),
    [
        ("", "expandable_segments:True", "expandable_segments:False"),
        (
            "max_split_size_mb:64",
            "max_split_size_mb:64,expandable_segments:True",
            "max_split_size_mb:64,expandable_segments:False",
        ),
        (
            "expandable_segments:True",
            "expandable_segments:True,expandable_segments:True",
            "expandable_segments:True",
        ),
    ],
)
def test_the_setting_of_the_process_comes_back(settings, before, inside, after):
    settings.append(before)
    with growing_segments():
        assert settings[-1] == inside
    assert settings[-1] == after


def test_setting_returns_after_a_failure(settings):
    with pytest.raises(ValueError, match="x"), growing_segments():
        raise ValueError("x")
    assert settings[-1] == "expandable_segments:False"


@pytest.mark.skipif(
    not hasattr(torch._C, "_accelerator_getAllocatorSettings"), reason="torch 2.11 does not tell"
)
def test_this_torch_takes_the_setting():
    with growing_segments():
        assert "expandable_segments:True" in torch._C._accelerator_getAllocatorSettings()


def test_reads_settings_from_the_environment_without_a_getter(settings, monkeypatch):
    monkeypatch.delattr(torch._C, "_accelerator_getAllocatorSettings")
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    with growing_segments():
        assert settings[-1] == "max_split_size_mb:64,expandable_segments:True"
    assert settings[-1] == "max_split_size_mb:64,expandable_segments:False"
