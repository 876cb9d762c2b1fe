"""Calls that are interrupted by cancelling their run or by killing the server."""

import asyncio
import itertools
import json
import random
import subprocess
from pathlib import Path

import pytest

from ricordo.llm.scripted import call
from ricordo.prompt.transcript import INTERRUPTED
from tests.api.conftest import Api
from tests.seams.server import MODEL
from tests.support.attacked_server import LIMIT, AttackedServer, attacked_server
from tests.support.model_server import completion, tool_call
from tests.support.ready import Helper
from tests.support.server_process import CAN_FORK

_marks = itertools.count(100_000)


def naps(mark: str) -> str:
    """Return the source of a tool that leaves a process running, prints a line, and sleeps."""
    return f'''
import subprocess, time

def nap() -> str:
    """Sleep."""
    subprocess.Popen(["sleep", "{mark}"])
    print("asleep", flush=True)
    time.sleep(100)
'''


def new_mark() -> str:
    """Return a number of seconds that identifies the process of one test."""
    return f"{next(_marks)}.{random.randrange(10**9)}"  # noqa: S311 - a name


async def process_ends(mark: str) -> bool:
    """Return whether the process ends within some seconds."""
    for _ in range(200):
        listed = await asyncio.to_thread(
            subprocess.run, ["ps", "-eo", "args"], capture_output=True, text=True, check=True
        )
        if f"sleep {mark}" not in listed.stdout:
            return True
        await asyncio.sleep(0.05)
    return False


def test_cancelling_a_run_ends_the_call_and_its_processes(api: Api) -> None:
    mark = new_mark()
    tool = api.client.tools.create(source_code=naps(mark))
    agent = api.client.agents.create(model=MODEL, tool_ids=[tool.id])
    api.server.says(call("nap"))
    stopped = ""
    with api.http.stream(
        "POST",
        f"/v1/agents/{agent.id}/messages/stream",
        json={"input": "Sleep.", "include_pings": True},
    ) as lines:
        for line in lines.iter_lines():
            if '"progress":"asleep"' in line:
                assert api.http.post(f"/v1/agents/{agent.id}/messages/cancel").status_code == 200
            stopped = line if "stop_reason" in line else stopped
    assert '"cancelled"' in stopped
    assert asyncio.run(process_ends(mark))
    api.server.says("I am awake.")
    answer = api.client.agents.messages.create(agent.id, input="Are you awake?")
    assert answer.stop_reason.stop_reason == "end_turn"
    api.client.tools.delete(tool.id)


CHATTY = '''
import os

def chat() -> str:
    """Print a lot."""
    for number in range(20_000):
        os.write(1, b"line\\n")
    return "done"
'''


def test_long_tool_output_sends_limited_progress_and_is_cut_in_the_result(api: Api) -> None:
    tool = api.client.tools.create(source_code=CHATTY)
    agent = api.client.agents.create(model=MODEL, tool_ids=[tool.id])
    api.server.says(call("chat"), "Done.")
    asked = {"input": "Chat.", "include_pings": True}
    with api.http.stream("POST", f"/v1/agents/{agent.id}/messages/stream", json=asked) as lines:
        shown = list(lines.iter_lines())
    assert 1 <= sum('"progress"' in line for line in shown) <= 100
    assert any(line.count("line") >= 4_000 for line in shown if "tool_return_message" in line)
    api.client.tools.delete(tool.id)


async def kill_during_a_call(server: AttackedServer, delay: float | None) -> str:
    """Kill the server during a turn with a call; return the call's result, if there is one.

    The kill comes `delay` seconds after the first line of the stream, perhaps before the call; with
    None, as soon as the tool sleeps.
    """
    mark = new_mark()
    answer = await server.http.put("/v1/tools/", json={"source_code": naps(mark)})
    agent = await server.agent(tool_ids=[answer.json()["id"]])
    server.model.clear()
    server.model.push(completion(None, [tool_call("nap", "{}")]))
    asked = {"input": "Sleep.", "include_pings": True, "background": True}
    began = asyncio.Event()

    async def ask() -> None:
        async with server.http.stream(
            "POST", f"/v1/agents/{agent}/messages/stream", json=asked
        ) as lines:
            async for line in lines.aiter_lines():
                if '"progress":"asleep"' in line or delay is not None:
                    began.set()

    asking = asyncio.create_task(ask())
    await asyncio.wait_for(began.wait(), LIMIT)
    await asyncio.sleep(delay or 0)
    await asyncio.to_thread(server.process.kill)
    await asyncio.wait([asking])
    assert not asking.cancelled()
    asking.exception()
    assert await process_ends(mark)
    await asyncio.to_thread(server.process.start)
    server.model.clear()
    again = await server.say(agent, "Are you awake?")
    assert again.status_code == 200, again.text
    listed = (await server.http.get(f"/v1/agents/{agent}/messages", params={"limit": 50})).json()
    return next(
        (
            str(each["tool_return"])
            for each in listed
            if each["message_type"] == "tool_return_message"
        ),
        "",
    )


@pytest.mark.skipif(not CAN_FORK, reason="the helper forks")
@pytest.mark.parametrize("kills", [1, pytest.param(25, marks=pytest.mark.soak)])
async def test_a_kill_of_the_server_leaves_no_process_and_the_call_ends_as_interrupted(
    kills: int, tmp_path: Path, helper: Helper
) -> None:
    async with attacked_server(helper, tmp_path) as server:
        assert INTERRUPTED in json.dumps(await kill_during_a_call(server, None))
        for _ in range(kills - 1):
            ended = await kill_during_a_call(server, random.uniform(0, 0.3))  # noqa: S311
            assert not ended or INTERRUPTED in ended
