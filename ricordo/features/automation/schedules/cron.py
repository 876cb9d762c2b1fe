"""When a cron expression comes next, in a time zone: minute, hour, day of the month, month, and day of the week.

The library steps through the times as Debian's cron does. Hours that are named are times of the clock: one that a night does not
have comes once, at the end of the gap, and one that it has twice comes the first time alone. With `*` every real hour counts.
"""

import re
from dataclasses import dataclass
from datetime import UTC

from cronsim import CronSim, CronSimError

from ricordo.domain.clock import to_datetime, to_micros, zone
from ricordo.errors import Invalid

NEVER = "This cron expression names a day that never comes. Check the day of the month."
_ZONE = re.compile(r"(?:CRON_TZ|TZ)=(\S+)\s+(.*)", re.DOTALL)
# As the library calls them, with their least and greatest number; a step has to be less than there are numbers.
_FIELDS = (
    ("minute", "minute", 0, 59),
    ("hour", "hour", 0, 23),
    ("day-of-month", "day of the month", 1, 31),
    ("month", "month", 1, 12),
    ("day-of-week", "day of the week", 0, 7),
)
_STEPS = (60, 24, 31, 12, 7)
_STEP = re.compile(r"/([0-9]+)")
_UNTIL_SUNDAY = re.compile(r"-(?:SUN|0)(?![0-9A-Z])")


@dataclass(frozen=True, slots=True)
class Cron:
    """The times of an expression in a time zone; `never` where it names a day that no month has."""

    fields: tuple[str, ...]
    timezone: str = "UTC"
    never: bool = False

    @property
    def text(self) -> str:
        """The expression as it is stored: its time zone stands before it."""
        fields = " ".join(self.fields)
        return fields if self.timezone == "UTC" else f"CRON_TZ={self.timezone} {fields}"

    def next_after(self, micros: int) -> int | None:
        """Return the first time after this one; None where there is none. Times are microseconds. Raises Invalid."""
        if self.never:
            return None
        where = zone(self.timezone)
        try:
            for time in CronSim(_stepped(self.fields), to_datetime(micros).astimezone(where)):
                # In an hour that comes twice, the library may name a time of its first round.
                if (moment := to_micros(time.astimezone(UTC))) > micros:
                    return moment
        except OverflowError:  # the end of the calendar
            return None
        return None


def parse(expression: str, timezone: str | None = None) -> Cron:
    """Return the times of an expression of five fields, before which may stand `CRON_TZ=Europe/Berlin`. Raises Invalid."""
    cron = read_stored(expression, timezone)
    for text, (_, name, _, _), most in zip(cron.fields, _FIELDS, _STEPS, strict=True):
        for step in _STEP.findall(text):
            if int(step) >= most:
                raise Invalid(
                    f'"{text[:40]}" of this cron expression has a step of {int(step)}, and there are {most} numbers of a {name}: '
                    f"a step begins anew with each {_WHOLES[name]}, so it has to be less. Name the times one by one instead."
                )
    return cron


_WHOLES = {
    "minute": "hour",
    "hour": "day",
    "day of the month": "month",
    "month": "year",
    "day of the week": "week",
}


def read_stored(expression: str, timezone: str | None = None) -> Cron:
    """Return the times of an expression as it was stored: older versions took steps of any size. Raises Invalid."""
    if match := _ZONE.fullmatch(expression.strip()):
        if timezone not in (None, match[1]):
            raise Invalid(
                f"The cron expression is in {match[1][:80]}, and timezone says {str(timezone)[:80]}. Give one."
            )
        timezone, expression = match[1], match[2]
    zone(timezone or "UTC")
    fields = expression.upper().split()
    if len(fields) != len(_FIELDS):
        raise Invalid(
            f"A cron expression has five fields, and this one has {len(fields)}: minute, hour, day of the month, month, day of "
            'the week. "0 9 * * MON-FRI" is every weekday at 9:00.'
        )
    # A range of weekdays may end with Sunday.
    fields[4] = _UNTIL_SUNDAY.sub("-7", fields[4])
    cron = Cron(tuple(fields), timezone or "UTC")
    fault = _fault_of(fields)
    if fault is None:
        return cron
    if fault == "day-of-month" and _fault_of([*fields[:3], "*", *fields[4:]]) is None:
        return Cron(cron.fields, cron.timezone, never=True)
    place = next(number for number, field in enumerate(_FIELDS) if field[0] == fault)
    _, name, least, most = _FIELDS[place]
    raise Invalid(
        f'"{fields[place][:40]}" is no {name} of a cron expression. Use numbers from {least} to {most}, or names such as '
        'MON and JAN; ranges such as "1-5", steps such as "*/2", and commas between them.'
    )


def _fault_of(fields: list[str]) -> str | None:
    """Return the library's name of the field that it does not read."""
    try:
        CronSim(" ".join(fields), to_datetime(0))
    except CronSimError as error:
        return str(error).removeprefix("Bad ")
    except (ValueError, AssertionError, TypeError):  # such as a last weekday with a step
        return "day-of-week" if "L" in fields[4] else "day-of-month"
    return None


def _stepped(fields: tuple[str, ...]) -> str:
    """Return the expression as the library takes named hours for times of the clock: by fields that begin with no star."""
    minute, hour, *rest = fields
    if hour != "*":
        minute = _numbered(minute, 59)
        hour = _numbered(hour, 23)
    return " ".join((minute, hour, *rest))


def _numbered(text: str, most: int) -> str:
    return f"0-{most}{text[1:]}" if text.startswith("*") else text
