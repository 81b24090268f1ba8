"""Rings, and blocks that may begin and wrap anywhere in them."""

from hypothesis import strategies as st
from operators import Ring


@st.composite
def rings(draw: st.DrawFn) -> Ring:
    """Draws small rings with any number of slots."""
    window = draw(st.integers(1, 64))
    sink = draw(st.integers(0, window - 1))
    position = draw(st.one_of(st.integers(0, 2 * window), st.integers(2**31 - 9, 2**40)))
    # From within the sink a block reaches the rest of the ring once, from beyond it not twice.
    most = max(sink - position, 0) + window - sink
    return Ring(
        batch=draw(st.integers(1, 2)), tokens=draw(st.integers(1, most)),
        heads=draw(st.integers(1, 3)), head_dim=draw(st.sampled_from([32, 64, 128])),
        window=window, sink=sink, position=position,
    )  # fmt: skip
