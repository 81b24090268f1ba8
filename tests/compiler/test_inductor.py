from pathlib import Path

from torch._inductor.runtime.cache_dir_utils import cache_dir


def test_workers_that_compile_one_program_write_to_different_caches(tmp_path_factory):
    assert Path(cache_dir()).is_relative_to(tmp_path_factory.getbasetemp())
