"""Plugin of pytest-xdist: the tests of a folder run in one worker, which builds what they share."""

import pytest


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling

    class ByFolder(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return nodeid.partition("::")[0].rpartition("/")[0]

    return ByFolder(config, log)
