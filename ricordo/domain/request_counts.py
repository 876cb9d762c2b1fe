"""Counts of this process's HTTP requests by route and status, and their durations.

They hold nothing that identifies a person.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, MutableMapping
from typing import Any

# Upper bounds of a histogram's buckets, in seconds.
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_METHODS = frozenset(("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"))


class Histogram:
    """Counts of durations by bucket (BOUNDS and one for more), and their sum in seconds."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.sum = 0.0

    def note(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.sum += seconds

    def cumulated(self) -> list[tuple[str, float]]:
        """Return the cumulative count for each bound, "+Inf" last."""
        counted = [sum(self.counts[: bucket + 1]) for bucket in range(len(self.counts))]
        return list(zip((*map(str, BOUNDS), "+Inf"), map(float, counted), strict=True))


class RequestCounts:
    """The requests of one process by method and route.

    A path without a route counts as "none".
    """

    def __init__(self) -> None:
        self.answers: Counter[tuple[str, str, int]] = Counter()
        self.times: MutableMapping[tuple[str, str], Histogram] = defaultdict(Histogram)

    def note(self, scope: Mapping[str, Any], status: int, seconds: float) -> None:
        """Count a request with its status.

        Args:
            scope: The ASGI scope after the request, with its route.
            status: The HTTP status; 0 if no response was sent.
            seconds: The duration of the request.
        """
        if scope["method"] in _METHODS:
            method = scope["method"]
        else:
            method = "other"
        route = getattr(scope.get("route"), "path", "none")
        self.answers[method, route, status] += 1
        self.times[method, route].note(seconds)
