"""Random requests to every documented route.

No response is a server error, or has a status or body that the document does not list.
"""

from pathlib import Path

import pytest

from tests.campaigns.sizes import RecordProperty, short_and_long
from tests.support.fuzz import fuzz, stream_faults
from tests.support.sweep import sample, sweep

# The server runs in this process, and draws random numbers while hypothesis makes a request.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the .random. module inside strategies")


def errors_behind(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the unexpected exceptions of jobs and streams, which no response shows."""
    return [
        f"{record.message}: {record.exc_info[1]!r}" for record in caplog.records if record.exc_info
    ]


@pytest.mark.campaign
@pytest.mark.parametrize("requests", short_and_long(10, 5_000))
def test_no_request_breaks_the_server_or_is_answered_otherwise_than_documented(
    tmp_path: Path, requests: int, caplog: pytest.LogCaptureFixture, record_property: RecordProperty
) -> None:
    report = fuzz(tmp_path, requests, number=1)
    print(report)
    record_property("requests", report.statuses.total())
    assert not report.faults, str(report)
    assert errors_behind(caplog) == []
    # Check that the campaign did something: most routes were called, and not all calls were
    # refused.
    assert report.requests >= requests
    assert len(report.routes) > requests / 3 or len(report.routes) > 80
    assert report.statuses[200] > requests / 20


@pytest.mark.soak
@pytest.mark.campaign
def test_the_same_holds_on_postgresql(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, record_property: RecordProperty
) -> None:
    report = fuzz(tmp_path, 2000, number=2, database="postgresql")
    print(report)
    record_property("requests", report.statuses.total())
    assert not report.faults, str(report)
    assert errors_behind(caplog) == []
    assert report.requests >= 2000


@pytest.mark.parametrize("every", short_and_long(4, 1))
def test_a_hostile_value_of_a_route_is_refused_or_can_be_read_again(
    tmp_path: Path, every: int, caplog: pytest.LogCaptureFixture, record_property: RecordProperty
) -> None:
    report = sample(tmp_path, number=3, most=1, every=every)
    print(report)
    record_property("requests", report.statuses.total())
    assert not report.faults, str(report)
    assert errors_behind(caplog) == []
    assert len(report.routes) > 300 / every
    # The number of accepted requests depends on which routes are in the sample.
    assert report.accepted > (60 if every == 1 else 7)


@pytest.mark.soak
@pytest.mark.campaign
def test_hostile_values_in_each_field_are_refused_or_can_be_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, record_property: RecordProperty
) -> None:
    """An eighth of all values in all fields is tested: all of them would take half an hour."""
    share = 0.125
    report = sweep(tmp_path, number=4, share=share)
    print(report)
    record_property("requests", report.statuses.total())
    assert not report.faults, str(report)
    assert errors_behind(caplog) == []
    assert len(report.places) > 1000
    assert len(report.routes) > 145
    assert report.accepted > 5000 * share


@pytest.mark.soak
@pytest.mark.campaign
def test_the_same_holds_of_some_fields_of_each_route_on_postgresql(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, record_property: RecordProperty
) -> None:
    report = sample(tmp_path, number=5, most=4, every=1, database="postgresql")
    print(report)
    record_property("requests", report.statuses.total())
    assert not report.faults, str(report)
    assert errors_behind(caplog) == []
    assert len(report.routes) > 300


def test_an_undocumented_event_and_a_stream_that_breaks_off_are_faults() -> None:
    ping = (
        "data: "
        '{"message_type":"ping","id":"ping-1","date":"2026-01-01T00:00:00+00:00","run_id":"","seq_id":null}\n\n'
    )
    assert stream_faults(f"{ping}data: [DONE]\n\n") == []
    assert len(stream_faults(ping)) == 1
    for wrong in (
        'data: {"message_type":"pong"}\n\n',
        "data: {\n\n",
        "ping\n\n",
        ping.replace("null", '"1"'),
    ):
        assert len(stream_faults(f"{wrong}data: [DONE]\n\n")) == 1, wrong


def test_the_events_of_each_kind_of_stream_are_known() -> None:
    done = 'data: {"type":"done","run_id":null,"conversation_id":"conv-1"}\n\n'
    said = 'data: {"type":"message","content":"ok"}\n\n'
    assert stream_faults(f": ping\n\n{said}{done}", "/chat/stream") == []
    for wrong in (
        said,
        f"{said}{said}",
        f'data: {{"type":"pong"}}\n\n{done}',
        f'data: {{"typ":1}}\n\n{done}',
    ):
        assert stream_faults(wrong, "/chat/stream"), wrong
    assert stream_faults("data: {}\n\ndata: [DONE]\n\n", "/v1/chat/completions")
    choice = '{"index":0,"delta":{"content":"ok"},"finish_reason":null}'
    chunk = f'{{"id":"c","created":1,"model":"m","object":"chat.completion.chunk","choices":[{choice}]}}'
    for path in ("/v1/chat/completions", "/v1/voice-beta/{agent_id}/chat/completions"):
        assert stream_faults(f"data: {chunk}\n\ndata: [DONE]\n\n", path) == []
    assert stream_faults('event: response.created\ndata: {"type":"x"}\n\n', "/v1/responses")
