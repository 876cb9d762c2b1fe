"""The next time of a cron expression in a time zone.

An expression has the fields minute, hour, day of the month, month and day of the week. The library
steps through the times as Debian's cron does. Hours in an expression are times of the local clock.
If daylight saving skips such a time, the time comes at the end of the gap. If daylight saving
repeats it, only the first one counts. With `*` as the hour, every real hour counts.
"""

import re
from dataclasses import dataclass
from datetime import UTC

from cronsim import CronSim, CronSimError

from ricordo.domain.clock import to_datetime, to_micros, zone
from ricordo.errors import Invalid

NEVER = "This cron expression names a day that never comes. Check the day of the month."
_ZONE = re.compile(r"(?:CRON_TZ|TZ)=(\S+)\s+(.*)", re.DOTALL)
# Each field: the library's name, our name, and the lowest and highest number.
_FIELDS = (
    ("minute", "minute", 0, 59),
    ("hour", "hour", 0, 23),
    ("day-of-month", "day of the month", 1, 31),
    ("month", "month", 1, 12),
    ("day-of-week", "day of the week", 0, 7),
)
# The number of values of each field. A step must be smaller.
_STEPS = (60, 24, 31, 12, 7)
# The period after which the steps of a field start again.
_PERIODS = {
    "minute": "hour",
    "hour": "day",
    "day of the month": "month",
    "month": "year",
    "day of the week": "week",
}
_STEP = re.compile(r"/([0-9]+)")
_UNTIL_SUNDAY = re.compile(r"-(?:SUN|0)(?![0-9A-Z])")


@dataclass(frozen=True, slots=True)
class Cron:
    """The times of an expression in a time zone.

    `never` is True for a day of the month that never comes, such as 30 February.
    """

    fields: tuple[str, ...]
    timezone: str = "UTC"
    never: bool = False

    @property
    def text(self) -> str:
        """The expression in its stored form; it begins with its time zone, unless that is UTC."""
        fields = " ".join(self.fields)
        return fields if self.timezone == "UTC" else f"CRON_TZ={self.timezone} {fields}"

    def next_after(self, micros: int) -> int | None:
        """Return the first time after this time, in microseconds; None if there is none.

        Raises Invalid for an unknown time zone.
        """
        if self.never:
            return None
        start = to_datetime(micros).astimezone(zone(self.timezone))
        try:
            for time in CronSim(_stepped(self.fields), start):
                # If daylight saving repeats an hour, the library may return a time in the first of
                # the two hours. That time may have passed.
                timestamp = to_micros(time.astimezone(UTC))
                if timestamp > micros:
                    return timestamp
        except OverflowError:  # the end of the calendar
            return None
        return None


def parse(expression: str, timezone: str | None = None) -> Cron:
    """Return the times of an expression of five fields.

    The expression may begin with a time zone, as in `CRON_TZ=Europe/Berlin 0 9 * * *`. Raises
    Invalid.
    """
    cron = read_stored(expression, timezone)
    for text, (_, name, _, _), number_count in zip(cron.fields, _FIELDS, _STEPS, strict=True):
        for step in _STEP.findall(text):
            if int(step) >= number_count:
                raise Invalid(
                    f'"{text[:40]}" of this cron expression has a step of {int(step)}, but there '
                    f"are only {number_count} numbers for the {name}. A step starts again with "
                    f"each {_PERIODS[name]}, so it must be smaller. Name the times one by one "
                    "instead."
                )
    return cron


def names_zone(expression: str) -> bool:
    """Return whether the expression begins with a time zone."""
    return _ZONE.fullmatch(expression.strip()) is not None


def read_stored(expression: str, timezone: str | None = None) -> Cron:
    """Return the times of a stored expression, whose steps may have any size.

    Older versions accepted such steps. Raises Invalid.
    """
    if match := _ZONE.fullmatch(expression.strip()):
        if timezone not in (None, match[1]):
            raise Invalid(
                f"The cron expression is in {match[1][:80]}, "
                f"and timezone says {str(timezone)[:80]}. Give one."
            )
        timezone, expression = match.groups()
    zone(timezone or "UTC")
    fields = expression.upper().split()
    if len(fields) != len(_FIELDS):
        raise Invalid(
            f"A cron expression has five fields, and this one has {len(fields)}: "
            "minute, hour, day of the month, month, day of the week. "
            '"0 9 * * MON-FRI" is every weekday at 9:00.'
        )
    # A range of weekdays may end with Sunday, which is 7 at the end of a range.
    fields[4] = _UNTIL_SUNDAY.sub("-7", fields[4])
    cron = Cron(tuple(fields), timezone or "UTC")
    fault = _fault_of(fields)
    if fault is None:
        return cron
    if fault == "day-of-month" and _fault_of([*fields[:3], "*", *fields[4:]]) is None:
        return Cron(cron.fields, cron.timezone, never=True)
    index = next(index for index, field in enumerate(_FIELDS) if field[0] == fault)
    _, name, low, high = _FIELDS[index]
    raise Invalid(
        f'"{fields[index][:40]}" is no {name} of a cron expression. '
        f"Use numbers from {low} to {high}, or names such as MON and JAN; "
        'ranges such as "1-5", steps such as "*/2", and commas between them.'
    )


def _fault_of(fields: list[str]) -> str | None:
    """Return the library's name of the field that the library refuses; None if it refuses none."""
    try:
        CronSim(" ".join(fields), to_datetime(0))
    except CronSimError as error:
        return str(error).removeprefix("Bad ")
    except (ValueError, AssertionError, TypeError):  # such as a last weekday with a step
        return "day-of-week" if "L" in fields[4] else "day-of-month"
    return None


def _stepped(fields: tuple[str, ...]) -> str:
    """Return the expression for the library, with hours as times of the local clock.

    The library does this by itself only if neither minute nor hour begins with `*`.
    """
    minute, hour, *rest = fields
    if hour != "*":
        minute = _numbered(minute, 59)
        hour = _numbered(hour, 23)
    return " ".join((minute, hour, *rest))


def _numbered(text: str, highest: int) -> str:
    return f"0-{highest}{text[1:]}" if text.startswith("*") else text
