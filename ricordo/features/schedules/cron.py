"""Cron expressions: minute, hour, day of the month, month and day of the week (https://man7.org/linux/man-pages/man5/crontab.5.html)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo

from ricordo.errors import Invalid

_MONTHS = dict(zip("jan feb mar apr may jun jul aug sep oct nov dec".split(), range(1, 13), strict=True))
_DAYS = dict(zip("sun mon tue wed thu fri sat".split(), range(7), strict=True))
_FIELDS: tuple[tuple[str, int, int, Mapping[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of the month", 1, 31, {}),
    ("month", 1, 12, _MONTHS),
    ("day of the week", 0, 7, _DAYS),
)
_NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_PIECE = re.compile(r"(?:(\*)|(\w+)(?:-(\w+))?)(?:/(\d{1,4}))?")
# A 29 February that is a certain day of the week comes every 28 years, or after 40 around a year that is not a leap year.
_LOOKS_AHEAD = 41 * 366


@dataclass(frozen=True, slots=True)
class Cron:
    """When something comes, on the clock of a place. A day has to be one of `days` or of `weekdays`, where both are limited."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    is_any_day: bool
    is_any_weekday: bool

    def next_after(self, after: datetime, where: tzinfo) -> datetime:
        """Return the first time after `after`, in UTC. Raises Invalid for what never comes, such as a 30 February."""
        day = after.astimezone(where).date()
        for ahead in range(_LOOKS_AHEAD):
            if not self._is_on(today := day + timedelta(ahead)):
                continue
            for hour in self.hours:
                for minute in self.minutes:
                    # A time that a clock skips in spring comes an hour later; one that it shows twice in autumn comes once.
                    found = datetime.combine(today, time(hour, minute), where).astimezone(UTC)
                    if found > after:
                        return found
        raise Invalid("This cron expression names no day that comes. Check its day and month.")

    def _is_on(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        is_day, is_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return is_day and is_weekday if self.is_any_day or self.is_any_weekday else is_day or is_weekday


def parse_cron(text: str) -> Cron:
    """Read an expression of five fields, or one of the names such as @daily. Raises Invalid with what is wrong."""
    pieces = _NAMED.get(text.strip().lower(), text).split()
    if len(pieces) != len(_FIELDS):
        names = ", ".join(name for name, *_ in _FIELDS)
        raise Invalid(f"A cron expression has five fields: {names}. This one has {len(pieces)}.")
    found = [_values(piece, *field) for piece, field in zip(pieces, _FIELDS, strict=True)]
    minutes, hours, days, months, weekdays = found
    return Cron(
        tuple(sorted(minutes)),
        tuple(sorted(hours)),
        frozenset(days),
        frozenset(months),
        frozenset(day % 7 for day in weekdays),
        pieces[2].startswith("*"),
        pieces[4].startswith("*"),
    )


def _values(text: str, name: str, least: int, most: int, names: Mapping[str, int]) -> set[int]:
    found: set[int] = set()
    for piece in text.split(","):
        match = _PIECE.fullmatch(piece)
        if match is None:
            raise Invalid(f'"{piece[:40]}" is no {name} of a cron expression: write 5, 1-5, */10 or 1,2.')
        star, first, last, step = match.groups()
        begin = least if star else _number(first, name, least, most, names)
        end = most if star or (step and not last) else _number(last or first, name, least, most, names)
        if begin > end or step == "0":
            raise Invalid(f'"{piece[:40]}" is no {name} of a cron expression: it holds nothing.')
        found.update(range(begin, end + 1, int(step or 1)))
    return found


def _number(text: str, name: str, least: int, most: int, names: Mapping[str, int]) -> int:
    number = names.get(text.lower(), int(text) if text.isascii() and text.isdigit() else -1)
    if not least <= number <= most:
        raise Invalid(f'"{text[:40]}" is no {name} of a cron expression: it goes from {least} to {most}.')
    return number
