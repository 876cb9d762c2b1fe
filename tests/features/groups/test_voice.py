"""Voice agents: their tools and answers.

Messages that leave their window are stored by a second agent.
"""

import re
from dataclasses import replace
from typing import Any
from uuid import uuid4

import httpx2
import orjson
import pytest
from openai import OpenAI

from ricordo.agents.request import (
    NewMessage,
    TurnDelivery,
    TurnRequest,
)
from ricordo.agents.turn import collect, run_turn
from ricordo.domain.message import TextPart
from ricordo.domain.model import ModelReply, ModelRequest, TextChunk, ToolCallChunk
from ricordo.domain.scope import Scope
from ricordo.errors import ModelError
from ricordo.llm.scripted import Line, call
from tests.features.groups.test_sleeptime import say, wait_for_runs
from tests.seams.http import ok
from tests.seams.server import LIMIT, MODEL, PIECES, Gate, ServerInThread
from tests.seams.waiting import wait_for


def voice_agent(http: httpx2.Client, **fields: Any) -> dict[str, Any]:
    body = {
        "name": "Vera",
        "model": MODEL,
        "agent_type": "voice_convo_agent",
        "enable_sleeptime": True,
        "memory_blocks": [
            {"label": "human", "value": "Nothing is known."},
            {"label": "persona", "value": "I am Vera."},
        ],
    }
    return dict(ok(http.post("/v1/agents/", json=body | fields)))


def test_a_voice_agent_is_created_with_its_memory_keeper_only(http: httpx2.Client) -> None:
    agent = voice_agent(http)
    assert {tool["name"] for tool in agent["tools"]} == {"send_message", "search_memory"}
    group = agent["multi_agent_group"]
    assert (group["manager_type"], group["description"]) == (
        "voice_sleeptime",
        "Low latency voice chat with async memory management.",
    )
    assert (group["max_message_buffer_length"], group["min_message_buffer_length"]) == (30, 15)
    keeper = ok(http.get(f"/v1/agents/{group['agent_ids'][0]}"))
    assert (keeper["name"], keeper["agent_type"], keeper["model"]) == (
        "Vera-sleeptime",
        "voice_sleeptime_agent",
        MODEL,
    )
    assert {tool["name"] for tool in keeper["tools"]} == {
        *("store_memories", "rethink_user_memory", "finish_rethinking_memory")
    }
    assert {tool["tool_type"] for tool in keeper["tools"]} == {"letta_voice_sleeptime_core"}
    assert {block["label"] for block in keeper["blocks"]} == {"human", "persona", "memory_persona"}
    refused = http.post("/v1/agents/", json={"model": MODEL, "agent_type": "voice_convo_agent"})
    assert (refused.status_code, "enable_sleeptime" in refused.text) == (422, True)


def test_voice_tools_have_a_spoken_sentence_and_no_memory_tool_is_offered(
    server: ServerInThread, http: httpx2.Client
) -> None:
    source = 'def roll_dice(sides: int) -> int:\n    """Roll a die.\n\n    Args:\n        sides: How many.\n    """\n    return 4\n'
    dice = ok(http.post("/v1/tools/", json={"source_code": source}))
    agent = voice_agent(http, tool_ids=[dice["id"]], tools=["memory_insert", "conversation_search"])
    ok(http.post(f"/v1/agents/{agent['id']}/archival-memory", json={"text": "Ada likes tea."}))
    server.says("Good evening.")
    say(http, agent, "Good evening!")
    offered = server.model.requests[-1].tools
    assert [tool.name for tool in offered] == ["search_memory", "roll_dice"]
    for tool in offered:
        assert next(iter(tool.parameters["properties"])) == "pre_exec_msg"
        assert tool.parameters["required"][0] == "pre_exec_msg"
        assert "request_heartbeat" not in tool.parameters["properties"]


def voice_stream(
    http: httpx2.Client, agent_id: str, *messages: Any, **fields: Any
) -> list[dict[str, Any]]:
    """Return the chunks of an answer on the voice route."""
    body = {"messages": list(messages), **fields}
    with http.stream("POST", f"/v1/voice-beta/{agent_id}/chat/completions", json=body) as stream:
        assert stream.status_code == 200, stream.read()
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = [
            line.removeprefix("data: ") for line in stream.iter_lines() if line.startswith("data: ")
        ]
    assert lines.pop() == "[DONE]"
    chunks = [orjson.loads(line) for line in lines]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    return chunks


def spoken_text(chunks: list[dict[str, Any]]) -> str:
    return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)


USER = {"role": "user", "content": "What did I say about Lisbon?"}


@pytest.mark.parametrize(
    ("says", "expected"),
    [
        ((), "Let me look that up. It was sunny.\n\nYou liked Lisbon."),
        (
            ("One moment.",),
            "One moment.\n\nLet me look that up. It was sunny.\n\nYou liked Lisbon.",
        ),
    ],
)
def test_the_spoken_sentence_of_a_call_is_streamed_and_stored(
    server: ServerInThread, http: httpx2.Client, says: tuple[str, ...], expected: str
) -> None:
    agent = voice_agent(http)
    ok(
        http.post(
            f"/v1/agents/{agent['id']}/archival-memory",
            json={"text": "Lisbon was sunny, the user said."},
        )
    )
    search = call("search_memory", pre_exec_msg="Let me look that up. It was sunny.")
    server.says([*map(TextPart, says), search], "You liked Lisbon.")
    chunks = voice_stream(
        http, agent["id"], USER, model="any", voice={"provider": "x"}, call={"id": 1}
    )
    assert spoken_text(chunks) == expected
    assert not any(chunk["choices"][0]["delta"].get("tool_calls") for chunk in chunks)
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    stored = ok(http.get(f"/v1/agents/{agent['id']}/messages", params={"order": "asc"}))
    told = [
        message["content"].strip()
        for message in stored
        if message["message_type"] == "assistant_message"
    ]
    assert "\n\n".join(told) == expected
    (made,) = [message for message in stored if message["message_type"] == "tool_call_message"]
    assert "pre_exec_msg" not in made["tool_call"]["arguments"]
    (result,) = [message for message in stored if message["message_type"] == "tool_return_message"]
    (found,) = orjson.loads(result["tool_return"])["archival_search_results"]
    assert found["content"] == "Lisbon was sunny, the user said."


@pytest.mark.parametrize("before", ["", "Well."])
def test_the_spoken_sentence_is_forwarded_as_it_arrives(
    server: ServerInThread, http: httpx2.Client, before: str
) -> None:
    agent = voice_agent(http, model=PIECES)
    ok(http.post(f"/v1/agents/{agent['id']}/archival-memory", json={"text": "Lisbon was sunny."}))
    sentence = 'I look it up, "quickly".'
    search = call("search_memory", pre_exec_msg=sentence, start_minutes_ago=5)
    letters = [
        ToolCallChunk(0, letter, search.call_id if place == 0 else None)
        for place, letter in enumerate(search.arguments)
    ]
    letters[0] = replace(letters[0], name="search_memory")
    words = [TextPart(before)] if before else []
    server.pieces.answers += [
        ([*(TextChunk(part.text) for part in words), *letters], ModelReply((*words, search))),
        ([TextChunk("Sun"), TextChunk("ny.")], ModelReply((TextPart("Sunny."),))),
    ]
    chunks = voice_stream(http, agent["id"], USER)
    start = f"{before}\n\n" if before else ""
    assert spoken_text(chunks) == f"{start}{sentence}\n\nSunny."
    assert len([chunk for chunk in chunks if spoken_text([chunk])]) > len(sentence)


def test_words_are_sent_before_the_answer_is_complete(
    server: ServerInThread, http: httpx2.Client
) -> None:
    agent = voice_agent(http)
    ok(http.post(f"/v1/agents/{agent['id']}/archival-memory", json={"text": "Lisbon was sunny."}))
    gate = Gate(server, "It was sunny.")
    server.says(call("search_memory", pre_exec_msg="Let me look."))
    server.answers_with(
        lambda request: (
            gate(request)
            if request.messages[-1].role == "tool"
            else call("search_memory", pre_exec_msg="Let me look.")
        )
    )
    body = {"messages": [USER]}
    with http.stream("POST", f"/v1/voice-beta/{agent['id']}/chat/completions", json=body) as stream:
        text, lines = "", stream.iter_lines()
        while not text.endswith("Let me look."):
            line = next(lines).removeprefix("data: ")
            text += spoken_text([orjson.loads(line)]) if line.startswith("{") else ""
        gate.wait()
        gate.open()
        assert "sunny" in "".join(lines)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": None},
        {"messages": []},
        {"messages": "Hello."},
        {"messages": ["Hello."]},
        {"messages": [USER, {"role": "assistant", "content": "Hi."}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi."}]}]},
        {"messages": [{"role": "user"}]},
        {"messages": [{"content": "Hi."}]},
        {"messages": [{"role": "user", "content": None}]},
    ],
)
def test_a_voice_request_without_a_final_user_message_is_refused(
    http: httpx2.Client, body: dict[str, Any]
) -> None:
    answer = http.post(f"/v1/voice-beta/agent-{uuid4()}/chat/completions", json=body)
    assert answer.status_code == 400
    assert "messages" in answer.json()["detail"]


@pytest.mark.parametrize("path", ["/v1", "/v1/chat/completions"])
def test_a_voice_client_with_greetings_and_interruptions_keeps_one_conversation(
    server: ServerInThread, http: httpx2.Client, path: str
) -> None:
    """LiveKit sends its instructions, a greeting, and the heard part of an interrupted answer."""
    agent = voice_agent(http)
    greeting = {"role": "assistant", "content": "Hello, this is Vera."}
    chat: list[Any] = [{"role": "system", "content": "You are a pirate."}, greeting]
    with OpenAI(
        base_url=f"{server.url}{path}", api_key="none", max_retries=0, timeout=LIMIT
    ) as client:
        for number in range(3):
            server.says(f"Answer {number} with many words.")
            chat.append({"role": "user", "content": f"Question {number}"})
            stream = client.chat.completions.create(model=agent["id"], messages=chat, stream=True)
            text = "".join(
                chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices
            )
            assert text == f"Answer {number} with many words."
            chat.append({"role": "assistant", "content": text[:8]})
    asked = [message.text for message in server.model.requests[-1].messages[1:]]
    assert [text for text in asked if text.startswith("Question")] == [
        "Question 0",
        "Question 1",
        "Question 2",
    ]
    assert "Answer 0 with many words." in asked
    assert not any("pirate" in text for text in asked)
    whole = ok(http.get(f"/v1/agents/{agent['id']}"))
    assert len(whole["message_ids"]) == 7


def test_the_next_message_cancels_an_answer_that_was_interrupted(
    server: ServerInThread, http: httpx2.Client
) -> None:
    agent = voice_agent(http)
    gate = Gate(server)
    server.answers_with(
        lambda request: (
            gate(request) if request.messages[-1].text == "Tell me a story." else "Hello."
        )
    )
    body = {"messages": [{"role": "user", "content": "Tell me a story."}]}
    with http.stream("POST", f"/v1/voice-beta/{agent['id']}/chat/completions", json=body) as stream:
        next(stream.iter_lines())
        gate.wait()
    runs = f"/v1/runs/?agent_id={agent['id']}"
    wait_for(lambda: spoken_or_busy(http, agent["id"]) == "Hello.")
    gate.open()
    assert sorted(run["status"] for run in ok(http.get(runs)))[0] == "cancelled"


def spoken_or_busy(http: httpx2.Client, agent_id: str) -> str:
    """Return the agent's answer to "Stop.".

    It is empty while the server has not noticed yet that the reader left.
    """
    body = {"messages": [{"role": "user", "content": "Stop."}]}
    answer = http.post(f"/v1/voice-beta/{agent_id}/chat/completions", json=body)
    if answer.status_code == 409:
        return ""
    lines = [
        line.removeprefix("data: ")
        for line in answer.text.splitlines()
        if line.startswith("data: {")
    ]
    return spoken_text([orjson.loads(line) for line in lines])


CHUNK = {"start_index": 0, "end_index": 1, "context": "Where <Ada> lives & works."}


def keeps(request: ModelRequest, memory: str = "Lives in Lisbon.") -> Line:
    """Return the next calls of the memory agent and of the voice agent."""
    if not is_keeper(request):
        return f"Fine: {request.messages[-1].text}"
    done = [result.name for message in request.messages for result in message.tool_returns]
    # The third step of each run ends it.
    steps = len(done) % 3
    if steps == 0:
        return call("store_memories", chunks=[CHUNK])
    return (
        call("rethink_user_memory", new_memory=memory)
        if steps == 1
        else call("finish_rethinking_memory")
    )


def is_keeper(request: ModelRequest) -> bool:
    return any("(Older) Evicted Messages:" in message.text for message in request.messages)


def set_buffer(http: httpx2.Client, agent: dict[str, Any], most: int, least: int) -> None:
    config = {
        "manager_type": "voice_sleeptime",
        "max_message_buffer_length": most,
        "min_message_buffer_length": least,
    }
    ok(
        http.patch(
            f"/v1/groups/{agent['multi_agent_group']['id']}", json={"manager_config": config}
        )
    )


def window_of(http: httpx2.Client, agent: dict[str, Any], user: str | None = None) -> list[str]:
    headers = {"x-ricordo-user": user} if user else {}
    return list(ok(http.get(f"/v1/agents/{agent['id']}", headers=headers))["message_ids"])


@pytest.mark.parametrize(
    ("most", "least", "kept"), [(10, 6, 7), (12, 8, 9), (30, 15, 15), (30, 16, 17), (6, 5, 5)]
)
def test_a_long_voice_talk_keeps_the_last_messages_from_a_user_message(
    server: ServerInThread, http: httpx2.Client, most: int, least: int, kept: int
) -> None:
    server.answers_with(keeps)
    agent = voice_agent(http)
    set_buffer(http, agent, most, least)
    started: list[str] = []
    for number in range(most):
        started = say(http, agent, f"Number {number}.")
        if started:
            break
    window = window_of(http, agent)
    assert len(window) == kept
    listed = ok(
        http.get(f"/v1/agents/{agent['id']}/messages", params={"limit": 100, "order": "asc"})
    )
    assert next(one["message_type"] for one in listed if one["id"] == window[1]) == "user_message"
    assert [run["status"] for run in wait_for_runs(http, started)] == ["completed"]


def numbered_texts(server: ServerInThread) -> list[tuple[str, str]]:
    """Return the texts that the memory agent got, each once.

    Texts of messages that left the window come before texts of messages that stayed.
    """
    texts: dict[str, None] = {}
    for request in list(server.model.requests):
        for message in request.messages:
            if "(Older) Evicted Messages:" in message.text:
                texts.setdefault(message.text)
    parts = [
        text.split("(Older) Evicted Messages:\n")[1].split("\n\n(Newer) In-Context Messages:\n")
        for text in texts
    ]
    return [(older, newer) for older, newer in parts]


def test_evicted_voice_messages_are_kept_once_in_archive_and_block(
    server: ServerInThread, http: httpx2.Client
) -> None:
    server.answers_with(keeps)
    agent = voice_agent(http)
    set_buffer(http, agent, 8, 5)
    for number in range(12):
        wait_for_runs(http, say(http, agent, f"Number {number}."))
    texts = numbered_texts(server)
    assert texts[0][0].startswith(
        "    0. user: Number 0.\n    1. assistant: Fine: Number 0.\n    2. user: Number 1."
    )
    older = "\n".join(text for text, _ in texts)
    left = 12 - (len(window_of(http, agent)) - 1) // 2
    assert [older.count(f"user: Number {number}.\n") for number in range(12)] == [1] * left + [
        0
    ] * (12 - left)
    assert "user: Number 3." in texts[0][1] or "user: Number 4." in texts[0][1]
    passages = ok(http.get(f"/v1/agents/{agent['id']}/archival-memory"))
    assert len(passages) == len(texts)
    assert min(passage["text"] for passage in passages) == (
        "<memory><messages><message>user: Number 0.</message><message>assistant: Fine: Number 0.</message></messages>"
        "<context>Where &lt;Ada&gt; lives &amp; works.</context></memory>"
    )
    keeper = agent["multi_agent_group"]["agent_ids"][0]
    assert ok(http.get("/v1/archives/", params={"agent_id": keeper})) == []
    human = ok(http.get(f"/v1/agents/{agent['id']}/core-memory/blocks/human"))
    assert human["value"] == "Lives in Lisbon."
    called = [
        message["tool_call"]["name"]
        for message in ok(
            http.get(f"/v1/agents/{keeper}/messages", params={"limit": 100, "order": "asc"})
        )
        if message["message_type"] == "tool_call_message"
    ]
    assert called == ["store_memories", "rethink_user_memory", "finish_rethinking_memory"] * len(
        texts
    )


def test_the_keeper_follows_its_fixed_steps_without_tool_rules(
    server: ServerInThread, http: httpx2.Client
) -> None:
    agent = voice_agent(http)
    set_buffer(http, agent, 6, 5)
    keeper = agent["multi_agent_group"]["agent_ids"][0]
    ok(http.patch(f"/v1/agents/{keeper}", json={"tool_rules": []}))
    offered: list[list[str]] = []

    def answer(request: ModelRequest) -> Line:
        if is_keeper(request):
            offered.append([tool.name for tool in request.tools])
        return keeps(request)

    server.answers_with(answer)
    for number in range(6):
        if run_ids := say(http, agent, f"Number {number}."):
            wait_for_runs(http, run_ids)
            break
    assert offered == [
        ["store_memories"],
        ["rethink_user_memory"],
        ["rethink_user_memory", "finish_rethinking_memory"],
    ]


def test_the_keeper_creates_a_missing_human_block(
    server: ServerInThread, http: httpx2.Client
) -> None:
    server.answers_with(keeps)
    agent = voice_agent(http, memory_blocks=[])
    set_buffer(http, agent, 6, 5)
    for number in range(3):
        wait_for_runs(http, say(http, agent, f"Number {number}."))
    assert (
        ok(http.get(f"/v1/agents/{agent['id']}/core-memory/blocks/human"))["value"]
        == "Lives in Lisbon."
    )


@pytest.mark.parametrize("policy", ["direct", "propose"])
def test_what_the_keeper_stores_about_a_user_stays_private(
    server: ServerInThread, http: httpx2.Client, policy: str
) -> None:
    def answer(request: ModelRequest) -> Line:
        text = " ".join(message.text for message in request.messages[1:])
        return keeps(request, "Likes the albatros." if "ALBATROS" in text else "Likes the badger.")

    server.answers_with(answer)
    agent = voice_agent(
        http, memory_blocks=[{"label": "human", "value": "Nothing is known.", "policy": policy}]
    )
    set_buffer(http, agent, 6, 5)
    for user, word in (("ada", "ALBATROS"), ("ben", "BADGER")):
        for number in range(4):
            wait_for_runs(http, say(http, agent, f"{number}: I like the {word}.", user))
    for user, own, other in (("ada", "albatros", "badger"), ("ben", "badger", "albatros")):
        headers = {"x-ricordo-user": user}
        seen = str(ok(http.get(f"/v1/agents/{agent['id']}", headers=headers))["blocks"])
        proposed = str(ok(http.get(f"/users/{user}/diffs", params={"status": "all"})))
        assert own in (seen if policy == "direct" else proposed)
        assert (own in seen) is (policy == "direct")
        assert other not in seen + proposed
        passages = str(
            ok(http.get(f"/v1/agents/{agent['id']}/archival-memory", headers=headers))
        ).lower()
        assert own in passages
        assert other not in passages
    assert "badger" not in str(ok(http.get(f"/v1/agents/{agent['id']}"))).lower()
    for request in server.model.requests:
        asked = " ".join(message.text for message in request.messages).upper()
        assert not ("ALBATROS" in asked and "BADGER" in asked)


def test_a_keeper_that_fails_after_storing_stores_nothing_twice(
    server: ServerInThread, http: httpx2.Client
) -> None:
    failures = [ModelError("llm_error", "The provider is down.")]

    def answer(request: ModelRequest) -> Line:
        if is_keeper(request) and request.messages[-1].role == "tool" and failures:
            return failures.pop()
        return keeps_by_offer(request)

    server.answers_with(answer)
    agent = voice_agent(http)
    set_buffer(http, agent, 6, 5)
    started = [id for number in range(3) for id in say(http, agent, f"Number {number}.")]
    assert [run["status"] for run in wait_for_runs(http, started)] == ["failed"]
    human = f"/v1/agents/{agent['id']}/core-memory/blocks/human"
    wait_for(lambda: ok(http.get(human))["value"] == "Lives in Lisbon.")
    assert len(ok(http.get(f"/v1/agents/{agent['id']}/archival-memory"))) == 1


def keeps_by_offer(request: ModelRequest) -> Line:
    """Return the memory agent's next call, as its rules offer it."""
    names = [tool.name for tool in request.tools]
    if names == ["store_memories"]:
        return call("store_memories", chunks=[CHUNK])
    if names == ["rethink_user_memory"]:
        return call("rethink_user_memory", new_memory="Lives in Lisbon.")
    return call("finish_rethinking_memory") if "finish_rethinking_memory" in names else "Fine."


def test_store_memories_refuses_invalid_line_ranges(
    server: ServerInThread, http: httpx2.Client
) -> None:
    wrong = [(0, 99), (-1, 0), (2, 1), (99, 99)]

    def answer(request: ModelRequest) -> Line:
        line = keeps_by_offer(request)
        if getattr(line, "name", "") != "store_memories":
            return line
        return [
            call("store_memories", chunks=[CHUNK, CHUNK | {"start_index": a, "end_index": b}])
            for a, b in wrong
        ]

    server.answers_with(answer)
    agent = voice_agent(http)
    set_buffer(http, agent, 6, 5)
    for number in range(3):
        wait_for_runs(http, say(http, agent, f"Number {number}."))
    assert ok(http.get(f"/v1/agents/{agent['id']}/archival-memory")) == []
    keeper = agent["multi_agent_group"]["agent_ids"][0]
    listed = ok(http.get(f"/v1/agents/{keeper}/messages", params={"limit": 100}))
    assert sum("Nothing was stored" in str(message) for message in listed) >= 1


def test_search_memory_filters_keywords_and_passages_by_time(
    server: ServerInThread, http: httpx2.Client
) -> None:
    agent = voice_agent(http)
    ok(http.post(f"/v1/agents/{agent['id']}/archival-memory", json={"text": "Lisbon was sunny."}))
    old = ok(http.post("/v1/conversations/", params={"agent_id": agent["id"]}, json={}))
    server.says("Nice.")
    ok(
        http.post(
            f"/v1/conversations/{old['id']}/messages",
            json={"input": "My boat is called Petronella.", "streaming": False},
        )
    )
    spans: list[tuple[dict[str, Any], bool]] = [
        ({}, True),
        ({"start_minutes_ago": None, "end_minutes_ago": None}, True),
        ({"start_minutes_ago": 60, "end_minutes_ago": 0}, True),
        ({"start_minutes_ago": 0, "end_minutes_ago": 60}, True),
        ({"start_minutes_ago": 60}, True),
        ({"start_minutes_ago": 120, "end_minutes_ago": 60}, False),
        ({"start_minutes_ago": 60, "end_minutes_ago": 120}, False),
    ]
    for fields, is_found in spans:
        search = call(
            "search_memory",
            pre_exec_msg="Hm.",
            convo_keyword_queries=["Petronella", "zeppelin"],
            **fields,
        )
        server.says(search, "Yes.")
        say(http, agent, "What about Lisbon?")
        (result,) = server.model.requests[-1].messages[-1].tool_returns
        found = orjson.loads(result.content)["message"]
        assert bool(found["archival_search_results"]) is is_found, fields
        assert found["convo_keyword_search_results"] == (
            {"Petronella": ["My boat is called Petronella."]} if is_found else {}
        ), fields


def test_messages_sent_while_paused_are_never_kept(
    server: ServerInThread, http: httpx2.Client
) -> None:
    server.answers_with(keeps_by_offer)
    agent = voice_agent(http)
    set_buffer(http, agent, 6, 5)
    ada = {"x-ricordo-user": "ada"}

    def set_paused(paused: bool) -> None:
        ok(http.patch(f"/v1/agents/{agent['id']}/sleeptime", json={"paused": paused}, headers=ada))

    def talk(word: str, count: int) -> None:
        for number in range(count):
            wait_for_runs(http, say(http, agent, f"{word} {number}.", "ada"))

    talk("Open", 2)
    set_paused(True)
    talk("SECRET", 2)
    for paused in (False, True, False):
        set_paused(paused)
    talk("Again", 6)
    told = "\n".join(older for older, _ in numbered_texts(server))
    assert "SECRET" not in told
    assert "Again 0." in told


def test_a_background_turn_evicts_no_unread_messages(
    server: ServerInThread, http: httpx2.Client
) -> None:
    server.answers_with(keeps_by_offer)
    agent = voice_agent(http)
    set_buffer(http, agent, 6, 5)
    say(http, agent, "First.")
    say(http, agent, "Second.")
    message = NewMessage("user", (TextPart("Time to rest."),))
    request = TurnRequest(
        Scope(), agent["id"], (message,), delivery=TurnDelivery(is_background=True, purpose="task")
    )
    server.run(run_background_turn(server, request))
    assert len(window_of(http, agent)) == 7
    for number in range(3):
        wait_for_runs(http, say(http, agent, f"Later {number}."))
    told = "\n".join(older for older, _ in numbered_texts(server))
    assert [told.count(words) for words in ("First.", "Second.", "Time to rest.")] == [1, 1, 1]


async def run_background_turn(server: ServerInThread, request: TurnRequest) -> None:
    await collect(await run_turn(server.runtime, request))


def test_a_voice_agent_can_be_exported_and_imported(
    server: ServerInThread, http: httpx2.Client
) -> None:
    agent = voice_agent(http)
    content = http.get(f"/v1/agents/{agent['id']}/export").content
    imported = ok(http.post("/v1/agents/import", files={"file": ("vera.af", content)}))["agent_ids"]
    types = {ok(http.get(f"/v1/agents/{id}"))["agent_type"] for id in imported}
    assert "voice_convo_agent" in types


def test_the_librarian_keeps_the_memory_of_a_voice_agent_without_a_key(http: httpx2.Client) -> None:
    agent = voice_agent(
        http, model="ricordo/librarian", memory_blocks=[{"label": "human", "value": ""}]
    )
    set_buffer(http, agent, 6, 5)
    for words in (
        "I play the cello.",
        "I live in Turin.",
        "What is the weather like?",
        "My dog is called Rex.",
    ):
        wait_for_runs(http, say(http, agent, words))
    human = ok(http.get(f"/v1/agents/{agent['id']}/core-memory/blocks/human"))["value"]
    assert [
        human.count(words)
        for words in ("I play the cello.", "I live in Turin.", "My dog is called Rex.")
    ] == [1] * 3
    passages = [one["text"] for one in ok(http.get(f"/v1/agents/{agent['id']}/archival-memory"))]
    assert sum("<message>user: I play the cello.</message>" in text for text in passages) == 1
    assert not any("weather" in text for text in passages)


def test_the_sleeptime_page_lists_voice_agents(http: httpx2.Client) -> None:
    agent = voice_agent(http, name="Page Vera")
    # Other tests made pairs on this server too, so this pair may be on a later page.
    path, text = "/ui/sleeptime", http.get("/ui/sleeptime").text
    while "Page Vera" not in text:
        (path,) = set(re.findall(r'href="(/ui/sleeptime\?[^"]+)"', text)) - {path}
        text = http.get(path.replace("&amp;", "&")).text
    pair = ok(http.get(f"/v1/agents/{agent['id']}/sleeptime"))
    assert (pair["manager_type"], pair["paused"]) == ("voice_sleeptime", False)
    assert "leave the view" in http.get(f"/ui/sleeptime/{agent['id']}").text
