from vidc.compiler import backends
from vidc.compiler.config.backend import PREFERENCE
from vidc.compiler.config.targets import targets


def test_preference_lists_every_backend():
    for device, names in PREFERENCE.items():
        assert sorted(names) == sorted(backends.names()), device


def test_there_is_a_backend_for_a_cpu():
    assert any(backends.backend(name).precisions(targets()["cpu"]) for name in PREFERENCE["cpu"])
