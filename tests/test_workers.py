"""What tests that run side by side must not share."""

from pathlib import Path

from torch._inductor.runtime.cache_dir_utils import cache_dir


def test_inductor_s_cache_is_this_worker_s(own_inductor_cache, tmp_path_factory):
    assert Path(cache_dir()) == own_inductor_cache
    assert own_inductor_cache.is_relative_to(tmp_path_factory.getbasetemp())
