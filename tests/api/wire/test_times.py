import pytest

from ricordo.api.wire.times import date, stamp

MOMENT = 1_795_293_195_123_456  # 2026-11-21T20:33:15.123456Z


def test_stamps_have_microseconds_and_z() -> None:
    assert stamp(MOMENT) == "2026-11-21T20:33:15.123456Z"
    assert stamp(MOMENT - 123_456) == "2026-11-21T20:33:15.000000Z"
    assert stamp(0) == "1970-01-01T00:00:00.000000Z"
    assert stamp(None) is None


@pytest.mark.parametrize("part", [0, 1, 999_999])
def test_dates_of_messages_have_whole_seconds_and_an_offset(part: int) -> None:
    assert date(MOMENT - 123_456 + part) == "2026-11-21T20:33:15+00:00"
