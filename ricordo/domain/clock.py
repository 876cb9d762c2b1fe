"""Time: integer microseconds since 1970 in UTC from an injected clock, and backoff."""

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Protocol, overload
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
    """The source of timestamps; tests pass their own."""

    def now(self) -> int:
        """Return the microseconds since 1970, UTC."""
        ...


class SystemClock:
    """The machine's clock, made monotonic within one process.

    Each call returns a later time than the call before, so the order of times is the order of
    writing. While the machine's clock is behind, each call adds one microsecond. There is one
    exception: if the clock is set back by more than a minute, the earlier time must have been
    wrong, and the new time is used at once.
    """

    def __init__(self) -> None:
        self._last = 0

    def now(self) -> int:
        """Return the microseconds since 1970, UTC."""
        wall = time.time_ns() // 1000
        if self._last - wall > _SET_BACK:
            log.warning("the clock was set back", extra={"seconds": (self._last - wall) // SECOND})
            self._last = wall
        else:
            self._last = max(self._last + 1, wall)
        return self._last


def to_datetime(micros: int) -> datetime:
    """Return the time as an aware datetime in UTC, exact to the microsecond.

    Args:
        micros: The time in microseconds since 1970, UTC.
    """
    return _EPOCH + timedelta(microseconds=micros)


def to_micros(time: datetime, zone: tzinfo = UTC) -> int:
    """Return the microseconds since 1970, UTC.

    Args:
        time: The time, exact to the microsecond.
        zone: The time zone of a naive `time`; without effect for an aware one.
    """
    if time.tzinfo:
        aware = time
    else:
        aware = time.replace(tzinfo=zone)
    return (aware - _EPOCH) // timedelta(microseconds=1)


@lru_cache(maxsize=1024)
def zone(name: str) -> tzinfo:
    """Return the time zone with this IANA name.

    Args:
        name: The name, such as "Europe/Rome" or "UTC".

    Raises:
        Invalid: There is no such zone on this machine.
    """
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise Invalid(
            f'Time zone "{name}" is unknown. Use an IANA name, such as "Europe/Rome" or "UTC".'
        ) from error


def parse_date(text: str, zone: tzinfo, *, name: str, end: bool = False) -> int:
    """Return the microseconds of a `YYYY-MM-DD` date or an ISO 8601 time.

    Times outside the calendar in UTC become its first or last microsecond.

    Args:
        text: The date or time.
        zone: The time zone of a text that names none.
        name: The name of the field, for the error.
        end: A bare date means the last microsecond of its day instead of the first; a week means
            its Monday.

    Raises:
        Invalid: The text is no such date or time.
    """
    try:
        parsed = datetime.fromisoformat(text)
        if end and _is_bare_date(text):
            parsed += timedelta(days=1, microseconds=-1)
        return min(max(to_micros(parsed, zone), EARLIEST), LATEST)
    except (ValueError, OverflowError) as error:
        # wire fact: agents of the retired Letta V1 server know this sentence.
        raise Invalid(
            f"Invalid {name} format: {text}. Use ISO 8601 format (YYYY-MM-DD or YYYY-MM-DDTHH:MM)"
        ) from error


def _is_bare_date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def parse_timestamp(text: str, zone: tzinfo, *, name: str = "created_at") -> int:
    """Return the microseconds of a creation time, read as `parse_date` does.

    Args:
        text: The date or time.
        zone: The time zone of a text that names none.
        name: The name of the field, for the error.

    Raises:
        Invalid: The text is no date or time, or could not be shown in every time zone.
    """
    micros = parse_date(text, zone, name=name)
    try:
        # A margin of a day on both sides: the time may be shown in any time zone, and undated
        # messages get times near it.
        to_datetime(micros - DAY)
        to_datetime(micros + DAY)
    except OverflowError as error:
        raise Invalid(
            f"{name} {text} is out of range. Choose a time from 0001-01-02 to 9999-12-30, in UTC."
        ) from error
    return micros


def day_of(micros: int) -> int:
    """Return the start of the day in UTC.

    Args:
        micros: The time in microseconds since 1970, UTC, like the result.
    """
    return micros - micros % DAY


@dataclass(frozen=True, slots=True)
class Backoff:
    """Growing waits between attempts, in seconds.

    Attributes:
        first: The first wait.
        factor: Each wait is this many times as long as the wait before.
        longest: The limit of the waits.
        spread: The range of a random factor by which each wait is multiplied in the end.
    """

    first: float
    factor: float
    longest: float
    spread: tuple[float, float] = (0.5, 1.0)

    def seconds(self, attempt: int, chance: Callable[[], float] = random.random) -> float:
        """Return the wait after this attempt.

        >>> Backoff(2, 4, 600, spread=(1, 1)).seconds(3)
        32.0

        Args:
            attempt: The number of the attempt, from 1.
            chance: Returns a number from 0 to 1, which chooses a factor in `spread`.
        """
        low, high = self.spread
        steps = min(attempt - 1, 100)  # with many hundreds the float would overflow
        wait = min(self.first * self.factor**steps, self.longest)
        return wait * (low + (high - low) * chance())


@overload
def stamp(micros: int) -> str: ...
@overload
def stamp(micros: None) -> None: ...
def stamp(micros: int | None) -> str | None:
    """Return a timestamp in the form of the API: `2026-11-21T20:33:15.123456Z`.

    Args:
        micros: The time in microseconds since 1970, UTC; None returns None.
    """
    if micros is None:
        return None
    seconds, rest = divmod(micros, SECOND)
    return f"{_second(seconds)}.{rest:06d}Z"


@lru_cache(1024)
def _second(seconds: int) -> str:
    """Return a whole second as text, without a zone.

    It is cached, since the objects of one list often share it.
    """
    return to_datetime(seconds * SECOND).isoformat(timespec="seconds").removesuffix("+00:00")
