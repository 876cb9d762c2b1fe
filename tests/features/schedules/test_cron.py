"""When cron expressions come: compared with a known library, and what that leaves open."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ricordo.domain.clock import to_datetime, to_micros
from ricordo.errors import Invalid
from ricordo.features.schedules import cron

NOW = datetime(2026, 11, 23, 10, 0, 30, tzinfo=UTC)


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
        ("0 0 13 * FRI", "2026-11-27 00:00"),  # either
        ("0 0 */2 * FRI", "2026-11-27 00:00"),  # both: a Friday with an odd day
        ("0 0 1-7 * */7", "2026-12-06 00:00"),  # both: the first Sunday
        ("0 0 31 * *", "2026-12-31 00:00"),
        ("0 0 31 APR,JUN,SEP *", "never"),
        ("0 0 30 2 *", "never"),
        ("0 0 30 2 MON", "2027-02-01 00:00"),
        ("0 0 29 2 *", "2028-02-29 00:00"),
        ("0 0 29 2 */7", "2032-02-29 00:00"),
        ("59 23 31 DEC *", "2026-12-31 23:59"),
    ],
)
def test_the_next_time(expression: str, expected: str) -> None:
    assert after(expression) == expected


def test_a_leap_day_is_found_over_a_year_without_one_and_on_its_weekday() -> None:
    assert after("0 0 29 2 *", datetime(2096, 3, 1, tzinfo=UTC)) == "2104-02-29 00:00"
    assert after("0 0 29 FEB */7", datetime(2088, 3, 1, tzinfo=UTC)) == "2128-02-29 00:00"


def test_the_last_minute_of_all_ends_quietly() -> None:
    assert after("0 0 1 1 *", datetime(9999, 12, 30, tzinfo=UTC)) == "never"


@pytest.mark.parametrize(
    "expression",
    [
        *("", "* * * *", "* * * * * *", "@daily", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * 32 * *", "* * * 13 *"),
        *(
            "* * * * 8",
            "*/0 * * * *",
            "5-1 * * * *",
            "1- * * * *",
            "-1 * * * *",
            "a * * * *",
            "MON * * * *",
            "1,, * * * *",
        ),
        *("* * * JANUARY *", "* * L * *", "* * * * 5#2", "1.5 * * * *", "٣ * * * *", "*/100 * * * *", "? * * * *"),
    ],
)
def test_what_is_none_is_refused_with_words(expression: str) -> None:
    with pytest.raises(Invalid, match="cron expression"):
        cron.parse(expression)


def field(least: int, most: int, *, is_day: bool = False) -> Any:
    number = st.integers(least, most)
    # A range of one number means all numbers to croniter.
    pairs = st.tuples(number, number).filter(lambda pair: pair[0] != pair[1])
    spans = pairs.map(lambda pair: f"{min(pair)}-{max(pair)}")
    steps = st.tuples(spans, st.integers(1, 9)).map(lambda pair: f"{pair[0]}/{pair[1]}")
    stars = st.just("*") if is_day else st.integers(1, most).map(lambda step: f"*/{step}")
    return st.one_of(st.just("*"), stars, st.lists(st.one_of(number.map(str), spans, steps), min_size=1).map(",".join))


@given(
    st.tuples(field(0, 59), field(0, 23), field(1, 28, is_day=True), field(1, 12), field(0, 6, is_day=True)),
    st.integers(946_684_800, 4_102_444_800),
)
def test_it_agrees_with_croniter(fields: tuple[str, ...], seconds: int) -> None:
    now = datetime.fromtimestamp(seconds, UTC)
    croniter = pytest.importorskip("croniter").croniter  # procrastinate brings it
    expected = croniter(" ".join(fields), now).get_next(datetime)
    assert after(" ".join(fields), now) == expected.strftime("%Y-%m-%d %H:%M")
