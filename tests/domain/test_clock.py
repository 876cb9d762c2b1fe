"""Times: microseconds, zones, and dates as people and agents write them."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ricordo.domain.clock import SystemClock, parse_date, parse_moment, to_datetime, to_micros, zone
from ricordo.errors import Invalid
from tests.support.clock import START, ManualClock

NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)


@given(st.datetimes(timezones=st.just(UTC)))
def test_a_moment_survives_the_round_trip_to_the_microsecond(moment: datetime) -> None:
    assert to_datetime(to_micros(moment)) == moment


@given(st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999))
def test_microseconds_survive_the_round_trip(micros: int) -> None:
    assert to_micros(to_datetime(micros)) == micros


def test_an_aware_time_keeps_its_own_zone() -> None:
    moment = datetime(2026, 7, 1, 14, tzinfo=timezone(timedelta(hours=2)))
    assert to_micros(moment, zone("America/New_York")) == to_micros(NOON)


def test_a_naive_time_is_read_in_the_zone_given() -> None:
    assert to_micros(datetime(2026, 7, 1, 14), zone("Europe/Rome")) == to_micros(NOON)  # noqa: DTZ001
    assert to_micros(datetime(2026, 1, 1, 13), zone("Europe/Rome")) == START + 12 * 3600 * 1_000_000  # noqa: DTZ001
    assert to_micros(datetime(2026, 7, 1, 12)) == to_micros(NOON)  # noqa: DTZ001


@pytest.mark.parametrize("name", ["Mars/Olympus", "", "../etc/passwd", "Europe", "Europe/Rome\x00", "x" * 5000])
def test_an_unknown_zone_is_invalid_and_the_message_shows_a_known_one(name: str) -> None:
    with pytest.raises(Invalid, match="IANA name"):
        zone(name)


def test_a_date_starts_at_midnight_in_the_readers_zone() -> None:
    rome = zone("Europe/Rome")
    assert to_datetime(parse_date("2026-07-01", rome, name="start_date")) == datetime(2026, 6, 30, 22, tzinfo=UTC)


@pytest.mark.parametrize("text", ["2026-07-01", "20260701"])
def test_a_date_that_ends_a_range_means_its_last_moment(text: str) -> None:
    last = datetime(2026, 7, 1, 23, 59, 59, 999_999, tzinfo=UTC)
    assert to_datetime(parse_date(text, UTC, name="end_date", end=True)) == last


def test_a_time_that_ends_a_range_means_itself() -> None:
    assert parse_date("2026-07-01T12:00", UTC, name="end_date", end=True) == to_micros(NOON)
    assert parse_date("2026-07-01T14:00+02:00", zone("Asia/Tokyo"), name="end_date", end=True) == to_micros(NOON)


@pytest.mark.parametrize("text", ["0001-01-01", "9999-12-31"])
@pytest.mark.parametrize("place", ["UTC", "Pacific/Kiritimati", "Pacific/Honolulu"])
def test_the_first_and_the_last_date_can_be_read_anywhere(text: str, place: str) -> None:
    assert parse_date(text, zone(place), name="end_date", end=True) > parse_date(text, zone(place), name="end_date")


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01", "", "1767225600"])
def test_what_is_no_date_is_refused_with_the_name_of_the_argument(text: str) -> None:
    with pytest.raises(Invalid, match="Invalid start_date format"):
        parse_date(text, UTC, name="start_date")


def test_the_systems_clock_never_stands_still_or_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SystemClock()
    first = clock.now()
    assert abs(to_datetime(first) - datetime.now(UTC)) < timedelta(minutes=1)
    monkeypatch.setattr("ricordo.domain.clock.time.time_ns", lambda: 0)
    assert first < clock.now() < clock.now()


def test_the_clock_of_the_tests_moves_by_one_microsecond_and_by_what_it_is_told() -> None:
    clock = ManualClock()
    first = clock.now()
    assert clock.now() == first + 1
    clock.advance(1.5)
    assert clock.now() == first + 2 + 1_500_000


def test_a_moment_that_could_not_be_shown_again_is_refused() -> None:
    assert parse_moment("2024-05-06T07:08:09+02:00", UTC) == to_micros(datetime(2024, 5, 6, 5, 8, 9, tzinfo=UTC))
    for text in ("9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+14:00"):
        with pytest.raises(Invalid, match=r"created_at .* lies beyond the calendar"):
            parse_moment(text, UTC)
    with pytest.raises(Invalid, match="Invalid made_at format"):
        parse_moment("soon", UTC, name="made_at")


@pytest.mark.parametrize("text", ["9999-12-31T20:00:00Z", "9999-12-31", "0001-01-01", "0001-01-01T03:00:00Z"])
def test_a_moment_at_the_calendars_edge_is_refused_since_other_zones_and_neighbours_fall_beyond_it(text: str) -> None:
    with pytest.raises(Invalid, match="lies beyond the calendar"):
        parse_moment(text, UTC)


@pytest.mark.parametrize("text", ["9999-12-30", "0001-01-03"])
@pytest.mark.parametrize("place", ["Pacific/Kiritimati", "Etc/GMT+12"])
def test_the_first_and_last_moments_that_are_taken_can_be_shown_in_every_zone(text: str, place: str) -> None:
    moment = parse_moment(text, zone(place))
    assert to_datetime(moment - 10_000).astimezone(zone("Etc/GMT+12"))
    assert to_datetime(moment + 10_000).astimezone(zone("Pacific/Kiritimati"))
