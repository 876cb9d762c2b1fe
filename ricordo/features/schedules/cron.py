"""When a cron expression comes next, in UTC: minute, hour, day of the month, month, and day of the week."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

from ricordo.domain.clock import to_datetime, to_micros
from ricordo.errors import Invalid

_PART = re.compile("(?:[*]|([0-9]{1,2})(?:-([0-9]{1,2}))?)(?:/([0-9]{1,2}))?")
# The longest wait for a time that comes at all: for a 29th of February on a certain weekday, over a year like 2100.
_YEARS = 41
# Each with its least and its greatest number, and names for the numbers from the least on.
_FIELDS = (
    ("minute", 0, 59, ""),
    ("hour", 0, 23, ""),
    ("day of the month", 1, 31, ""),
    ("month", 1, 12, "JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC"),
    ("day of the week", 0, 7, "SUN MON TUE WED THU FRI SAT"),
)


@dataclass(frozen=True, slots=True)
class Cron:
    """The times of an expression. Where both kinds of days are restricted, a day of either kind counts, as in Unix."""

    minutes: Sequence[int]
    hours: Sequence[int]
    days: Sequence[int]
    months: Sequence[int]
    weekdays: Sequence[int]
    takes_either: bool

    def next_after(self, micros: int) -> int | None:
        """Return the first time after this one; None where there is none. Times are microseconds."""
        begin = to_datetime(micros).replace(second=0, microsecond=0) + timedelta(minutes=1)
        day, end = begin.date(), min(begin.year + _YEARS, date.max.year)
        while day.year < end:
            if day.month not in self.months:
                day = (day.replace(day=1) + timedelta(days=32)).replace(day=1)
                continue
            times = (time(hour, minute) for hour in self.hours for minute in self.minutes) if self._has(day) else ()
            for each in times:
                found = datetime.combine(day, each, UTC)
                if found >= begin:
                    return to_micros(found)
            day += timedelta(days=1)
        return None

    def _has(self, day: date) -> bool:
        is_day, is_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return (is_day or is_weekday) if self.takes_either else (is_day and is_weekday)


def parse(expression: str) -> Cron:
    """Return the times of an expression of five fields. Raises Invalid."""
    given = expression.upper().split()
    if len(given) != len(_FIELDS):
        raise Invalid(
            f"A cron expression has five fields, and this one has {len(given)}: minute, hour, day of the month, month, day of "
            'the week. "0 9 * * MON-FRI" is every weekday at 9:00 UTC.'
        )
    minutes, hours, days, months, weekdays = (_values(text, *field) for text, field in zip(given, _FIELDS, strict=True))
    takes_either = not given[2].startswith("*") and not given[4].startswith("*")
    return Cron(minutes, hours, days, months, [day % 7 for day in weekdays], takes_either)


def _values(text: str, name: str, least: int, most: int, names: str) -> list[int]:
    """The numbers of one field."""
    numbers = {word: str(number) for number, word in enumerate(names.split(), least)}
    found: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(re.sub("[A-Z]+", lambda word: numbers.get(word[0], word[0]), part))
        begin, end, step = match.groups() if match else (None, None, "0")
        first = least if begin is None else int(begin)
        last = int(end) if end else most if step or begin is None else first
        if end and last == 0 and most == 7:
            last = 7  # a range of weekdays may end with Sunday
        if int(step or 1) == 0 or not least <= first <= last <= most:
            or_names = f", or {' '.join(numbers)}" if numbers else ""
            raise Invalid(
                f'"{part[:40]}" is no {name} of a cron expression. Use numbers from {least} to {most}{or_names}; ranges such as '
                '"1-5", steps such as "*/2", and commas between them.'
            )
        found.update(range(first, last + 1, int(step or 1)))
    return sorted(found)
