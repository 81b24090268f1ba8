"""Settings that every test runs under."""

import os
import shutil
import signal
from contextlib import suppress
from importlib import import_module

import pytest
from by_folder import (  # noqa: F401
    pytest_collection_modifyitems,
    pytest_xdist_make_scheduler,
)
from cpu_seconds import (  # noqa: F401
    pytest_runtest_logreport,
    pytest_runtest_makereport,
    pytest_terminal_summary,
)
from depth import FULL
from hypothesis import HealthCheck, settings

# Before torch is imported: tests run in parallel, one thread each. The C++ code that calls the
# kernels of an engine takes a quarter of its compilation, and its speed matters to no test.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL", "O0")

# A shell starts background commands, and they their own, with SIGINT ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

# `make test` runs fewer examples than `make test-all`; an example's time matters to no test.
for profile, examples in (("full", FULL), ("ci", FULL // 5)):
    settings.register_profile(
        profile,
        max_examples=examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile("full")


def pytest_addoption(parser):
    """Adds the options of ``tests/fuzz``."""
    parser.addoption("--fuzz-cases", type=int, default=27, help="mutations of each subject")
    parser.addoption("--fuzz-seed", type=int, default=1, help="seed of the mutations")
    parser.addoption("--fuzz-bundle", metavar="FOLDER", help="bundle to mutate")
    parser.addoption(
        "--kill-points", type=int, default=2, help="number of changes to kill builds at; 0: all"
    )
    parser.addoption(
        "--kill-times", type=int, default=1, help="number of random times of each signal"
    )
    parser.addoption("--soak-rounds", type=int, default=12, help="rounds in one process")


# Registers them with the settings, as the command line does.
import_module("vidc.compiler.backends")
# As vidc imports it, and before a test does otherwise: else its parser takes no plugins.
with suppress(ImportError, OSError):
    import_module("vidc.plugins.tensorrt_import").import_tensorrt("tensorrt_rtx")


@pytest.fixture(scope="session", autouse=True)
def own_inductor_cache(tmp_path_factory):
    """A cache for each worker: inductor overwrites a file in place that another may be reading.

    The build cache is each worker's own, too, where a test names none.
    """
    cache = tmp_path_factory.getbasetemp() / "inductor"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache))
        patch.setenv("VIDC_CACHE", str(tmp_path_factory.getbasetemp() / "build-cache"))
        yield cache
    shutil.rmtree(cache, ignore_errors=True)


@pytest.fixture
def without_gradients():
    import torch  # After OMP_NUM_THREADS is set.

    with torch.no_grad():
        yield


@pytest.fixture
def vidc(capsys):
    """Runs a command line; returns its exit status, stdout and stderr."""
    from vidc.compiler.cli.main import main  # Imports torch.

    def run(*arguments):
        with pytest.raises(SystemExit) as exited:
            main(arguments)
        captured = capsys.readouterr()
        return exited.value.code, captured.out, captured.err

    return run
