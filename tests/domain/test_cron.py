"""The times of cron expressions in UTC and in zones, compared with every minute."""

import random
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, available_timezones

import pytest

from ricordo.domain import cron
from ricordo.domain.clock import to_datetime, to_micros
from ricordo.errors import Invalid

NOW = datetime(2026, 11, 23, 10, 0, 30, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def after(expression: str, now: datetime = NOW) -> str:
    found = cron.parse(expression).next_after(to_micros(now))
    return "never" if found is None else to_datetime(found).strftime("%Y-%m-%d %H:%M")


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("* * * * *", "2026-11-23 10:01"),
        ("0 10 * * *", "2026-11-24 10:00"),
        ("*/20 8-9,22 * * *", "2026-11-23 22:00"),
        ("5/20 10 * * *", "2026-11-23 10:05"),
        ("0 9 * * MON-FRI", "2026-11-24 09:00"),
        ("0 9 * * fri-sun", "2026-11-27 09:00"),
        ("0 9 * * 7", "2026-11-29 09:00"),
        ("0 0 13 * FRI", "2026-11-27 00:00"),  # either field is enough: a Friday
        ("0 0 */2 * FRI", "2026-11-27 00:00"),  # both have to match: a Friday, an odd day
        (
            "0 0 1-7 * */6",
            "2026-12-05 00:00",
        ),  # both fields have to match, since `*/6` (Sunday, Saturday) begins with a star
        ("0 0 * * 5#2", "2026-12-11 00:00"),  # the second Friday
        ("0 0 L * *", "2026-11-30 00:00"),  # the last of the month
        ("0 0 31 * *", "2026-12-31 00:00"),
        ("0 0 31 APR,JUN,SEP *", "never"),
        ("0 0 30 2 *", "never"),
        ("0 0 30 2 MON", "2027-02-01 00:00"),
        ("0 0 29 2 *", "2028-02-29 00:00"),
        ("59 23 31 DEC *", "2026-12-31 23:59"),
        ("CRON_TZ=Asia/Tokyo 0 7 * * *", "2026-11-23 22:00"),
        ("TZ=Europe/Berlin 0 7 * * *", "2026-11-24 06:00"),
    ],
)
def test_a_cron_expression_gives_the_next_time(expression: str, expected: str) -> None:
    assert after(expression) == expected


def test_a_leap_day_is_found_across_a_century_without_one() -> None:
    assert after("0 0 29 2 *", datetime(2096, 3, 1, tzinfo=UTC)) == "2104-02-29 00:00"


def test_an_expression_without_a_next_time_gives_none() -> None:
    for expression in ("0 0 1 1 *", "CRON_TZ=America/Lima 0 0 1 1 *"):
        assert after(expression, datetime(9999, 12, 30, tzinfo=UTC)) == "never"


@pytest.mark.parametrize(
    "expression",
    [
        *(
            "",
            "* * * *",
            "* * * * * *",
            "@daily",
            "60 * * * *",
            "* 24 * * *",
            "* * 0 * *",
            "* * 32 * *",
            "* * * 13 *",
        ),
        *(
            "* * * * 8",
            "*/0 * * * *",
            "5-1 * * * *",
            "1- * * * *",
            "-1 * * * *",
            "a * * * *",
            "MON * * * *",
        ),
        *(
            "1,, * * * *",
            "* * * JANUARY *",
            "1.5 * * * *",
            "٣ * * * *",
            "? * * * *",
            "* * * * L",
            "* * L/x * *",
        ),
    ],
)
def test_an_invalid_expression_is_refused(expression: str) -> None:
    with pytest.raises(Invalid, match="cron expression"):
        cron.parse(expression)


def test_a_step_beyond_its_field_is_refused_but_still_runs_if_stored() -> None:
    steps = {
        0: (60, 90, 99, 120, 1440),
        1: (24, 25, 48, 72),
        2: (31, 60),
        3: (12, 13),
        4: (7, 8, 14),
    }
    for place, numbers in steps.items():
        for step in numbers:
            fields = ["0", "0", "*", "*", "*"]
            for start in ("*", "1", "1-5"):
                fields[place] = f"{start}/{step}"
                with pytest.raises(Invalid, match=f"a step of {step}"):
                    cron.parse(" ".join(fields))
    stored = cron.read_stored("*/90 * * * *").next_after(to_micros(NOW))
    assert stored == to_micros(datetime(2026, 11, 23, 11, 0, tzinfo=UTC))


def test_unknown_and_contradicting_zones_are_refused() -> None:
    for name in ("Mars/Base", "", "Europe/../UTC", "CEST+2"):
        with pytest.raises(Invalid):
            cron.parse("0 7 * * *", name or "x")
    with pytest.raises(Invalid, match="Give one"):
        cron.parse("CRON_TZ=Asia/Tokyo 0 7 * * *", "Europe/Berlin")


def local_times(expression: str, zone: str, start: datetime, count: int) -> list[str]:
    times, moment, where = [], to_micros(start), ZoneInfo(zone)
    for _ in range(count):
        moment = cron.parse(expression, zone).next_after(moment) or 0
        times.append(to_datetime(moment).astimezone(where).strftime("%d %H:%M%z"))
    return times


def test_seven_in_berlin_is_seven_before_and_after_a_clock_change() -> None:
    spring, autumn = datetime(2026, 3, 27, 12, tzinfo=UTC), datetime(2026, 10, 23, 12, tzinfo=UTC)
    zone = "Europe/Berlin"
    assert local_times("0 7 * * *", zone, spring, 3) == [
        "28 07:00+0100",
        "29 07:00+0200",
        "30 07:00+0200",
    ]
    assert local_times("0 7 * * *", zone, autumn, 3) == [
        "24 07:00+0200",
        "25 07:00+0100",
        "26 07:00+0100",
    ]
    # A time that the clock skips or repeats comes once.
    assert local_times("30 2 * * *", zone, spring, 3) == [
        "28 02:30+0100",
        "29 03:00+0200",
        "30 02:30+0200",
    ]
    assert local_times("30 2 * * *", zone, autumn, 3) == [
        "24 02:30+0200",
        "25 02:30+0200",
        "26 02:30+0100",
    ]
    assert local_times("*/30 2 * * *", zone, spring, 4)[2:] == ["29 03:00+0200", "30 02:00+0200"]


FORMS = (
    *(
        "0 7 * * *",
        "30 2 * * *",
        "*/20 1-3 * * *",
        "15 */2 * * *",
        "* 2 * * *",
        "0 0 * * *",
        "59 23 * * SUN",
    ),
    *(
        "0 * * * *",
        "*/15 * * * *",
        "45 * * * SAT,SUN",
        "0 2,3 * * 0",
        "30 0-23/3 * * *",
        "5 1 1-31/2 * *",
    ),
)


@lru_cache
def numbers(text: str, least: int, most: int) -> frozenset[int]:
    """Return the numbers of a field, written as in FORMS."""
    found: set[int] = set()
    for part in text.replace("SUN", "0").replace("SAT", "6").split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        begin = least if first == "*" else int(first)
        end = most if first == "*" else int(last or first)
        found.update(range(begin, end + 1, int(step or 1)))
    return frozenset(found)


def has(expression: str, time: datetime) -> bool:
    minute, hour, day, _, weekday = expression.split()
    return (
        time.minute in numbers(minute, 0, 59)
        and time.hour in numbers(hour, 0, 23)
        and time.day in numbers(day, 1, 31)
        and time.isoweekday() % 7 in numbers(weekday, 0, 6)
    )


def every_minute(expression: str, zone: ZoneInfo, start: datetime, hours: int) -> list[datetime]:
    """Compute the times by checking each minute.

    If the expression names hours, these are minutes of local time; otherwise, of real time.
    """
    if expression.split()[1] == "*":
        real = (start + MINUTE * number for number in range(1, hours * 60))
        return [time for time in real if has(expression, time.astimezone(zone))]
    found = set()
    wall = (start - timedelta(days=1)).astimezone(zone).replace(tzinfo=None)
    for number in range((hours + 48) * 60):
        if has(expression, time := wall + MINUTE * number):
            moment = time.replace(tzinfo=zone).astimezone(UTC)
            # The clock skips this time.
            while moment.astimezone(zone).replace(tzinfo=None) != time:
                time += MINUTE
                moment = time.replace(tzinfo=zone).astimezone(UTC)
            found.add(moment)
    return sorted(time for time in found if start < time < start + timedelta(hours=hours))


def changes_of(zone: ZoneInfo, year: int) -> list[datetime]:
    """Return the days of the year on which the zone's clocks change."""
    days = [datetime(year, 1, 1, tzinfo=UTC) + timedelta(days=number) for number in range(365)]
    return [
        one
        for one in days
        if one.astimezone(zone).utcoffset()
        != (one + timedelta(days=1)).astimezone(zone).utcoffset()
    ]


def test_the_next_times_agree_with_a_check_of_each_minute() -> None:
    chance = random.Random(5)  # noqa: S311
    zones = sorted(available_timezones())
    changing = [
        "Europe/Berlin",
        "America/New_York",
        "Australia/Lord_Howe",
        "America/Santiago",
        "Africa/Cairo",
    ]
    for name in (*changing, *chance.sample(zones, 25)):
        zone = ZoneInfo(name)
        days = changes_of(zone, 2026) or [datetime(2026, 6, 1, tzinfo=UTC)]
        expression, day = chance.choice(FORMS), chance.choice(days)
        start = day - timedelta(hours=chance.randrange(3, 9), minutes=chance.randrange(60))
        expected, moment, found = every_minute(expression, zone, start, 40), to_micros(start), []
        while (moment := cron.parse(expression, name).next_after(moment) or 0) < to_micros(
            start + timedelta(hours=40)
        ):
            found.append(to_datetime(moment))
        assert found == expected, (name, expression, start)


def test_every_zone_has_a_later_next_time() -> None:
    chance = random.Random(6)  # noqa: S311
    for name in sorted(available_timezones()):
        start = to_micros(NOW) + chance.randrange(400 * 86_400) * 1_000_000
        moment = cron.parse(chance.choice(FORMS), name).next_after(start)
        assert moment is not None
        assert start < moment <= start + 9 * 86_400 * 1_000_000, name
