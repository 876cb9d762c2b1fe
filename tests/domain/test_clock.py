"""Times: microseconds, zones, and dates as people and agents write them."""

from datetime import UTC, datetime, timedelta, timezone
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ricordo.domain.clock import (
    SECOND,
    SystemClock,
    parse_date,
    parse_timestamp,
    to_datetime,
    to_micros,
    zone,
)
from ricordo.errors import Invalid
from tests.seams.stores import START

NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)


@given(
    st.datetimes(timezones=st.just(UTC)),
    st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999),
)
def test_a_time_survives_the_round_trip_to_the_microsecond(moment: datetime, micros: int) -> None:
    assert to_datetime(to_micros(moment)) == moment
    assert to_micros(to_datetime(micros)) == micros


def test_a_naive_time_is_read_in_the_given_zone_and_an_aware_one_in_its_own() -> None:
    assert to_micros(datetime(2026, 7, 1, 14), zone("Europe/Rome")) == to_micros(NOON)  # noqa: DTZ001
    assert to_micros(datetime(2026, 1, 1, 13), zone("Europe/Rome")) == START + 12 * 3600 * 1_000_000  # noqa: DTZ001
    assert to_micros(datetime(2026, 7, 1, 12)) == to_micros(NOON)  # noqa: DTZ001
    moment = datetime(2026, 7, 1, 14, tzinfo=timezone(timedelta(hours=2)))
    assert to_micros(moment, zone("America/New_York")) == to_micros(NOON)


def test_an_unknown_zone_is_refused_with_a_valid_example() -> None:
    for name in ("Mars/Olympus", "", "../etc/passwd", "Europe", "Europe/Rome\x00", "x" * 5000):
        with pytest.raises(Invalid, match="IANA name"):
            zone(name)


def test_a_date_begins_at_midnight_and_as_an_end_includes_the_whole_day() -> None:
    rome = zone("Europe/Rome")
    assert to_datetime(parse_date("2026-07-01", rome, name="start_date")) == datetime(
        2026, 6, 30, 22, tzinfo=UTC
    )
    last = datetime(2026, 7, 1, 23, 59, 59, 999_999, tzinfo=UTC)
    for text in ("2026-07-01", "20260701"):
        assert to_datetime(parse_date(text, UTC, name="end_date", end=True)) == last
    for text, where in (("2026-07-01T12:00", "UTC"), ("2026-07-01T14:00+02:00", "Asia/Tokyo")):
        assert parse_date(text, zone(where), name="end_date", end=True) == to_micros(NOON)
    for text in ("yesterday", "2026-13-01", "", "1767225600"):
        with pytest.raises(Invalid, match="Invalid start_date format"):
            parse_date(text, UTC, name="start_date")
    for text, place in product(
        ("0001-01-01", "9999-12-31"), ("UTC", "Pacific/Kiritimati", "Pacific/Honolulu")
    ):
        assert parse_date(text, zone(place), name="end_date", end=True) > parse_date(
            text, zone(place), name="end_date"
        )


def test_the_system_clock_always_advances_and_never_goes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SystemClock()
    first = clock.now()
    assert abs(to_datetime(first) - datetime.now(UTC)) < timedelta(minutes=1)
    monkeypatch.setattr("ricordo.domain.clock.time.time_ns", lambda: (first - 50 * SECOND) * 1000)
    assert first < clock.now() < clock.now()


def test_a_clock_that_was_set_back_far_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SystemClock()
    for jump in (61, 3_600, 86_400, 10**7, 10**9):
        true = clock.now()
        for offset in (jump * SECOND, 0):
            monkeypatch.setattr(
                "ricordo.domain.clock.time.time_ns", lambda at=true + offset: at * 1000
            )
            assert clock.now() - true - offset < SECOND
        monkeypatch.setattr(
            "ricordo.domain.clock.time.time_ns", lambda at=true + 30 * SECOND: at * 1000
        )
        assert clock.now() - true >= 30 * SECOND


def test_a_time_that_some_zone_cannot_show_is_refused() -> None:
    assert parse_timestamp("2024-05-06T07:08:09+02:00", UTC) == to_micros(
        datetime(2024, 5, 6, 5, 8, 9, tzinfo=UTC)
    )
    for text in (
        *("9999-12-31T23:59:59-12:00", "9999-12-31T20:00:00Z", "9999-12-31"),
        *("0001-01-01T00:00:00+14:00", "0001-01-01", "0001-01-01T03:00:00Z"),
    ):
        with pytest.raises(Invalid, match=r"created_at .* is out of range"):
            parse_timestamp(text, UTC)
    with pytest.raises(Invalid, match="Invalid made_at format"):
        parse_timestamp("soon", UTC, name="made_at")
    for text, place in product(("9999-12-30", "0001-01-03"), ("Pacific/Kiritimati", "Etc/GMT+12")):
        moment = parse_timestamp(text, zone(place))
        assert to_datetime(moment - 10_000).astimezone(zone("Etc/GMT+12"))
        assert to_datetime(moment + 10_000).astimezone(zone("Pacific/Kiritimati"))


def test_a_week_with_an_hour_is_no_bare_date() -> None:
    start = parse_date("2026W48T10", UTC, name="start_date")
    assert parse_date("2026W48T10", UTC, name="end_date", end=True) == start
    assert to_datetime(start) == datetime(2026, 11, 23, 10, tzinfo=UTC)
