"""How long to wait before something is tried again: longer each time, and not everyone at once."""

import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits in seconds: the first, by what each is longer than the one before, the longest, and how far chance spreads them."""

    first: float
    factor: float
    longest: float
    spread: tuple[float, float] = (0.5, 1.0)

    def seconds(self, attempt: int, chance: Callable[[], float] = random.random) -> float:
        """Return how long to wait after this attempt (1 is the first).

        >>> Backoff(2, 4, 600, spread=(1, 1)).seconds(3)
        32.0
        """
        least, most = self.spread
        steps = min(attempt - 1, 100)  # beyond that a float overflows
        return min(self.first * self.factor**steps, self.longest) * (least + (most - least) * chance())
