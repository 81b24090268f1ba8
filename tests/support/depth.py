"""Numbers of examples that follow the hypothesis profile."""

from hypothesis import settings

FULL = 100
"""Examples of a property test under the profile ``full``."""


def examples(number: int) -> int:
    """Scales a test's own number of examples, given for the profile ``full``, to this profile."""
    return max(1, number * settings().max_examples // FULL)
