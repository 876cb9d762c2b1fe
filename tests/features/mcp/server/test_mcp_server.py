"""The MCP server with the official client, over HTTP with keys and over stdin and stdout."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from tests.seams.http import OPERATOR, bearer, ok
from tests.seams.server import LIMIT, MODEL, ServerInThread, serving
from tests.support.server_process import free_port


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    with serving(tmp_path_factory.mktemp("mcp"), api_key=OPERATOR) as server:
        yield server


@pytest.fixture
def server(running: ServerInThread) -> ServerInThread:
    running.forget()
    return running


@pytest.fixture
def http(server: ServerInThread) -> Iterator[httpx2.Client]:
    with server.http(headers=bearer(OPERATOR)) as opened:
        yield opened


@asynccontextmanager
async def connected(server: ServerInThread, key: str, **headers: str) -> AsyncIterator[Client]:
    given = {"authorization": f"Bearer {key}", **headers}
    async with (
        httpx2.AsyncClient(headers=given, timeout=LIMIT, trust_env=False) as http,
        Client(streamable_http_client(f"{server.url}/mcp", http_client=http)) as client,
    ):
        yield client


async def call_tool(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    text = "".join(one.text for one in result.content if one.type == "text")
    return f"ERROR: {text}" if result.is_error else text


def block(http: httpx2.Client, user: str, label: str, body: str, policy: str) -> None:
    ok(http.put(f"/users/{user}/blocks/{label}", json={"body": body, "policy": policy}))


async def test_an_mcp_client_can_read_search_write_and_message_agents(
    server: ServerInThread, http: httpx2.Client
) -> None:
    block(http, "ada", "human", "Her name is Ada.", "direct")
    agent = ok(http.post("/v1/agents/", json={"name": "Nina", "model": MODEL}))["id"]
    server.says("Hello Ada, I am Nina.")
    async with connected(server, server.key("ada")) as client:
        first, about, body = (await call_tool(client, "read_memory")).split("\n")[:3]
        version = ok(http.get("/users/ada/blocks/human"))["version"][:12]
        assert first == f"# human (policy direct, version {version})"
        assert body == "Her name is Ada."
        assert about.startswith("The human block:")
        assert await call_tool(client, "list_agents") == f"Nina ({agent}): no description"
        assert (
            await call_tool(client, "ask_agent", message="I fly to Lisbon on Monday.")
            == "Hello Ada, I am Nina."
        )
        found = await call_tool(client, "search_memory", query="Lisbon")
        assert "user] I fly to Lisbon on Monday." in found
        assert "was written" in await call_tool(
            client, "write_memory", label="human", text="Ada, a pilot.", reason="She said so."
        )
        nothing = "Nothing was found that matches well. The nearest results:\n"
        assert (await call_tool(client, "search_memory", query="zeppelin")).startswith(nothing)
        # Null for an optional argument counts as left out.
        found = await call_tool(client, "search_memory", query="zeppelin", agent=None, limit=None)
        assert found.startswith(nothing)
    (last, *_) = ok(http.get("/users/ada/blocks/human/history"))
    assert (last["author"], last["message"]) == ("an MCP client for ada", "She said so.")


async def test_a_write_with_the_version_that_was_read_keeps_later_changes(
    server: ServerInThread, http: httpx2.Client
) -> None:
    block(http, "ivy", "human", "She likes tea.\n\nShe lives in Graz.", "direct")
    async with connected(server, server.key("ivy")) as client:
        shown = await call_tool(client, "read_memory", label="human")
        version = shown.split("version ")[1].split(")")[0]
        block(http, "ivy", "human", "She likes tea.\n\nShe lives in Linz.", "direct")
        change = {"label": "human", "reason": "So.", "version": version}
        coffee = "She likes coffee.\n\nShe lives in Graz."
        assert "was written" in await call_tool(client, "write_memory", text=coffee, **change)
        merged = "She likes coffee.\n\nShe lives in Linz."
        assert ok(http.get("/users/ivy/blocks/human"))["body"] == merged
        vienna = "She likes tea.\n\nShe lives in Wien."
        refused = await call_tool(client, "write_memory", text=vienna, **change)
        assert refused.startswith("ERROR: "), refused
    assert ok(http.get("/users/ivy/blocks/human"))["body"] == merged


async def test_changes_over_mcp_are_proposed_even_if_the_key_may_approve(
    server: ServerInThread, http: httpx2.Client
) -> None:
    block(http, "ben", "human", "He likes tea.", "propose")
    key = server.key("ben")
    async with connected(server, key) as client:
        assert "proposed" in await call_tool(
            client, "write_memory", label="human", text="He likes gin.", reason="So."
        )
        change = {
            "label": "human",
            "old_text": "tea",
            "new_text": "green tea",
            "reason": "He said it.",
        }
        assert "proposed" in await call_tool(client, "propose_memory", **change)
        assert "proposals that wait for the owner: 1" in await call_tool(
            client, "read_memory", label="human"
        )
        assert "proposed" in await call_tool(
            client, "write_memory", label="wholly/new", text="Something.", reason="So."
        )
    assert ok(http.get("/users/ben/blocks/human"))["body"] == "He likes tea."
    assert [one["author_kind"] for one in ok(http.get("/users/ben/diffs"))] == ["service"] * 2


async def test_a_proposal_without_old_text_adds_a_line(
    server: ServerInThread, http: httpx2.Client
) -> None:
    change = {"label": "human", "old_text": "", "new_text": "He sails.", "reason": "So."}
    for text, expected in (
        ("He likes tea.", "He likes tea.\nHe sails."),
        ("Tea.\nTea.\n", "Tea.\nTea.\nHe sails.\n"),
        ("", "He sails."),
        ("\n", "He sails."),
    ):
        block(http, "joe", "human", text, "propose")
        async with connected(server, server.key("joe")) as client:
            assert "proposed" in await call_tool(client, "propose_memory", **change)
        (proposal,) = ok(http.get("/users/joe/diffs"))
        ok(http.post(f"/users/joe/blocks/human/diffs/{proposal['id']}/approve"))
        assert ok(http.get("/users/joe/blocks/human"))["body"] == expected


async def test_a_refused_proposal_names_the_arguments_of_the_tool(
    server: ServerInThread, http: httpx2.Client
) -> None:
    block(http, "max", "human", "Tea.\nTea.", "propose")
    async with connected(server, server.key("max")) as client:
        for label, old, new in (
            ("human", "gin", "x"),
            ("human", "Tea.", "x"),
            ("human", "Tea.", "Tea."),
            ("plans", "x", "y"),
        ):
            change = {"label": label, "old_text": old, "new_text": new, "reason": "So."}
            refused = await call_tool(client, "propose_memory", **change)
            assert refused.startswith("ERROR: "), refused
            assert "_string" not in refused
            assert "replace_all" not in refused


async def test_a_key_sees_only_the_tools_that_its_scopes_allow(server: ServerInThread) -> None:
    for scopes, seen in (
        (("memory:read",), {"read_memory"}),
        (("messages:read", "agents:read"), {"list_agents", "search_memory"}),
        (
            None,
            {
                "list_agents",
                "read_memory",
                "search_memory",
                "propose_memory",
                "write_memory",
                "ask_agent",
            },
        ),
    ):
        key = server.key("eve", scopes=scopes) if scopes else server.key("eve")
        async with connected(server, key) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert set(tools) == seen
            hints = {
                name: tool.annotations.read_only_hint
                for name, tool in tools.items()
                if tool.annotations
            }
            assert {name for name in seen if hints[name]} == seen & {
                "list_agents",
                "read_memory",
                "search_memory",
            }
            if "write_memory" not in seen:
                refused = await call_tool(
                    client, "write_memory", label="human", text="x", reason="x"
                )
                assert "the key of this client does not allow it" in refused


async def test_two_users_cannot_read_each_other_over_mcp(
    server: ServerInThread, http: httpx2.Client
) -> None:
    block(http, "mia", "diary", "Mia's secret plan.", "direct")
    agent = ok(http.post("/v1/agents/", json={"name": "Shared", "model": MODEL}))["id"]
    mine = bearer(server.key("mia"))
    ok(
        httpx2.post(
            f"{server.url}/v1/agents/{agent}/messages",
            json={"input": "My plan is a heist."},
            headers=mine,
        )
    )
    async with connected(server, server.key("noa")) as client:
        everything = [
            await call_tool(client, "read_memory"),
            await call_tool(client, "search_memory", query="plan heist"),
        ]
        everything.append(await call_tool(client, "read_memory", label="diary"))
        everything += [str(one) for one in (await client.list_resources()).resources]
        with pytest.raises(MCPError, match="diary"):
            await client.read_resource("memory://blocks/diary")
        with pytest.raises(MCPError):
            await client.read_resource("memory://blocks/..%2F..%2Fmia%2Fblocks%2Fdiary")
        assert not [text for text in everything if "heist" in text or "secret plan" in text]
    service = server.key(role="service")
    async with connected(server, service) as client:
        assert "Name the user in the header X-Ricordo-User" in await call_tool(
            client, "read_memory"
        )
    async with connected(server, service, **{"x-ricordo-user": "mia"}) as client:
        assert "Mia's secret plan." in await call_tool(client, "read_memory")


async def test_blocks_are_resources_with_change_notifications(
    server: ServerInThread, http: httpx2.Client
) -> None:
    block(http, "kim", "projects/thesis", "Chapter one.", "direct")
    async with connected(server, server.key("kim")) as client:
        uris = [one.uri for one in (await client.list_resources()).resources]
        uri = "memory://blocks/projects/thesis"
        assert uri in uris
        (content,) = (await client.read_resource(uri)).contents
        assert content.text == "Chapter one."  # type: ignore[union-attr]
        async with client.listen(resource_subscriptions=[uri]) as news:
            reading = asyncio.ensure_future(anext(aiter(news)))
            for number in range(int(LIMIT * 10)):  # the server may not listen yet
                block(http, "kim", "projects/thesis", f"Chapter two, draft {number}.", "direct")
                if (await asyncio.wait([reading], timeout=0.1))[0]:
                    break
            event = await reading
        assert event.uri == uri  # type: ignore[union-attr]
        prompts = {prompt.name: prompt for prompt in (await client.list_prompts()).prompts}
        assert set(prompts) == {"about_me", "keep_this"}
        assert all(prompt.title and prompt.description for prompt in prompts.values())
        templates = [
            one.uri_template for one in (await client.list_resource_templates()).resource_templates
        ]
        assert templates == [
            "memory://blocks/{+label}",
            "memory://agents/{agent_id}/blocks/{+label}",
        ]
        (message,) = (await client.get_prompt("about_me")).messages
        assert "Chapter" in message.content.text  # type: ignore[union-attr]
        with pytest.raises(MCPError, match="no prompt"):
            await client.get_prompt("nothing")


async def test_the_profile_resource_belongs_to_its_user(
    server: ServerInThread, http: httpx2.Client
) -> None:
    block(http, "lea", "human", "Writes about xqwhales.", "direct")
    fact = {"sentence": "My favourite drink is xqtea."}
    ok(http.post("/v1/users/lea/facts", json=fact))
    async with connected(server, server.key("lea")) as client:
        assert "memory://profile" in [one.uri for one in (await client.list_resources()).resources]
        (content,) = (await client.read_resource("memory://profile")).contents
        assert "- My favourite drink is xqtea." in content.text  # type: ignore[union-attr]
        assert "xqwhales" in content.text  # type: ignore[union-attr]
    async with connected(server, server.key("max")) as client:
        (content,) = (await client.read_resource("memory://profile")).contents
        assert "xq" not in content.text  # type: ignore[union-attr]
    async with connected(server, server.key(role="service")) as client:
        with pytest.raises(MCPError, match="X-Ricordo-User"):
            await client.read_resource("memory://profile")


async def test_the_first_memory_of_a_new_user_can_be_proposed(
    server: ServerInThread, http: httpx2.Client
) -> None:
    async with connected(server, server.key("new-person")) as client:
        answer = await call_tool(
            client,
            "propose_memory",
            label="human",
            old_text="",
            new_text="Likes tea.",
            reason="Said so.",
        )
        assert "It was proposed to the owner" in answer
        refused = await call_tool(
            client, "propose_memory", label="plans", old_text="x", new_text="y", reason="Said so."
        )
        assert 'There is no memory block "plans"' in refused


async def test_invalid_mcp_calls_are_answered_with_a_reason(server: ServerInThread) -> None:
    async with connected(server, server.key("zoe")) as client:
        for tool, arguments, words in (
            ("search_memory", {}, "query: Field required"),
            (
                "search_memory",
                {"query": "x", "limit": 10**9},
                "limit: Input should be less than or equal to 50",
            ),
            ("search_memory", {"query": "x" * 60_000}, "at most 50000"),
            ("search_memory", {"query": "x", "more": 1}, "more: Extra inputs"),
            ("read_memory", {"label": ["x"]}, "label: Input should be a valid string"),
            ("ask_agent", {"message": "Hi", "agent": "agent-" + "0" * 8}, "agent"),
            ("ask_agent", {"message": "Hi", "agent": "nobody"}, "0 agents are named"),
            ("erase_everything", {}, "there is no such tool"),
        ):
            answer = await call_tool(client, tool, **arguments)
            assert answer.startswith("ERROR: ")
            assert words in answer
    for body in (b"", b"[]", b"{", b'{"jsonrpc": "2.0"}', b"null"):
        headers = {
            "authorization": f"Bearer {OPERATOR}",
            "accept": "application/json, text/event-stream",
        }
        answer = httpx2.post(
            f"{server.url}/mcp",
            content=body,
            headers={**headers, "content-type": "application/json"},
        )
        assert 400 <= answer.status_code < 500
    long = httpx2.post(f"{server.url}/mcp", content=b" " * 70_000, headers=headers)
    assert long.status_code == 413
    assert httpx2.post(f"{server.url}/mcp", json={}).status_code == 401


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a program that starts `ricordo mcp`, without a running server."""
    own = {
        "RICORDO_DATA_DIR": str(tmp_path),
        "RICORDO_PORT": str(free_port()),
        "RICORDO_FIND_LOCAL_MODELS": "false",
    }
    return {**os.environ, **own}


async def test_a_stdio_server_uses_the_same_memory(
    environment: dict[str, str], quick_command: Sequence[str]
) -> None:
    command, *arguments = [*quick_command, "mcp", "--user", "Zoë 李"]
    for round in range(2):
        server = StdioServerParameters(command=command, args=arguments, env=environment)
        # The client's default is the stream that was captured while its module was imported.
        async with Client(stdio_client(server, errlog=sys.__stderr__)) as client:
            before = await call_tool(client, "read_memory")
            assert "Her name is Ada." in before if round else before == "Nothing is remembered yet."
            if not round:
                change = {"label": "human", "text": "Her name is Ada.", "reason": "She said it."}
                assert "proposed" in await call_tool(client, "write_memory", **change)
        if not round:
            approving = [*quick_command, "memory", "approve", "Zoë 李", "all"]
            done = await asyncio.create_subprocess_exec(
                *approving, env=environment, stdout=subprocess.PIPE
            )
            assert b"approved" in (await done.communicate())[0]


def test_invalid_lines_are_answered_but_notifications_are_not(
    environment: dict[str, str], quick_command: Sequence[str]
) -> None:
    news = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    sent = "\n".join(
        ('{"jsonrpc": "2.0", "id": 1, "method": "ping"}', "nonsense", "", json.dumps(news), "")
    )
    given: dict[str, Any] = {
        "input": sent,
        "env": environment,
        "capture_output": True,
        "text": True,
        "timeout": 300,
    }
    done = subprocess.run([*quick_command, "mcp"], check=True, **given)
    answers = sorted(
        (json.loads(line) for line in done.stdout.splitlines()), key=lambda one: str(one.get("id"))
    )
    assert [one.get("result") for one in answers] == [{}, None], done.stderr
    assert answers[1]["error"]["code"] == -32700


async def test_labels_with_any_characters_name_their_block(
    server: ServerInThread, http: httpx2.Client
) -> None:
    labels = [
        *("über mich", "a b", "Größe/Maße", "50%", "a%20b", "%C3%BC", "why?", "a#b", "x&y=z"),
        *("a+b", "日本語", "it's", "a;b,c", "früh/Stück 2", "~me@home"),
    ]
    for label in labels:
        block(http, "label-user", quote(label), "Empty.", "direct")
    async with connected(server, server.key("label-user")) as client:
        for label in labels:
            written = await call_tool(
                client, "write_memory", label=label, text=f"Text of {label}.", reason="So."
            )
            assert "was written" in written, label
            assert f"Text of {label}." in await call_tool(client, "read_memory", label=label)
        resources = (await client.list_resources()).resources
        texts = {
            resource.name: (await client.read_resource(resource.uri)).contents[0].text
            for resource in resources
            if str(resource.uri).startswith("memory://blocks/")
        }
    assert {label: texts.get(label) for label in labels} == {
        label: f"Text of {label}." for label in labels
    }
    stored = {entry["label"] for entry in ok(http.get("/users/label-user/blocks"))}
    assert stored == {"human", *labels} or stored == set(labels)
