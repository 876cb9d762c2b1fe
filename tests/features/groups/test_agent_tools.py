"""Agents that ask each other.

The tests check what each reads and returns, who may be asked, and that every call ends.
"""

import ast
import asyncio
from itertools import pairwise
from typing import Any

import pytest

from ricordo.errors import ModelError
from ricordo.llm.scripted import call
from tests.features.groups.cast import ALL, ASYNC, TAGS, WAITS, Cast, answer_in
from tests.seams.http import ok
from tests.seams.waiting import wait_for


def test_an_agent_call_returns_the_answer_as_a_python_dict(cast: Cast) -> None:
    ben = cast.agent("Ben")
    ann = cast.agent("Ann", WAITS)
    cast.asks("Ann", "Ben", "What IS six times seven?", then="It is 42.")
    cast.says("Ben", 'It\'s "42",\nI think.')
    (result,) = cast.returned("Ann")
    assert answer_in(result) == {"agent_id": ben, "response": ['It\'s "42",\nI think.']}
    assert f"'agent_id': '{ben}', 'response': [" in result[1]
    (incoming,) = [one for one in cast.messages("Ben") if one["message_type"] == "system_message"][
        1:
    ]
    assert incoming["content"].startswith(f"[Incoming message from agent with ID '{ann}' - ")
    assert incoming["content"].endswith("] What IS six times seven?")
    assert (incoming["sender_id"], incoming["name"]) == (ann, "Ann")


def test_send_message_texts_and_tool_names_are_in_the_answer(cast: Cast) -> None:
    tools = ("send_message", "archival_memory_insert")
    cast.agent("Ben", *tools, agent_type="memgpt_agent", include_base_tool_rules=False)
    cast.agent("Ann", WAITS)
    cast.asks("Ann", "Ben")
    cast.asks("Ann", "Ben")
    cast.says("Ben", [call("send_message", message="One."), call("send_message", message="Two.")])
    cast.says("Ben", call("archival_memory_insert", content="Tea.", tags=[]))
    assert answer_in(cast.returned("Ann")[0])["response"] == ["One.\nTwo."]
    (text,) = answer_in(cast.returned("Ann")[0])["response"]
    assert "archival_memory_insert" in text
    assert "no response" not in text


def test_an_empty_answer_lists_the_tools_that_were_called(
    cast: Cast,
) -> None:
    cast.agent("Ben", "archival_memory_insert")
    cast.agent("Ann", WAITS)
    # In an earlier version such an agent did not answer any more after its first call.
    for _ in range(2):
        cast.asks("Ann", "Ben")
        cast.says(
            "Ben",
            *(call("archival_memory_insert", content=f"Tea {n}.", tags=[]) for n in range(2)),
            "",
        )
        (text,) = answer_in(cast.returned("Ann")[0])["response"]
        assert "archival_memory_insert (2 times)" in text


def test_include_multi_agent_tools_attaches_all_three_once(cast: Cast) -> None:
    cast.agent("Ann", WAITS, include_multi_agent_tools=True)
    attached = ok(cast.http.get(f"/v1/agents/{cast.ids['Ann']}/tools"))
    assert {tool["name"]: tool["tool_type"] for tool in attached} == dict.fromkeys(
        ALL, "letta_multi_agent_core"
    )
    assert len(attached) == 3
    without = ok(
        cast.http.get(f"/v1/agents/{cast.agent('Ben', include_multi_agent_tools=False)}/tools")
    )
    assert without == []


def test_agents_called_by_tags_answer_one_after_another(cast: Cast) -> None:
    cast.agent("Ann", TAGS, tags=["x", "y"])
    tagged = {"Ben": ["x", "y"], "Cid": ["x", "z"], "Dan": ["y"], "Eve": [], "Hid": ["x"]}
    for name, tags in tagged.items():
        cast.agent(name, tags=tags, hidden=name == "Hid")
    names = {id: name for name, id in cast.ids.items()}
    cases: list[tuple[list[str], list[str], str]] = [
        ([], ["x"], "Ben Cid Hid"),
        (["x"], [], "Ben Cid Hid"),
        (["x"], ["y", "z"], "Ben Cid"),
        (["x", "y"], [], "Ben"),
        (["x", "y"], ["z"], ""),
        ([], ["y", "z"], "Ben Cid Dan"),
        ([], ["nothing"], ""),
    ]
    for match_all, match_some, expected in cases:
        cast.says(
            "Ann", call(TAGS, message="Hi?", match_all=match_all, match_some=match_some), "Done."
        )
        answers = answer_in(cast.returned("Ann")[0])
        assert " ".join(names[one["agent_id"]] for one in answers) == expected, (
            match_all,
            match_some,
        )
        assert all(one["response"] == ["ok"] for one in answers)
    cast.says("Ann", call(TAGS, message="Hi?", match_all=[], match_some=[]), "Done.")
    everybody = [one["agent_id"] for one in answer_in(cast.returned("Ann")[0])]
    assert {cast.ids[name] for name in ("Ben", "Cid", "Dan", "Eve")} <= set(everybody)
    assert not {cast.ids["Ann"], cast.ids["Hid"]} & set(everybody)
    assert cast.incoming("Ann") == []


def test_a_failing_agent_is_reported_and_the_others_are_asked(cast: Cast) -> None:
    cast.agent("Ann", TAGS, WAITS)
    for name in ("Ben", "Cid", "Dan"):
        cast.agent(name, tags=["team"])
    cast.says("Ann", call(TAGS, message="Hi?", match_all=["team"], match_some=[]), "Done.")
    cast.says("Cid", ModelError("llm_error", "The model is out."))
    answers = [one["response"] for one in answer_in(cast.returned("Ann")[0])]
    assert answers == [["ok"], ["<error: The model is out.>"], ["ok"]]
    cast.asks("Ann", "Cid")
    # The turn asks twice, since its first request holds the message at which the model failed.
    error = ModelError("llm_error", "The model is out.")
    cast.says("Cid", error, error)
    assert answer_in(cast.returned("Ann")[0])["response"] == ["<error: The model is out.>"]


def test_calls_to_missing_agents_are_refused(cast: Cast) -> None:
    cast.agent("Ann", *ALL)
    missing = "agent-00000000-0000-4000-8000-000000000000"
    ones = [
        missing,
        "Ben",
        "",
        " ",
        "agent-",
        "conv-1",
        "default",
        "agent-x' or 1=1",
        "'",
        "agent-\u202e",
    ]
    for other in ones:
        for tool in (WAITS, ASYNC):
            cast.says("Ann", call(tool, message="Hi?", other_agent_id=other), "Done.")
            ((status, text),) = cast.returned("Ann")
            assert status == "error", other
            assert "not found" in text or "default" in text, text
    cast.says("Ann", call(WAITS, message=" ", other_agent_id=missing), "Done.")
    assert cast.returned("Ann")[0][0] == "error"


def test_an_agent_cannot_call_itself_or_an_agent_that_waits_for_it(cast: Cast) -> None:
    cast.agent("Ann", *ALL)
    cast.agent("Ben", *ALL, tags=["b"])
    cast.agent("Cid", *ALL)
    for tool in (WAITS, ASYNC):
        cast.says("Ann", call(tool, message="Hi?", other_agent_id=cast.ids["Ann"]), "Done.")
        ((status, text),) = cast.returned("Ann")
        assert (status, "itself" in text) == ("error", True)
    for tool in (WAITS, ASYNC):
        cast.asks("Ann", "Ben")
        cast.asks("Ben", "Cid")
        cast.says("Cid", call(tool, message="Hi?", other_agent_id=cast.ids["Ann"]))
        cast.says("Cid", call(tool, message="Hi?", other_agent_id=cast.ids["Ben"]), "I could not.")
        cast.send("Ann")
        refused = [
            one
            for message in cast.requests["Cid"][-1].messages[-3:]
            for one in message.tool_returns
        ]
        assert len(refused) == 2
        assert all("may be waiting for the end of this turn" in one.content for one in refused), (
            refused
        )
    cast.asks("Ann", "Ben")
    cast.says("Ben", call(TAGS, message="Hi?", match_all=[], match_some=[]), "Done.")
    cast.send("Ann")
    content = cast.requests["Ben"][-1].messages[-1].tool_returns[0].content
    assert "<error: The agent " in content
    assert cast.incoming("Ann") == []


def test_a_chain_of_agent_calls_ends_at_the_depth_limit(cast: Cast) -> None:
    names = ["Ann", "Ben", "Cid", "Dan", "Eve", "Fay"]
    for name in reversed(names):
        cast.agent(name, *ALL)
    for times in range(20):  # five calls each: a hundred in sequence
        for name, other in pairwise(names):
            cast.asks(name, other, then=f"{name} says so.")
        assert answer_in(cast.returned("Ann")[0])["response"] == ["Ben says so."], times
        (last,) = cast.requests["Eve"][-1].messages[-1].tool_returns
        assert "5 agents have asked each other in a chain" in last.content
    assert cast.requests["Fay"] == []
    for name in names[1:5]:
        assert len(cast.incoming(name)) == 20
    cast.says("Dan", call(ASYNC, message="Hi?", other_agent_id=cast.ids["Fay"]))
    assert [len(cast.requests[name]) for name in names[:5]] == [40] * 5


def test_the_call_depth_limit_is_a_setting(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("Ann", "Ben", "Cid"):
        cast.agent(name, *ALL)
    for depth, is_asked in ((1, 0), (2, 0), (3, 1)):
        monkeypatch.setenv("RICORDO_AGENT_CALL_DEPTH", str(depth))
        cast.asks("Ann", "Ben")
        if depth > 1:
            cast.asks("Ben", "Cid")
        (result,) = cast.returned("Ann")
        assert (result[0] == "success") == (depth > 1)
        assert len(cast.requests["Cid"]) == is_asked


def test_a_slow_agent_continues_and_the_result_names_its_run(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RICORDO_AGENT_CALL_SECONDS", "0.3")
    cast.agent("Ann", WAITS)
    cast.agent("Ben")
    opened = asyncio.Event()

    async def wait(_request: object) -> str:
        await opened.wait()
        return "At last."

    cast.asks("Ann", "Ben")
    cast.says("Ben", wait)
    (text,) = answer_in(cast.returned("Ann")[0])["response"]
    (run,) = ok(cast.http.get("/v1/runs/", params={"agent_id": cast.ids["Ben"]}))
    assert "0.3 seconds" in text
    assert run["id"] in text
    cast.asks("Ann", "Ben")
    (text,) = answer_in(cast.returned("Ann")[0])["response"]
    assert "busy" in text
    assert run["id"] in text
    cast.server.loop.call_soon_threadsafe(opened.set)
    wait_for(lambda: ok(cast.http.get(f"/v1/runs/{run['id']}"))["status"] == "completed")
    monkeypatch.undo()
    cast.asks("Ann", "Ben")
    assert answer_in(cast.returned("Ann")[0])["response"] == ["ok"]


def test_simultaneous_mutual_calls_refuse_one_without_a_timeout(cast: Cast) -> None:
    cast.agent("Ann", WAITS)
    cast.agent("Ben", WAITS)
    both = asyncio.Barrier(2)

    def asks(other: str) -> Any:
        async def line(_request: object) -> Any:
            await both.wait()
            return call(WAITS, message="Hi?", other_agent_id=cast.ids[other])

        return line

    cast.says("Ann", asks("Ben"), "Ann is done.")
    cast.says("Ben", asks("Ann"), "Ben is done.")
    sent = {"messages": [{"role": "user", "content": "Go."}]}
    runs = [
        ok(cast.http.post(f"/v1/agents/{cast.ids[n]}/messages/async", json=sent))["id"]
        for n in ("Ann", "Ben")
    ]
    wait_for(
        lambda: all(ok(cast.http.get(f"/v1/runs/{run}"))["status"] == "completed" for run in runs)
    )
    results = [cast.requests[name][1].messages[-1].tool_returns[0] for name in ("Ann", "Ben")]
    refused = [one for one in results if one.status == "error"]
    assert len(refused) == 1
    assert "is waiting for the end of this turn" in refused[0].content


def test_a_call_to_an_agent_that_awaits_approval_names_its_run(cast: Cast) -> None:
    cast.agent("Ann", WAITS)
    rules = [{"type": "requires_approval", "tool_name": "archival_memory_insert"}]
    ben = cast.agent("Ben", "archival_memory_insert", tool_rules=rules)
    cast.asks("Ann", "Ben")
    cast.says("Ben", call("archival_memory_insert", content="Tea.", tags=[]))
    (text,) = answer_in(cast.returned("Ann")[0])["response"]
    (run,) = ok(cast.http.get("/v1/runs/", params={"agent_id": ben}))
    assert "archival_memory_insert waits for an approval" in text
    assert run["id"] in text
    cast.asks("Ann", "Ben")
    assert cast.returned("Ann")[0][0] == "error"


def test_cancelling_a_turn_cancels_the_called_agents_turn(cast: Cast) -> None:
    cast.agent("Ann", WAITS)
    ben = cast.agent("Ben")
    asked = asyncio.Event()

    async def never(_request: object) -> str:
        asked.set()
        await asyncio.Event().wait()
        return ""

    cast.asks("Ann", "Ben")
    cast.says("Ben", never)
    sent = {"messages": [{"role": "user", "content": "Go."}]}
    run = ok(cast.http.post(f"/v1/agents/{cast.ids['Ann']}/messages/async", json=sent))["id"]
    wait_for(asked.is_set)
    ok(cast.http.post(f"/v1/agents/{cast.ids['Ann']}/messages/cancel", json={"run_ids": [run]}))
    (other,) = ok(cast.http.get("/v1/runs/", params={"agent_id": ben}))
    assert other["status"] == "cancelled"


@pytest.mark.parametrize("limit", [400, 1000, 50_000])
def test_long_answers_are_cut_and_stay_parseable(cast: Cast, limit: int) -> None:
    tool = ok(cast.http.get("/v1/tools/", params={"name": TAGS}))[0]["id"]
    ok(cast.http.patch(f"/v1/tools/{tool}", json={"return_char_limit": limit}))
    cast.agent("Ann", TAGS)
    texts = ["a" * 60_000, "'\"\\\n\u0007" * 20_000, "\U0001f600" * 30_000]
    for name, text in zip(("Ben", "Cid", "Dan"), texts, strict=True):
        cast.agent(name, tags=[f"long {limit}"])
        cast.says(name, text)
    cast.says("Ann", call(TAGS, message="Hi?", match_all=[f"long {limit}"], match_some=[]), "Done.")
    (result,) = cast.returned("Ann")
    assert len(result[1]) <= limit
    answers = ast.literal_eval(result[1])
    assert [one["agent_id"] for one in answers] == [
        cast.ids[name] for name in ("Ben", "Cid", "Dan")
    ]
    assert all(one["response"][0].endswith("[the rest was cut]") for one in answers)
    ok(cast.http.patch(f"/v1/tools/{tool}", json={"return_char_limit": 50_000}))
