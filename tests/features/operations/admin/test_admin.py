"""Health and metrics of a running server."""

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ricordo.errors import Unavailable
from tests.seams.http import OPERATOR, bearer, ok, refused
from tests.seams.server import MODEL, ServerInThread, serving

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerInThread]:
    with serving(tmp_path, api_key=OPERATOR) as running:
        yield running


@pytest.fixture
def http(server: ServerInThread) -> Iterator[httpx2.Client]:
    with server.http(headers=bearer(OPERATOR)) as opened:
        yield opened


def metrics(http: httpx2.Client) -> Samples:
    """Return the metrics as Prometheus' parser reads them, by name and labels."""
    answer = http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = list(text_string_to_metric_families(answer.text))
    assert all(family.documentation for family in families)
    return {
        (one.name, tuple(sorted(one.labels.items()))): one.value
        for family in families
        for one in family.samples
    }


def test_requests_turns_jobs_and_proposals_are_counted(
    server: ServerInThread, http: httpx2.Client
) -> None:
    agent = ok(
        http.post(
            "/v1/agents/",
            json={"model": MODEL, "memory_blocks": [{"label": "human", "value": "x"}]},
        )
    )["id"]
    for _ in range(3):
        ok(http.post(f"/v1/agents/{agent}/messages", json={"input": "My secret is vuqkzo."}))
    refused(http.get("/v1/agents/agent-00000000-0000-4000-8000-000000000000"), 404)
    http.get("/nowhere/vuqkzo")
    found = metrics(http)
    route = (("method", "POST"), ("route", "/v1/agents/{agent_id}/messages"))
    assert found["ricordo_requests_total", (*route, ("status", "200"))] == 3
    assert found["ricordo_request_seconds_count", route] == 3
    missing = (("method", "GET"), ("route", "/v1/agents/{agent_id}"), ("status", "404"))
    assert found["ricordo_requests_total", missing] == 1
    assert found["ricordo_turns_total", (("purpose", "chat"), ("stop_reason", "end_turn"))] == 3
    assert found["ricordo_turn_seconds_count", ()] == found["ricordo_steps_total", ()] == 3
    assert found["ricordo_tokens_total", (("kind", "prompt"),)] > 0
    assert found["ricordo_turns_running", ()] == found["ricordo_proposals_waiting", ()] == 0
    assert any(name == "ricordo_jobs" for name, _ in found)
    text = http.get("/metrics").text
    assert "vuqkzo" not in text
    assert agent not in text


def test_only_administrators_can_read_metrics(server: ServerInThread, http: httpx2.Client) -> None:
    with server.http() as stranger:
        refused(stranger.get("/metrics"), 401)
    for role in ("user", "developer"):
        key = bearer(server.key("ada", role))  # type: ignore[arg-type]
        refused(http.get("/metrics", headers=key), 403)


def test_monitors_may_ask_for_the_health_with_head(
    server: ServerInThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server.http() as stranger:
        for path in ("/v1/health", "/v1/health/", "/v1/health/live", "/v1/health/ready"):
            whole, head = stranger.get(path), stranger.head(path)
            assert (head.status_code, head.content) == (200, b""), path
            assert head.headers["content-length"] == str(len(whole.content))
        assert (stranger.head("/").status_code, stranger.get("/").status_code) == (200, 200)
        monkeypatch.setattr(server.runtime, "is_stopping", True)
        assert stranger.head("/v1/health/ready").status_code == 503
    assert len(server.provoked()) == 1


def test_the_health_routes_report_readiness(
    server: ServerInThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server.http() as stranger:
        assert ok(stranger.get("/v1/health/live")) == {"status": "live"}
        assert ok(stranger.get("/v1/health/ready")) == {"status": "ready"}

        async def broken(_work: object) -> None:
            raise Unavailable("The file /srv/secret is locked.")

        with monkeypatch.context() as patched:
            patched.setattr(server.runtime.store, "read", broken)
            answer = stranger.get("/v1/health/ready")
            assert (answer.status_code, "does not answer" in answer.json()["detail"]) == (503, True)
            assert "secret" not in answer.text
            assert ok(stranger.get("/v1/health/live")) == {"status": "live"}
        monkeypatch.setattr(server.runtime, "is_stopping", True)
        assert "The server is stopping." in refused(stranger.get("/v1/health/ready"), 503)
    assert len(server.provoked()) == 2
