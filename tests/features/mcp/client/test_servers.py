"""MCP servers over the official client.

The servers are real servers of the official SDK, over SSE and streamable HTTP.
"""

from typing import Any, Literal

import pytest

from ricordo.llm.scripted import call
from tests.api.conftest import Api
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
