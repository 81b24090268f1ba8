"""Settings that every test runs under."""

import os
import shutil
from importlib import import_module

import pytest
from hypothesis import HealthCheck, settings

# Before torch is imported: tests run in parallel, one thread each.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# How long an example takes on a busy machine is not what any of these tests is about.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


# Registers them with the settings, as the command line does.
import_module("vidc.compiler.backends")


@pytest.fixture(scope="session", autouse=True)
def own_inductor_cache(tmp_path_factory):
    """A cache for each worker: inductor overwrites a file in place that another may be reading."""
    cache = tmp_path_factory.getbasetemp() / "inductor"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache))
        yield cache
    shutil.rmtree(cache, ignore_errors=True)


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
