"""Cron expressions: the next time of each, on the clocks of places, and what is refused."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from ricordo.errors import Invalid
from ricordo.features.schedules.cron import parse_cron

ROME = ZoneInfo("Europe/Rome")


@pytest.mark.parametrize(
    ("expression", "after", "expected"),
    [
        ("0 8 * * *", "2026-03-01T08:00", "2026-03-02T08:00"),
        ("*/15 9-17 * * mon-fri", "2026-11-20T17:45", "2026-11-23T09:00"),
        ("5/20 * * * *", "2026-01-01T00:05", "2026-01-01T00:25"),
        ("30 4 1,15 * 5", "2026-05-01T05:00", "2026-05-08T04:30"),  # a day of either kind
        ("0 0 29 feb *", "2026-01-01T00:00", "2028-02-29T00:00"),
        ("0 0 29 2 */7", "2026-01-01T00:00", "2032-02-29T00:00"),  # a star with a step is no choice: both have to fit
        ("0 0 31 * *", "2026-01-31T00:00", "2026-03-31T00:00"),
        ("0 0 * * 7", "2026-11-23T00:00", "2026-11-29T00:00"),
        ("@monthly", "2026-12-15T00:00", "2027-01-01T00:00"),
        ("59 23 31 12 *", "2026-12-31T23:59", "2027-12-31T23:59"),
    ],
)
def test_the_next_time(expression: str, after: str, expected: str) -> None:
    moment = datetime.fromisoformat(after).replace(tzinfo=UTC)
    assert parse_cron(expression).next_after(moment, UTC) == datetime.fromisoformat(expected).replace(tzinfo=UTC)


def test_the_clock_is_the_places_also_where_it_jumps() -> None:
    daily = parse_cron("30 2 * * *")
    moment, found = datetime(2026, 3, 27, 12, tzinfo=UTC), []
    for _ in range(4):
        moment = daily.next_after(moment, ROME)
        found.append(moment.isoformat()[5:16])
    assert found == ["03-28T01:30", "03-29T01:30", "03-30T00:30", "03-31T00:30"]  # half past two is skipped on the 29th
    hourly = parse_cron("30 * * * *")
    moment, seen = datetime(2026, 10, 24, 22, tzinfo=UTC), []
    for _ in range(5):
        moment = hourly.next_after(moment, ROME)
        seen.append(moment)
    assert seen == sorted(set(seen))


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("* * * *", "five fields"),
        ("60 * * * *", "minute of a cron expression: it goes from 0 to 59"),
        ("* * 0 * *", "day of the month"),
        ("*/0 * * * *", "holds nothing"),
        ("5-1 * * * *", "holds nothing"),
        ("a * * * *", "is no minute"),
        ("* * * * mon-", "day of the week"),
        ("\u0661 * * * *", "is no minute"),
        ("-1 * * * *", "is no minute"),
    ],
)
def test_what_is_no_expression_is_refused(expression: str, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        parse_cron(expression)


def test_what_never_comes_is_refused() -> None:
    with pytest.raises(Invalid, match="no day that comes"):
        parse_cron("0 0 30 2 *").next_after(datetime(2026, 1, 1, tzinfo=UTC), UTC)
