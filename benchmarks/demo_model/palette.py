"""Colors as numbers: strong ones for objects, and dull ones for what is behind them."""

from collections.abc import Mapping
from types import MappingProxyType

from demo_model.attributes import Background, Color

Rgb = tuple[float, float, float]

OBJECTS: Mapping[Color, Rgb] = MappingProxyType(
    {
        Color.RED: (0.90, 0.13, 0.12),
        Color.YELLOW: (0.97, 0.82, 0.10),
        Color.GREEN: (0.10, 0.68, 0.22),
        Color.CYAN: (0.10, 0.80, 0.86),
        Color.BLUE: (0.14, 0.30, 0.92),
        Color.PURPLE: (0.62, 0.16, 0.82),
    }
)
"""RGB in 0..1; the weakest channel is at most 0.2 of the strongest."""

GROUNDS: Mapping[Background, Rgb] = MappingProxyType(
    {
        Background.SAND: (0.60, 0.55, 0.46),
        Background.GRASS: (0.41, 0.45, 0.35),
        Background.WOOD: (0.50, 0.44, 0.38),
        Background.STONE: (0.49, 0.50, 0.51),
        Background.CLOTH: (0.43, 0.46, 0.52),
        Background.BRICK: (0.52, 0.44, 0.41),
    }
)
"""RGB in 0..1; the weakest channel is at least 0.75 of the strongest."""
