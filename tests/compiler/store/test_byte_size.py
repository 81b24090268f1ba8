import pytest

from vidc.compiler.store.disk import byte_size


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (2_500_000, "2.50 MB"),
        (10**9, "1.00 GB"),
        (5 * 10**12, "5000.00 GB"),
    ],
)
def test_formats_bytes_in_the_largest_unit(count, text):
    assert byte_size(count) == text
