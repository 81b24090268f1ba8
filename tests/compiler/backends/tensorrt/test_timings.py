"""Timings of TensorRT, stored between builds. A stand-in measures: TensorRT needs its GPU."""

import pytest

from vidc.compiler.backends.tensorrt.timings import CODE, Timings


class Cache:
    """Times of kernels by name, of one GPU once there are any."""

    def __init__(self, gpu=None, known=()):
        self.gpu, self.known = gpu, set(known)

    def combine(self, other, ignore_mismatch):
        assert not ignore_mismatch, "another GPU's times are not these"
        fits = other.gpu in (self.gpu, None)
        self.known |= other.known if fits else set()
        return fits

    def serialize(self):
        return memoryview(f"{self.gpu}:{','.join(sorted(self.known))}".encode())


class Config:
    """A builder's configuration on a GPU."""

    def __init__(self, gpu="this"):
        self.gpu, self.cache = gpu, None

    def create_timing_cache(self, blob):
        gpu, _, known = blob.decode().partition(":")
        return Cache(gpu or None, filter(None, known.split(",")))

    def set_timing_cache(self, cache, ignore_mismatch):
        assert not ignore_mismatch
        if cache.gpu not in (self.gpu, None):
            return False
        self.cache = cache
        return True

    def build(self, *kernels):
        """Measures what is not known, and says which that is."""
        missing = set(kernels) - self.cache.known
        self.cache.gpu = self.gpu
        self.cache.known |= missing
        return missing


@pytest.fixture
def said():
    return []


@pytest.fixture
def build(tmp_path, said):
    """One build of some kernels: those that it had to measure."""

    def run(*kernels, gpu="this", meanwhile=None):
        timings, config = Timings(tmp_path / "kept" / "times", said.append), Config(gpu)
        timings.load(config)
        measured = config.build(*kernels)
        if meanwhile:
            meanwhile()
        timings.save(config)
        return measured

    return run


def test_cached_timings_are_reused(build, said):
    assert build("a", "b") == {"a", "b"}
    assert build("b", "c") == {"c"}
    assert build("a", "b", "c") == set()
    assert said == []


def test_timings_of_concurrent_build_are_merged(build):
    build("a", meanwhile=lambda: build("b"))
    assert build("a", "b") == set()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:20],
        lambda data: data[:-1],
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: b"x" + data[1:],
        lambda data: data + b"x",
    ],
    ids=["empty", "no digest", "cut", "flipped", "another head", "longer"],
)
def test_a_damaged_file_is_named_and_replaced(build, said, tmp_path, damage):
    build("a")
    file = tmp_path / "kept" / "times"
    file.write_bytes(damage(file.read_bytes()))
    assert build("a") == {"a"}
    assert said == [
        f"{CODE}: {file} cannot be used (it is damaged): kernels are measured again, and it is "
        "replaced"
    ]
    assert build("a") == set()
    assert len(said) == 1


def test_file_damaged_during_build_is_replaced(build, said, tmp_path):
    file = tmp_path / "kept" / "times"
    build("a", meanwhile=lambda: (file.parent.mkdir(), file.write_bytes(b"damaged")))
    assert build("a") == set()
    assert said == []


def test_timings_of_other_gpu_are_ignored(build, said):
    build("a")
    assert build("a", gpu="other") == {"a"}
    assert len(said) == 1
    assert said[0].startswith(f"{CODE}: ")
    assert "another GPU" in said[0]
    assert build("a", gpu="other") == set()


def test_build_succeeds_if_cache_cannot_be_written(build, said, tmp_path):
    (tmp_path / "kept").write_text("a file")
    assert build("a") == {"a"}
    assert len(said) == 2
    assert "cannot be used" in said[0]
    assert "cannot be written" in said[1]


@pytest.mark.filterwarnings("ignore:Use Deprecated in TensorRT-RTX:DeprecationWarning")
def test_cache_uses_product_api(tmp_path, said):
    """TensorRT-RTX keeps TensorRT's interface for it, and measures nothing."""
    rtx = pytest.importorskip("tensorrt_rtx")
    builder = rtx.Builder(rtx.Logger(rtx.Logger.ERROR))
    for _ in range(2):
        config, timings = builder.create_builder_config(), Timings(tmp_path / "times", said.append)
        timings.load(config)
        assert config.get_timing_cache() is not None
        timings.save(config)
    assert said == []
    assert (tmp_path / "times").stat().st_size > 100
