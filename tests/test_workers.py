"""Collection of tests, and isolation of pytest-xdist's workers."""

import os
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import by_folder
from torch._inductor.runtime.cache_dir_utils import cache_dir

TESTS = Path(__file__).parent


def test_each_worker_has_its_own_inductor_cache(own_inductor_cache, tmp_path_factory):
    assert Path(cache_dir()) == own_inductor_cache
    assert own_inductor_cache.is_relative_to(tmp_path_factory.getbasetemp())


def test_one_worker_runs_all_tests_of_a_folder(tmp_path):
    """Session and module fixtures of a folder are then built once, not in each worker."""
    body = "import os, pathlib, time, pytest\n@pytest.mark.parametrize('i', range(4))\n"
    body += "def test(i):\n    time.sleep(0.05)\n"
    body += "    worker = os.environ['PYTEST_XDIST_WORKER']\n"
    body += "    pathlib.Path(__file__).with_name(worker).touch()\n"
    for folder in "abc":
        (tmp_path / folder).mkdir()
        for name in "de":
            (tmp_path / folder / f"test_{folder}{name}.py").write_text(body)
    words = [sys.executable, "-m", "pytest", "-n", "2", "-q", str(tmp_path)]
    words += ["--rootdir", str(tmp_path), "-p", "xdist.plugin", "-p", "by_folder"]
    words += ["-p", "no:cacheprovider"]
    settings = {"PYTHONPATH": str(Path(by_folder.__file__).parent)}
    settings["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # They take seconds to import.
    environment = os.environ | settings
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    workers = [{path.name for path in (tmp_path / folder).glob("gw*")} for folder in "abc"]
    assert [len(each) for each in workers] == [1, 1, 1]
    assert set.union(*workers) == {"gw0", "gw1"}


def test_folders_that_take_minutes_come_first(request):
    folders = [by_folder.folder(item.nodeid) for item in request.session.items]
    ran = [folder for folder in by_folder.FIRST if folder in folders]
    assert list(dict.fromkeys(folders))[: len(ran)] == ran
    assert all((request.config.rootpath / folder).is_dir() for folder in by_folder.FIRST)


def test_no_folder_of_tests_is_left_out(pytestconfig):
    """pytest leaves out folders named ``build``, unless the project says which ones."""
    patterns = pytestconfig.getini("norecursedirs")
    folders = {folder for file in TESTS.rglob("test_*.py") for folder in file.parents}
    names = {folder.name for folder in folders if folder.is_relative_to(TESTS)}
    assert {"build", "gpu"} <= names
    assert [name for name in names if any(fnmatch(name, each) for each in patterns)] == []
