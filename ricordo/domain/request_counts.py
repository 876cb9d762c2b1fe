"""What was asked of this process over HTTP: how often, how it was answered, and how long that took. Nothing of it names anybody."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, MutableMapping
from typing import Any

# Seconds up to which the buckets of a histogram count.
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_METHODS = frozenset(("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"))


class Histogram:
    """How many took how long: a count for each of BOUNDS and one for more, and the sum in seconds."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.sum = 0.0

    def note(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.sum += seconds

    def cumulated(self) -> list[tuple[str, float]]:
        """Return for each bound, at last for "+Inf", how many took at most so long."""
        counted = [sum(self.counts[: place + 1]) for place in range(len(self.counts))]
        return list(zip((*map(str, BOUNDS), "+Inf"), map(float, counted), strict=True))


class RequestCounts:
    """The requests of one process by method and route; a path that is no route counts as "none"."""

    def __init__(self) -> None:
        self.answers: Counter[tuple[str, str, int]] = Counter()
        self.times: MutableMapping[tuple[str, str], Histogram] = defaultdict(Histogram)

    def note(self, scope: Mapping[str, Any], status: int, seconds: float) -> None:
        """Count a request that was answered with this status, 0 for one that never was."""
        method = scope["method"] if scope["method"] in _METHODS else "other"
        route = getattr(scope.get("route"), "path", "none")
        self.answers[method, route, status] += 1
        self.times[method, route].note(seconds)
