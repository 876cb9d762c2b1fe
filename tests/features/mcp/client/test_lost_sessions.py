"""Servers that lose sessions, list endlessly, start slowly, or refuse without a message."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest

from ricordo.features.mcp.client import sessions, tools
from ricordo.llm.scripted import call
from tests.api.conftest import Api
from tests.seams.mcp import RawServer, raw_server, tool
from tests.seams.server import LIMIT, MODEL

# How servers refuse an unknown session id: status, JSON-RPC error or other body.
LOSSES: list[tuple[int, Any]] = [
    (404, b""),
    (404, b"Not Found"),
    (404, b"<html>404</html>"),
    (404, {"code": -32001, "message": "Session not found"}),
    (404, {"code": -32600, "message": "Session terminated"}),
    (404, {"code": -32000, "message": "Unknown session id"}),
    (404, {"code": -32603, "message": ""}),
    (410, b""),
    (410, {"code": -32000, "message": "Gone"}),
    (400, {"code": -32000, "message": "Bad Request: No valid session ID provided"}),
    (400, {"code": -32600, "message": "Invalid session ID"}),
    (400, {"code": -32000, "message": "Mcp-Session-Id unknown: SESSION expired"}),
]
# Refusals of the call itself, which must not be repeated.
REFUSALS: list[tuple[int, Any]] = [
    (404, {"code": -32601, "message": "Method not found"}),
    (400, {"code": -32602, "message": "Wrong arguments"}),
    (500, {"code": -32603, "message": "The session database is broken"}),
    (400, b"Bad Request"),
]


@dataclass
class RestartedServer:
    """A server that forgets sessions, and refuses calls in a forgotten session with `refusal`."""

    refusal: tuple[int, Any] = (404, b"")
    forgets: bool = False
    calls: int = 0
    number: int = 0
    raw: RawServer = field(default_factory=lambda: RawServer([tool("go")]))

    def __post_init__(self) -> None:
        self.raw.raw = {"initialize": self.initialize, "tools/call": self.answer_call}

    async def initialize(self, exchange: Any) -> None:
        self.number += 1
        self.forgets = False
        info = {"name": "raw", "version": "1"}
        result = {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": info,
        }
        body = orjson.dumps({"jsonrpc": "2.0", "id": exchange.asked["id"], "result": result})
        await exchange.bytes(body, mcp_session_id=f"session-{self.number}")

    async def answer_call(self, exchange: Any) -> None:
        self.calls += 1
        if not self.forgets:
            await exchange.result(
                {"content": [{"type": "text", "text": f"done in session {self.number}"}]}
            )
            return
        status, body = self.refusal
        if isinstance(body, dict):
            body = orjson.dumps({"jsonrpc": "2.0", "id": None, "error": body})
            await exchange.bytes(body, status)
        else:
            await exchange.bytes(body, status, content_type="text/html")


@pytest.fixture
def restarted(api: Api) -> Any:
    """A running RestartedServer, and a function that calls its tool."""
    server = RestartedServer()
    with raw_server(server.raw) as url:
        config: Any = {"mcp_server_type": "streamable_http", "server_url": url}
        made = api.client.mcp_servers.create(server_name="restarted", config=config)
        (served,) = api.client.mcp_servers.tools.list(made.id)

        def refresh() -> None:
            api.http.patch(f"/v1/mcp-servers/{made.id}/refresh")
            api.client.mcp_servers.tools.run(served.id, mcp_server_id=made.id, args={})

        def run() -> tuple[str, str]:
            server.calls, server.forgets = 0, True
            result = api.http.post(
                f"/v1/mcp-servers/{made.id}/tools/{served.id}/run", json={"args": {}}
            ).json()
            status, calls = result.get("status", "failed"), server.calls
            # After a failure the server is not called for a while; a refresh ends this pause.
            if status != "success":
                refresh()
            server.calls = calls
            return status, str(result)

        refresh()
        server.calls = 0
        yield server, run
        api.client.mcp_servers.delete(made.id)


def test_a_lost_session_is_reopened_and_the_call_repeated_once(
    restarted: Any,
) -> None:
    server, run = restarted
    for refusal in LOSSES:
        server.refusal = refusal
        assert (run()[0], server.calls) == ("success", 2), refusal


def test_a_call_refused_for_another_reason_is_not_repeated(restarted: Any) -> None:
    server, run = restarted
    for refusal in REFUSALS:
        server.refusal = refusal
        status, words = run()
        assert (status == "success", server.calls) == (False, 1), (refusal, words)


def test_a_server_that_loses_every_session_fails_after_one_retry(restarted: Any, api: Api) -> None:
    server, _ = restarted

    async def forget_at_once(exchange: Any) -> None:
        await server.initialize(exchange)
        server.forgets = True

    server.raw.raw["initialize"] = forget_at_once
    (made,) = api.client.mcp_servers.list()
    (served,) = api.client.mcp_servers.tools.list(str(made.id))
    server.forgets = True
    answer = api.http.post(f"/v1/mcp-servers/{made.id}/tools/{served.id}/run", json={"args": {}})
    assert (answer.status_code, server.calls) == (502, 2)
    assert "Its status was 404" in answer.json()["error"]["message"]
    server.raw.raw["initialize"] = server.initialize


@pytest.mark.parametrize(
    "cursors", [["stuck"] * 5, ["a", "b", "a", "b"], ["", None], ["1", "2", None]]
)
def test_a_tool_list_with_repeating_cursors_ends(api: Api, cursors: list[str | None]) -> None:
    pages = [[tool(f"t{page}{number}") for number in range(2)] for page in range(len(cursors))]
    server = RawServer()
    asked: list[Any] = []

    async def list_page(exchange: Any) -> None:
        cursor = (exchange.asked.get("params") or {}).get("cursor")
        place = len(asked)
        asked.append(cursor)
        repeats = cursor is not None and cursor in asked[:place]
        assert not repeats, "a page was asked for twice"
        await exchange.result({"tools": pages[place], "nextCursor": cursors[place]})

    server.raw["tools/list"] = list_page
    with raw_server(server) as url:
        config: Any = {"mcp_server_type": "streamable_http", "server_url": url}
        made = api.client.mcp_servers.create(server_name="pages", config=config)
        listed = api.client.mcp_servers.tools.list(made.id)
        assert len(listed) == 2 * len(asked)
        assert made.refused_tools == {}
        api.client.mcp_servers.delete(made.id)


def test_an_error_without_a_message_gets_one(api: Api) -> None:
    server = RawServer([tool("go")])
    with raw_server(server) as url:
        config: Any = {"mcp_server_type": "streamable_http", "server_url": url}
        made = api.client.mcp_servers.create(server_name="mute", config=config)
        (served,) = api.client.mcp_servers.tools.list(made.id)

        async def refuse(exchange: Any) -> None:
            error = {"code": -32050, "message": " "}
            await exchange.bytes(
                orjson.dumps({"jsonrpc": "2.0", "id": exchange.asked["id"], "error": error})
            )

        failures: list[tuple[Any, str]] = [
            (lambda exchange: exchange.result({"content": [], "isError": True}), "did not say why"),
            (
                lambda exchange: exchange.result(
                    {"content": [{"type": "text", "text": " "}], "isError": True}
                ),
                "did not say why",
            ),
            (refuse, "refused the call without a message (code -32050)"),
        ]
        for answer, words in failures:
            server.raw["tools/call"] = answer
            result: Any = api.client.mcp_servers.tools.run(
                served.id, mcp_server_id=made.id, args={}
            )
            assert (result.status, words in str(result.func_return)) == ("error", True), result
        api.client.mcp_servers.delete(made.id)


def test_adding_a_slow_server_does_not_block_the_request(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "FIRST_LOOK_SECONDS", 0.0)
    server = RawServer([tool("go")])
    may_answer = asyncio.Event()

    async def wait(exchange: Any) -> None:
        await may_answer.wait()
        await exchange.result({"tools": server.tools})

    server.raw["tools/list"] = wait
    with raw_server(server) as url:
        config: Any = {"mcp_server_type": "streamable_http", "server_url": url}
        made = api.client.mcp_servers.create(server_name="slow", config=config)
        assert made.status == "new"
        assert api.client.mcp_servers.tools.list(made.id) == []
        server.raw.clear()
        may_answer.set()
        runner: Any = api.server.runtime.toolbox.runner("external_mcp")

        async def read() -> None:
            await asyncio.gather(*runner._reading, return_exceptions=True)

        api.server.run(read())
        assert [each.name for each in api.client.mcp_servers.tools.list(made.id)] == ["go"]
        assert api.http.get(f"/v1/mcp-servers/{made.id}").json()["status"] == "working"
        api.client.mcp_servers.delete(made.id)


def test_an_unsupported_multi_agent_tool_names_its_replacement(api: Api) -> None:
    refused = api.http.post(
        "/v1/agents/", json={"model": MODEL, "tools": ["send_message_to_all_agents_in_group"]}
    )
    assert refused.status_code == 404
    assert "send_message_to_agents_matching_tags" in refused.text


def test_a_restart_of_an_mcp_server_does_not_affect_the_agents_calls(api: Api) -> None:
    server = RestartedServer()
    with raw_server(server.raw) as url:
        config: Any = {"mcp_server_type": "streamable_http", "server_url": url}
        made = api.client.mcp_servers.create(server_name="agents", config=config)
        (served,) = api.client.mcp_servers.tools.list(made.id)
        agent = api.client.agents.create(model=MODEL, tool_ids=[served.id])
        for session in (2, 3):
            server.forgets = True
            api.server.says([call("go")], "Done.")
            answer = api.client.agents.messages.create(
                agent.id, messages=[{"role": "user", "content": "Go."}]
            )
            (result,) = [
                each for each in answer.messages if each.message_type == "tool_return_message"
            ]
            assert (result.status, result.tool_return) == ("success", f"done in session {session}")
        api.client.mcp_servers.delete(made.id)


def test_an_old_session_is_closed_when_a_new_one_replaces_it() -> None:
    async def replace_session() -> None:
        closed = asyncio.Event()

        @asynccontextmanager
        async def streams(_traffic: sessions.Traffic) -> AsyncIterator[Any]:
            try:
                await asyncio.sleep(2 * LIMIT)
                yield ()
            finally:
                closed.set()

        def make() -> sessions.McpSession:
            return sessions.McpSession(streams, probes=False)

        all_sessions = sessions.McpSessions()
        old = all_sessions.of("server", 1, "user", make)
        await asyncio.sleep(0.1)
        old.opened_at -= sessions.LIFE_SECONDS
        assert all_sessions.of("server", 1, "user", make) is not old
        await asyncio.wait_for(closed.wait(), LIMIT)
        await all_sessions.close()

    asyncio.run(replace_session())
