"""The main memory of a server that runs for long stays bounded.

Data of agents, users and conversations that are not in use does not stay in memory. The test takes
turns of all kinds. They are blocking or streamed, and some edit memory or search. Several users
talk, and some agents are deleted afterwards.
"""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from tests.support.attacked_server import AttackedServer, attacked_server
from tests.support.model_server import Answer, Seen, completion, tool_call
from tests.support.ready import Helper
from tests.support.server_process import CAN_FORK

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(
        not CAN_FORK or sys.platform != "linux", reason="a forked server, and Linux's /proc"
    ),
]
TURNS, FIRST, MOST = 10_000, 1_000, 1.3
_AT_ONCE, _TURNS_AN_AGENT = 4, 20


def _reply(seen: Seen) -> Answer:
    """Answer with text, or with a call of the tool that the user's last message names."""
    if seen.method == "GET":
        return Answer({"object": "list", "data": [{"id": "scripted-1", "object": "model"}]})
    said = [
        message for message in seen.body.get("messages", []) if message["role"] in ("user", "tool")
    ]
    words = str(said[-1]["content"]) if said else ""
    if said and said[-1]["role"] == "user" and "edit" in words:
        call = tool_call("memory_insert", json.dumps({"label": "human", "new_string": words}))
        return completion(None, [call])
    if said and said[-1]["role"] == "user" and "search" in words:
        return completion(None, [tool_call("conversation_search", json.dumps({"query": words}))])
    return completion(f"You said: {words[:60]}")


async def _talk(server: AttackedServer, first: int, turns: int) -> None:
    agent = ""
    for number in range(first, first + turns):
        if (number - first) % _TURNS_AN_AGENT == 0:
            if agent and number % 3 == 0:
                (await server.http.delete(f"/v1/agents/{agent}")).raise_for_status()
            about = {"user_id": f"user-{number}"} if number % 2 else {}
            blocks = [{"label": "human", "value": "Her name is Ada.", "limit": 100_000}]
            agent = await server.agent(memory_blocks=blocks, **about)
        kind = ("hello", "edit", "search", "hello")[number % 4]
        body = {"input": f"{kind} {number}: the tea of day {number} was {number * 7919 % 10_007}"}
        how = "/stream" if number % 5 == 0 else ""
        answer = await server.http.post(f"/v1/agents/{agent}/messages{how}", json=body)
        assert answer.status_code == 200, answer.text
        assert "error" not in answer.text[:200], answer.text


async def test_memory_after_ten_thousand_turns_is_little_more_than_after_one_thousand(
    tmp_path: Path, helper: Helper
) -> None:
    async with attacked_server(helper, tmp_path, embedding="ricordo/wordllama-256") as server:
        server.model.otherwise = _reply
        sizes = {}
        for begun in range(0, TURNS, FIRST):
            shares = [begun + share * FIRST // _AT_ONCE for share in range(_AT_ONCE)]
            await asyncio.gather(*(_talk(server, first, FIRST // _AT_ONCE) for first in shares))
            sizes[begun + FIRST] = server.resident_mb
            print(sizes, flush=True)
    assert sizes[TURNS] <= MOST * sizes[FIRST], sizes
