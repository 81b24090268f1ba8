import pytest

from vidc.compiler.store.sources import versions
from vidc.plugins.errors import UnavailableError
from vidc.plugins.installation import install_extra


def test_versions_are_those_of_the_installed_packages() -> None:
    assert versions("torch", "vidc").keys() == {"torch", "vidc"}


def test_a_package_that_is_not_installed_is_named() -> None:
    with pytest.raises(UnavailableError, match="VIDC-ENV-BUILD") as error:
        versions("torch", "no-such-package")
    assert "no-such-package" in error.value.message
    assert install_extra("build") in error.value.hint
