"""A clock that tests set. It moves by one microsecond a call, so that order by time is order of writing."""

import threading

START = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z


class ManualClock:
    """Stands still, but for one microsecond a call and for what `advance` adds."""

    def __init__(self, start: int = START) -> None:
        self._now = start
        self._lock = threading.Lock()

    def now(self) -> int:
        """Microseconds since 1970, UTC; each call gives a later one."""
        with self._lock:
            self._now += 1
            return self._now

    def advance(self, seconds: float) -> None:
        """Let this much time pass at once."""
        with self._lock:
            self._now += round(seconds * 1_000_000)
