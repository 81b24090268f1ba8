"""Steps of DDIM (arXiv 2010.02502) for a network that predicts v (arXiv 2202.00512)."""

import math
from collections.abc import Sequence
from itertools import pairwise


def velocity_steps(alphas: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """Returns the factors of the latent and of the prediction v in each step.

    With signal ``a = sqrt(alpha)`` and noise ``s = sqrt(1 - alpha)``, v predicts
    ``x0 = a x - s v`` and ``eps = s x + a v``; the step ends at ``a' x0 + s' eps``.

    Args:
        alphas: share of a latent's variance that is signal, before each step and after the last.
    """
    levels = [(math.sqrt(alpha), math.sqrt(1 - alpha)) for alpha in alphas]
    return tuple(
        (after * a + noise * s, noise * a - after * s)
        for (a, s), (after, noise) in pairwise(levels)
    )
