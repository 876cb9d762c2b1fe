"""The days until a date, in the time zone of the settings."""

from datetime import date, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from ricordo.errors import Invalid
from ricordo_countdown.options import CountdownSettings


def days_until(day: str) -> int:
    """Return the number of days until a day, written like 2027-06-30. Raises Invalid."""
    name = CountdownSettings.current().countdown_timezone
    try:
        today = datetime.now(ZoneInfo(name)).date()
        return (date.fromisoformat(day) - today).days
    except ZoneInfoNotFoundError as error:
        raise Invalid(f"RICORDO_COUNTDOWN_TIMEZONE={name} is no time zone.") from error
    except ValueError as error:
        raise Invalid(f'"{day[:40]}" is no date. Write it like 2027-06-30.') from error
