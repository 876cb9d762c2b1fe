"""How results and events are packed for models, byte for byte."""

from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ricordo.domain.clock import to_micros
from ricordo.errors import Invalid
from ricordo.prompt.packaging import local_time, package_heartbeat, package_result, truncate

NOW = to_micros(datetime(2026, 1, 20, 22, 13, 45, 999_999, tzinfo=UTC))
TIME = "2026-01-20 02:13:45 PM PST-0800"


@pytest.mark.parametrize(
    ("timezone", "expected"),
    [
        ("America/Los_Angeles", TIME),
        ("UTC", "2026-01-20 10:13:45 PM UTC+0000"),
        ("Asia/Kolkata", "2026-01-21 03:43:45 AM IST+0530"),
    ],
)
def test_agents_read_the_time_in_their_own_zone(timezone: str, expected: str) -> None:
    assert local_time(NOW, timezone) == expected


def test_an_unknown_zone_is_named() -> None:
    with pytest.raises(Invalid, match='Time zone "Mars/Olympus" is unknown'):
        local_time(NOW, "Mars/Olympus")


def test_a_result_is_json_indented_by_two_with_status_message_and_time() -> None:
    assert package_result("Grüße\n\t“hi”", is_success=True, time=TIME) == (
        '{\n  "status": "OK",\n  "message": "Grüße\\n\\t“hi”",\n  "time": "2026-01-20 02:13:45 PM PST-0800"\n}'
    )


def test_a_failure_differs_only_in_its_status() -> None:
    failed = package_result("No.", is_success=False, time=TIME)
    assert failed == package_result("No.", is_success=True, time=TIME).replace('"OK"', '"Failed"')


@pytest.mark.parametrize("content", [{"message": "Showing 1 results:", "results": [1]}, [{"id": "x"}], None, 3])
def test_a_result_that_is_json_stays_json(content: Any) -> None:
    assert orjson.loads(package_result(content, is_success=True, time=TIME))["message"] == content


def test_a_heartbeat_is_one_line_that_says_it_is_hidden_from_the_user() -> None:
    reason = "Function called using request_heartbeat=true, returning control"
    assert package_heartbeat(reason, TIME) == (
        '{"type":"heartbeat","reason":"[This is an automated system message hidden from the user] '
        'Function called using request_heartbeat=true, returning control","time":"2026-01-20 02:13:45 PM PST-0800"}'
    )


def test_a_text_that_is_too_long_ends_with_a_note_that_says_how_long_it_was() -> None:
    assert truncate("abcdef", 4) == (
        "abcd... [NOTE: function output was truncated since it exceeded the character limit: 6 > 4]"
    )


def test_a_text_of_just_the_limit_is_left_alone() -> None:
    assert truncate("tèa🍵", 4) == "tèa🍵"


@given(st.text(max_size=80), st.integers(0, 80))
def test_what_is_kept_is_the_beginning_and_never_more_than_the_limit(text: str, limit: int) -> None:
    cut = truncate(text, limit)
    assert cut == text if len(text) <= limit else cut.startswith(f"{text[:limit]}... [NOTE: ")
