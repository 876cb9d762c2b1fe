"""Tools with a network: a call is not run if its arguments repeat a withheld text."""

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from mcp.server.mcpserver import MCPServer

from tests.features.egress.providers import LOCAL, RecordingProvider, World, says, two_providers
from tests.features.egress.test_blocks import agent_of, allow, block_of, say
from tests.seams.http import ok
from tests.seams.mcp import mcp_server

SECRET = "Her bank account is DE44 5001 vuqkzoq-tool."
# Ways to repeat a part of the text: whole, some words in a row, or one identifying word.
PIECES = (SECRET, "search for her bank account is that right", "vuqkzoq-tool", "DE44 5001")


@pytest.fixture(scope="module")
def running_world(
    tmp_path_factory: pytest.TempPathFactory, on_database: dict[str, Any]
) -> Iterator[World]:
    settings = {"allow_private_providers": True, **on_database}
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RICORDO_SANDBOX_NETWORK", "true")
        with two_providers(tmp_path_factory.mktemp("tools"), **settings) as world:
            yield world


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordingProvider]:
    """A search engine that records its queries."""
    provider = RecordingProvider("127.0.0.1", ())
    monkeypatch.setenv("RICORDO_WEB_SEARCH", "tavily")
    monkeypatch.setenv("RICORDO_WEB_SEARCH_URL", provider.url)
    monkeypatch.setenv("RICORDO_WEB_SEARCH_KEY", "k")
    yield provider
    provider.close()


def tool_results(messages: list[Any]) -> list[tuple[str, str]]:
    returns = [one for one in messages if one["message_type"] == "tool_return_message"]
    return [(one["status"], one["tool_return"]) for one in returns]


@pytest.mark.parametrize("piece", PIECES)
def test_a_web_search_with_a_withheld_text_is_not_sent(
    piece: str, world: World, http: httpx2.Client, engine: RecordingProvider
) -> None:
    agent = agent_of(http, ("human", SECRET), model=LOCAL, tools=["web_search"])
    allow(http, f"blocks/{block_of(http, agent, 'human')}", "local")
    world.local.script.append(says("", ("web_search", {"query": piece})))
    ((status, text),) = tool_results(say(http, agent, "Search."))
    assert status == "error"
    assert "its egress policy forbids web_search" in text
    assert engine.bodies == []


def test_searches_without_restricted_text_or_allowed_by_policy_are_sent(
    world: World, http: httpx2.Client, engine: RecordingProvider
) -> None:
    agent = agent_of(http, ("human", SECRET), model=LOCAL, tools=["web_search"])
    block = block_of(http, agent, "human")
    allow(http, f"blocks/{block}", "local")
    world.local.script.append(says("", ("web_search", {"query": "bees"})))
    say(http, agent, "Search.")
    assert engine.saw("bees")
    allow(http, f"blocks/{block}", "local", "web_search")
    world.local.script.append(says("", ("web_search", {"query": SECRET})))
    say(http, agent, "Search.")
    assert engine.saw("vuqkzoq-tool")


def test_a_url_that_contains_a_withheld_text_is_not_fetched(
    world: World, http: httpx2.Client
) -> None:
    agent = agent_of(http, ("human", SECRET), model=LOCAL, tools=["fetch_webpage"])
    allow(http, f"blocks/{block_of(http, agent, 'human')}", "local")
    address = "https://example.invalid/?q=vuqkzoq-tool"
    world.local.script.append(says("", ("fetch_webpage", {"url": address})))
    ((status, text),) = tool_results(say(http, agent, "Fetch."))
    assert (status, "egress policy" in text) == ("error", True)


def test_an_mcp_server_gets_restricted_text_only_if_the_policy_names_it(
    world: World, http: httpx2.Client
) -> None:
    heard: list[str] = []
    server = MCPServer("school")

    @server.tool()
    def enrol(text: str) -> str:
        """Enrol."""
        heard.append(text)
        return "Done."

    with mcp_server(server) as url:
        config = {"mcp_server_type": "streamable_http", "server_url": url}
        body = {"server_name": "school", "config": config}
        created = ok(http.post("/v1/mcp-servers/", json=body))
        (tool,) = ok(http.get(f"/v1/mcp-servers/{created['id']}/tools"))
        agent = agent_of(http, ("human", SECRET), model=LOCAL, tool_ids=[tool["id"]])
        block = block_of(http, agent, "human")
        for names, is_sent in (
            (["local"], False),
            (["local", "mcp:other"], False),
            (["local", "mcp:school"], True),
            (["local", "mcp"], True),
        ):
            heard.clear()
            allow(http, f"blocks/{block}", *names)
            world.local.script.append(says("", ("enrol", {"text": SECRET})))
            ((status, _),) = tool_results(say(http, agent, "Enrol."))
            assert (status == "success", bool(heard)) == (is_sent, is_sent), names


def test_restricted_text_is_found_in_escaped_arguments(
    world: World, http: httpx2.Client, engine: RecordingProvider
) -> None:
    agent = agent_of(http, ("human", SECRET), model=LOCAL, tools=["web_search"])
    allow(http, f"blocks/{block_of(http, agent, 'human')}", "local")
    escaped = "".join(f"\\u{ord(sign):04x}" for sign in "vuqkzoq-tool")
    message = says("", ("web_search", {"query": "?"}))
    message["tool_calls"][0]["function"]["arguments"] = json.dumps({"query": "?"}).replace(
        "?", escaped
    )
    world.local.script.append(message)
    ((status, _),) = tool_results(say(http, agent, "Search."))
    assert status == "error"
    assert engine.bodies == []


def test_a_text_with_an_egress_policy_can_be_forgotten(world: World, http: httpx2.Client) -> None:
    agent = agent_of(http, ("human", SECRET), model=LOCAL, tools=["forget"])
    allow(http, f"blocks/{block_of(http, agent, 'human')}", "local")
    world.local.script.append(says("", ("forget", {"what": SECRET})))
    (result,) = tool_results(say(http, agent, f"Forget this: {SECRET}"))
    assert "egress policy" not in result[1]


def test_a_sandboxed_tool_with_network_gets_restricted_text_only_if_allowed(
    world: World, http: httpx2.Client
) -> None:
    source = 'def post(text: str) -> str:\n    """Post.\n\n    Args:\n        text: The text.\n    """\n    return "Posted."\n'
    tool = ok(http.post("/v1/tools/", json={"source_code": source}))["id"]
    agent = agent_of(http, ("human", SECRET), model=LOCAL, tool_ids=[tool])
    block = block_of(http, agent, "human")
    for names, is_sent in ((["local"], False), (["local", "sandbox"], True)):
        allow(http, f"blocks/{block}", *names)
        world.local.script.append(says("", ("post", {"text": SECRET})))
        ((_, text),) = tool_results(say(http, agent, "Post it."))
        assert ("its egress policy forbids sandbox" in text) is not is_sent, text
