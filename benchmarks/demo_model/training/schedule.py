"""Learning rates: up, level, and down to nothing where the end is known.

The end may be said while training runs, because how far twenty minutes reach is seen only then.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """A learning rate for each step.

    Attributes:
        peak: once warm.
        warmup: steps up to there.
        fall: the first step at which it falls; none where the end is not known.
        end: the first step that is not taken.
    """

    peak: float
    warmup: int = 100
    fall: int | None = None
    end: int | None = None

    def __post_init__(self) -> None:
        if (self.fall is None) != (self.end is None):
            raise ValueError("a schedule that ends falls before, and one that falls ends")
        if self.fall is not None and self.end is not None and not 0 <= self.fall <= self.end:
            raise ValueError(f"a schedule cannot fall at {self.fall} and end at {self.end}")

    def __call__(self, step: int) -> float:
        """The rate of a step."""
        rate = self.peak * min(1.0, (step + 1) / self.warmup)
        if self.fall is None or self.end is None or step < self.fall:
            return rate
        return rate * max(0.0, (self.end - step) / max(1, self.end - self.fall))

    def over(self, step: int) -> bool:
        """Whether a step is past the end."""
        return self.end is not None and step >= self.end
