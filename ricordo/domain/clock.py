"""Time as Ricordo keeps it: integers, microseconds since 1970 in UTC, from one clock that is passed in; and how long to wait."""

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from ricordo.errors import Invalid

log = logging.getLogger(__name__)
SECOND = 1_000_000
DAY = 24 * 3600 * SECOND
_SET_BACK = 60 * SECOND
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The calendar's first and last microsecond, UTC.
EARLIEST, LATEST = -62_135_596_800_000_000, 253_402_300_799_999_999


class Clock(Protocol):
    """Where times come from; tests pass one of their own."""

    def now(self) -> int:
        """Microseconds since 1970, UTC."""
        ...


class SystemClock:
    """The machine's clock, which waits instead of going back within one process, so that order by time is order of writing.

    One that is set back by more than a minute was wrong before, and is followed: else time would stand still until it is made up.
    """

    def __init__(self) -> None:
        self._last = 0

    def now(self) -> int:
        """Microseconds since 1970, UTC."""
        wall = time.time_ns() // 1000
        if self._last - wall > _SET_BACK:
            log.warning("the clock was set back", extra={"seconds": (self._last - wall) // SECOND})
            self._last = wall
        else:
            self._last = max(self._last + 1, wall)
        return self._last


def to_datetime(micros: int) -> datetime:
    """Return the time as an aware datetime in UTC, exact to the microsecond."""
    return _EPOCH + timedelta(microseconds=micros)


def to_micros(time: datetime, zone: tzinfo = UTC) -> int:
    """Microseconds since 1970; a naive datetime is read in `zone`."""
    aware = time if time.tzinfo else time.replace(tzinfo=zone)
    return (aware - _EPOCH) // timedelta(microseconds=1)


def zone(name: str) -> tzinfo:
    """The time zone with this IANA name; raises Invalid where there is none."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise Invalid(
            f'Time zone "{name}" is unknown. Use an IANA name, such as "Europe/Rome" or "UTC".'
        ) from error


def parse_date(text: str, where: tzinfo, *, name: str, end: bool = False) -> int:
    """Read `YYYY-MM-DD` or an ISO 8601 time; without a zone it is read in `where`. A bare `end` date means its last microsecond.

    What lies beyond the calendar in UTC is its first or last microsecond.
    """
    try:
        parsed = datetime.fromisoformat(text)
        if end and len(text) <= len(
            "2026-01-01"
        ):  # every ISO form with a time is longer, every bare date is not
            parsed += timedelta(days=1, microseconds=-1)
        return min(max(to_micros(parsed, where), EARLIEST), LATEST)
    except (ValueError, OverflowError) as error:
        # A wire fact: agents of the retired Letta V1 server know this sentence.
        raise Invalid(
            f"Invalid {name} format: {text}. Use ISO 8601 format (YYYY-MM-DD or YYYY-MM-DDTHH:MM)"
        ) from error


def parse_timestamp(text: str, where: tzinfo, *, name: str = "created_at") -> int:
    """Read a creation time, as `parse_date` does; raises Invalid where it could not be shown again."""
    micros = parse_date(text, where, name=name)
    try:
        # A day to spare: it is shown in any time zone, and what has no date of its own is put right beside it.
        to_datetime(micros - DAY), to_datetime(micros + DAY)
    except OverflowError as error:
        raise Invalid(
            f"{name} {text} lies beyond the calendar. Choose a time from 0001-01-02 to 9999-12-30, in UTC."
        ) from error
    return micros


def day_of(micros: int) -> int:
    """Return the start of the day, UTC."""
    return micros - micros % DAY


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
        return min(self.first * self.factor**steps, self.longest) * (
            least + (most - least) * chance()
        )
