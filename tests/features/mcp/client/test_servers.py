"""MCP servers over the official client.

The servers are real servers of the official SDK, over SSE and streamable HTTP.
"""

from dataclasses import replace
from typing import Any, Literal

import pytest

from ricordo.domain.scope import Scope
from ricordo.errors import Conflict, DatabaseFailed, Invalid
from ricordo.features.mcp.client import queries
from ricordo.features.mcp.client.models import ServerRequest, ServerUpdate
from ricordo.features.mcp.client.routes import runner_in
from ricordo.features.mcp.client.service import ServerSecrets, keep_oauth, secrets_of
from ricordo.features.mcp.client.tables import McpServer
from ricordo.llm.scripted import call
from tests.api.conftest import Api
from tests.seams.http import ok
from tests.seams.mcp import mcp_server, notes
from tests.seams.server import MODEL


@pytest.mark.parametrize("kind", ["streamable_http", "sse"])
def test_an_agent_can_call_tools_of_an_mcp_server(
    api: Api, kind: Literal["sse", "streamable_http"]
) -> None:
    with mcp_server(notes(), kind) as url:
        config: Any = {"mcp_server_type": kind, "server_url": url}
        made = api.client.mcp_servers.create(server_name=f"notes {kind}", config=config)
        tools = {tool.name: tool for tool in api.client.mcp_servers.tools.list(made.id)}
        assert sorted(tools) == ["add", "fail", "greet"]
        add = tools["add"]
        assert (add.tool_type, add.tags) == ("external_mcp", [f"mcp:notes {kind}"])
        agent = api.client.agents.create(model=MODEL, tool_ids=[add.id, tools["fail"].id])
        api.server.says([call("add", a=2, b=3)], [call("fail", why="No ink.")], "Five.")
        answer = api.client.agents.messages.create(
            agent.id, messages=[{"role": "user", "content": "Add."}]
        )
        results = [each for each in answer.messages if each.message_type == "tool_return_message"]
        assert [each.status for each in results] == ["success", "error"]
        assert results[0].tool_return == "5"
        assert "No ink." in results[1].tool_return
        api.client.mcp_servers.delete(made.id)
        assert api.client.mcp_servers.list() == []
        assert [
            tool.name
            for tool in api.client.agents.tools.list(agent.id)
            if tool.tool_type == "external_mcp"
        ] == []


class FailingStore:
    """A store whose reads fail after a few successful ones, as on a damaged disk."""

    def __init__(self, store: Any, reads: int) -> None:
        self.clock, self.write = store.clock, store.write
        self._store, self._reads = store, reads

    async def read(self, work: Any) -> Any:
        if not self._reads:
            raise DatabaseFailed("The database is damaged.", "damaged")
        self._reads -= 1
        return await self._store.read(work)


def test_a_database_failure_is_not_recorded_as_an_mcp_server_failure(api: Api) -> None:
    runtime = api.server.runtime
    runner = runner_in(runtime)
    with mcp_server(notes()) as url:
        config: Any = {"mcp_server_type": "streamable_http", "server_url": url}
        made = api.client.mcp_servers.create(server_name="sound", config=config)
        (add,) = [tool for tool in api.client.mcp_servers.tools.list(made.id) if tool.name == "add"]

        def failure(reads: int) -> tuple[str, str] | None:
            store: Any = FailingStore(runtime.store, reads)
            try:
                api.server.run(runner.call(store, Scope(), add.id, {"a": 2, "b": 3}))
            except DatabaseFailed as error:
                return str(error), error.kind
            return None

        failures = [failure(reads) for reads in range(1, 9)]
        assert set(failures) == {("The database is damaged.", "damaged"), None}
        shown = ok(api.http.get(f"/v1/mcp-servers/{made.id}"))
        assert (shown["status"], shown["last_error"]) == ("working", None)
        api.client.mcp_servers.delete(made.id)


def test_values_that_are_invalid_in_headers_are_refused(api: Api) -> None:
    server = {"server_name": "x", "type": "streamable_http", "server_url": "http://127.0.0.1:1/mcp"}
    for wrong in (
        {"auth_token": " "},
        {"auth_token": "key\n"},
        {"custom_headers": {"x-key": "key "}},
    ):
        assert (
            api.http.post("/v1/tools/mcp/servers/test", json=server | wrong).status_code == 422
        ), wrong


def stdio_server(**config: Any) -> tuple[McpServer, ServerSecrets]:
    blank = McpServer("", "organization-1", "", "streamable_http", {})
    body = {"mcp_server_type": "stdio", "command": "npx", "args": ["notes"], **config}
    request = ServerRequest.model_validate({"server_name": "notes", "config": body})
    server, secrets = request.applied(blank, ServerSecrets())
    return replace(server, id="mcp_server-1", secret="sealed"), secrets


def changed(server: McpServer, secrets: ServerSecrets, **config: Any) -> ServerSecrets:
    return ServerUpdate.model_validate({"config": config}).applied(server, secrets)[1]


@pytest.mark.parametrize(
    "config",
    [
        {"args": ["-y", "other"]},
        {"args": []},
        {"command": "uvx"},
        # A variable can lead the program's requests, or its modules, to another address.
        {"env": {"KEY": "********", "HTTPS_PROXY": "http://elsewhere.example"}},
        {"env": {"KEY": "********", "OTHER": "new"}},
        # These have no stored value.
        {"env": {"NONE": "********"}},
        {"args": ["-y", "other"], "env": {"KEY": "********"}},
        {"custom_headers": {"x-key": "********"}},
    ],
    ids=str,
)
def test_stored_variables_are_given_to_no_other_program(config: dict[str, Any]) -> None:
    server, secrets = stdio_server(env={"KEY": "k-123", "OTHER": "o"})
    with pytest.raises(Invalid, match=r"never (sent|given)|no stored value"):
        changed(server, secrets, **config)


def test_variables_that_are_sent_with_a_new_program_replace_all_stored_ones() -> None:
    server, secrets = stdio_server(env={"KEY": "k-123", "OTHER": "o"})
    sent = {"KEY": "k-456"}
    assert changed(server, secrets, args=["other"], env=sent).environment == sent
    # Stored variables remain if the program and the other variables do.
    assert changed(server, secrets, args=["notes"]).environment == secrets.environment
    kept = {"KEY": "********", "OTHER": "o"}
    assert changed(server, secrets, env=kept).environment == secrets.environment
    assert changed(server, secrets, env={"KEY": "********"}).environment == {"KEY": "k-123"}
    plain, none = stdio_server()
    assert changed(replace(plain, secret=None), none, args=["other"]) == none


URL = "http://127.0.0.1:1/mcp"
FIRST = {"client": {"client_id": "a"}, "tokens": {"access_token": "1"}}
REFRESHED = {"client": {"client_id": "a"}, "tokens": {"access_token": "2"}}
SECOND = {"client": {"client_id": "b"}, "tokens": {"access_token": "3"}}


class Connected:
    """A stored server with a consent, and the row that an open session has read."""

    def __init__(self, api: Api) -> None:
        self.api = api
        config = {"mcp_server_type": "streamable_http", "server_url": URL}
        body = {"server_name": "connected", "config": config}
        self.path = f"/v1/mcp-servers/{ok(api.http.post('/v1/mcp-servers/', json=body))['id']}"
        self.opened = self.stored()
        self.keep(FIRST, is_new=True)
        self.opened = self.stored()

    def stored(self) -> McpServer:
        server_id = self.path.rpartition("/")[2]
        return self.api.server.read(lambda tx: queries.get(tx, Scope(), server_id))

    def secrets(self) -> ServerSecrets:
        return secrets_of(self.api.server.settings, self.stored())

    def keep(self, oauth: Any, *, is_new: bool = False) -> None:
        runtime = self.api.server.runtime
        keeping = keep_oauth(runtime.store, runtime.settings, self.opened, oauth, is_new=is_new)
        self.api.server.run(keeping)


def test_an_old_session_does_not_store_its_tokens_for_a_changed_server(api: Api) -> None:
    server = Connected(api)
    server.keep(REFRESHED)
    assert server.secrets().oauth == REFRESHED
    # Another consent, a token and another address each replace the tokens of the first consent.
    server.keep(SECOND, is_new=True)
    server.keep(REFRESHED)
    assert server.secrets().oauth == SECOND
    for config in ({"auth_token": "t"}, {"server_url": f"{URL}/2", "auth_token": "u"}):
        ok(api.http.patch(server.path, json={"config": config}))
        server.keep(SECOND)
        assert (server.secrets().oauth, server.stored().config["oauth"]) == ({}, False)
    with pytest.raises(Conflict, match="address was changed"):
        server.keep(FIRST, is_new=True)
    assert server.secrets() == ServerSecrets(token="u")
    api.http.delete(server.path)


def test_a_change_of_a_server_keeps_tokens_that_were_refreshed_meanwhile(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Connected(api)
    store = api.server.runtime.store
    read = store.read
    waiting = [REFRESHED]

    async def read_and_refresh(work: Any) -> Any:
        row = await read(work)
        if waiting and isinstance(row, McpServer):
            runtime = api.server.runtime
            await keep_oauth(store, runtime.settings, server.opened, waiting.pop())
        return row

    monkeypatch.setattr(store, "read", read_and_refresh)
    ok(api.http.patch(server.path, json={"server_name": "renamed"}))
    assert not waiting
    assert (server.stored().name, server.secrets().oauth) == ("renamed", REFRESHED)
    api.http.delete(server.path)
