import pytest
import tiny_demo
from demo_model.networks import Sizes


@pytest.fixture(scope="session")
def preset(tmp_path_factory):
    return tiny_demo.write_preset(tmp_path_factory.mktemp("preset"))


@pytest.fixture(scope="session")
def sizes(preset):
    return Sizes.read(preset)


@pytest.fixture(scope="session")
def done(sizes):
    return tiny_demo.checkpoints(sizes)
