"""Spans at a collector.

There are spans of requests, turns, model calls and tool calls, with their parents, and without any
text of messages.
"""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ricordo.features.operations.admin.state import Operations, open_operations
from ricordo.features.operations.otel import ENDPOINTS, trace_requests
from ricordo.llm.scripted import call
from tests.seams.http import ok
from tests.seams.server import MODEL, ServerInThread, serving
from tests.support.json_server import Served

CANARY = "zebra-7f3a"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector:
    """An OpenTelemetry collector over HTTP."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self._served = Served(self)
        self.url, self.close = self._served.url, self._served.close

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, is_more = b"", True
        while is_more:
            message = await receive()
            body, is_more = body + message["body"], message.get("more_body", False)
        assert (scope["path"], dict(scope["headers"])[b"content-type"]) == (
            "/v1/traces",
            b"application/x-protobuf",
        )
        self.bodies.append(body)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def spans(self) -> list[Any]:
        found = []
        for body in self.bodies:
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                found += [span for scope in resource.scope_spans for span in scope.spans]
        return found


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    from ricordo.features.operations.otel import spans

    made = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    spans.provider.cache_clear()
    yield made
    spans.provider().shutdown()
    spans.provider.cache_clear()
    made.close()


def attributes(span: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


def make_agent(server: ServerInThread) -> str:
    blocks: Any = [{"label": "human", "value": f"Has a {CANARY}."}]
    with server.client() as client:
        return client.agents.create(
            model=MODEL, name=CANARY, memory_blocks=blocks, tools=["memory_insert"]
        ).id


def test_a_turn_is_one_trace_under_its_request(collector: Collector, tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server, server.http() as http:
        agent = make_agent(server)
        server.says(
            call("memory_insert", label="human", new_string=CANARY),
            call("memory_insert", label=CANARY, new_string="x"),
            call(CANARY, text="x"),
            f"Noted, {CANARY}.",
        )
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
        body = {"input": f"My {CANARY} is ill."}
        ok(http.post(f"/v1/agents/{agent}/messages", json=body, headers=headers))
        http.post("/v1/users/", json={"name": CANARY})
        http.get(f"/users/{CANARY}/blocks")
        http.get(f"/no/{CANARY}?x={CANARY}")
        run = server.client().runs.list(agent_id=agent).items[0]
        steps = list(server.client().runs.steps.list(run.id, order="asc"))
    # The server sends waiting spans when it stops.
    spans = [span for span in collector.spans() if span.trace_id.hex() == TRACE]
    by_name = {span.name: span for span in spans}
    request, turn = by_name["POST /v1/agents/{agent_id}/messages"], by_name["invoke_agent"]
    assert (request.parent_span_id.hex(), turn.parent_span_id) == (PARENT, request.span_id)
    assert attributes(request)["http.response.status_code"] == 200
    chats = [span for span in spans if span.name == "chat model"]
    tools = [span for span in spans if span.name == "execute_tool memory_insert"]
    assert (len(chats), len(tools), len(spans)) == (4, 2, 8)
    assert {span.parent_span_id for span in (*chats, *tools)} == {turn.span_id}
    assert [attributes(span)["ricordo.step.id"] for span in chats] == [step.id for step in steps]
    assert {attributes(span)["gen_ai.agent.id"] for span in (*chats, *tools, turn)} == {agent}
    assert {attributes(span)["ricordo.run.id"] for span in (*chats, *tools, turn)} == {run.id}
    first = attributes(chats[0])
    assert (first["gen_ai.request.model"], first["gen_ai.operation.name"]) == ("model", "chat")
    assert first["gen_ai.usage.input_tokens"] == steps[0].prompt_tokens
    assert attributes(turn)["gen_ai.usage.output_tokens"] == sum(
        step.completion_tokens or 0 for step in steps
    )
    assert [attributes(span).get("error.type") for span in tools] == [None, "tool_error"]
    for span in (*chats, *tools):
        assert (
            turn.start_time_unix_nano
            <= span.start_time_unix_nano
            <= span.end_time_unix_nano
            <= turn.end_time_unix_nano
        )
    assert chats[0].end_time_unix_nano == tools[0].start_time_unix_nano
    assert all(CANARY.encode() not in body for body in collector.bodies)
    assert {"GET /users/{user_id}/blocks", "GET"} <= {span.name for span in collector.spans()}


def test_the_span_of_a_failed_turn_has_the_error_type_but_no_content(
    collector: Collector, tmp_path: Path
) -> None:
    with serving(tmp_path / "data") as server, server.http() as http:
        agent = make_agent(server)

        def fail(_request: Any) -> str:
            raise RuntimeError(CANARY)

        server.answers_with(fail)
        assert http.post(f"/v1/agents/{agent}/messages", json={"input": CANARY}).status_code >= 500
        server.provoked()
    spans = {span.name: span for span in collector.spans()}
    assert (
        spans["invoke_agent"].status.code,
        "error.type" in attributes(spans["invoke_agent"]),
    ) == (2, True)
    assert spans["POST /v1/agents/{agent_id}/messages"].status.code == 2
    assert all(CANARY.encode() not in body for body in collector.bodies)


def test_an_unreachable_collector_does_not_block_turns(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from ricordo.features.operations.otel import spans

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    spans.provider.cache_clear()
    with serving(tmp_path / "data") as server, server.http() as http:
        agent = make_agent(server)
        assert ok(http.post(f"/v1/agents/{agent}/messages", json={"input": "Hello."}))["messages"]
    spans.provider().shutdown()
    spans.provider.cache_clear()


def test_without_an_endpoint_tracing_is_not_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Requests pass no middleware, and turns run no additional statement."""
    for name in ENDPOINTS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)  # its import would fail
    monkeypatch.delitem(sys.modules, "ricordo.features.operations.otel.spans", raising=False)
    runtime: Any = SimpleNamespace(features={})

    def opened() -> Operations:
        async def open_once() -> Operations:
            async with open_operations(runtime) as operations:
                return operations

        return asyncio.run(open_once())

    app: Any = object()
    assert (trace_requests(app), opened().trace_turn) == (app, None)
    assert "ricordo.features.operations.otel.spans" not in sys.modules
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert (trace_requests(app), opened().trace_turn) == (app, None)
