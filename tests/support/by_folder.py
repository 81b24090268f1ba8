"""Plugin of pytest-xdist: one worker runs the tests of a folder and builds what they share."""

import pytest

FIRST = (
    "tests/bundle",
    "tests/compiler/backends/aoti",
    "tests/runtime/engines",
    "tests/plugins",
    "tests/fuzz",
    "tests/bundle/families",
    "tests/bundle/tensorrt",
    "tests/exporters/onnx",
)
"""Folders that take minutes. At the end, one would leave all workers but one without work."""


def folder(nodeid):
    """Returns the folder of a test."""
    return nodeid.partition("::")[0].rpartition("/")[0]


def pytest_collection_modifyitems(items):
    """Moves the tests of ``FIRST`` to the front."""
    position = {name: place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: position.get(folder(item.nodeid), len(FIRST)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling

    class ByFolder(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return folder(nodeid)

    return ByFolder(config, log)
