"""Chat completions with OpenAI's client.

The tests cover answers, streams, tools, and the conversation that a chat continues.
"""

import asyncio
import json
import random
from functools import partial
from typing import Any

import httpx2
import openai
import orjson
import pytest
from openai import APIStatusError, OpenAI

from ricordo.domain.message import ImagePart, ReasoningPart, TextPart
from ricordo.domain.model import ModelReply
from ricordo.domain.scope import LOCAL_ORGANIZATION
from ricordo.domain.usage import Usage
from ricordo.errors import ModelError
from ricordo.llm.scripted import call
from ricordo.storage import runs
from tests.features.openai.conftest import asked_texts, assistant, openai_client, user
from tests.seams.http import ok
from tests.seams.server import LIMIT, Gate, ServerInThread

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def chat_headers(name: str) -> dict[str, str]:
    return {"X-OpenWebUI-Chat-Id": name}


def conversations(http: httpx2.Client, agent: str) -> list[str]:
    """Return the ids of the agent's conversations without its default one, oldest first."""
    (found,) = ok(http.get("/v1/agents/", params={"name": agent}))
    listed = ok(
        http.get(
            "/v1/conversations/",
            params={"agent_id": found["id"], "order": "asc", "order_by": "created_at"},
        )
    )
    return [
        one["id"] for one in listed if not one["id"].endswith(found["id"].removeprefix("agent"))
    ]


def test_an_agent_can_be_the_model_by_name_or_id(
    server: ServerInThread, client: OpenAI, http: httpx2.Client, agent: str
) -> None:
    (found,) = ok(http.get("/v1/agents/", params={"name": agent}))
    for model in (agent, found["id"]):
        server.says([ReasoningPart("She greets."), TextPart("Hello Ada.")])

        made = client.chat.completions.create(model=model, messages=[user("Hello.")])

        assert (made.object, made.model) == ("chat.completion", model)
        (choice,) = made.choices
        assert (choice.message.role, choice.message.content, choice.finish_reason) == (
            "assistant",
            "Hello Ada.",
            "stop",
        )
        assert choice.message.reasoning_content == "She greets."  # type: ignore[attr-defined]
        assert made.usage
        assert (
            made.usage.total_tokens == made.usage.prompt_tokens + made.usage.completion_tokens > 0
        )
        assert abs(made.created - server.runtime.store.clock.now() / 1_000_000) < 60


def test_a_chat_stream_contains_the_reply_in_pieces(
    server: ServerInThread, client: OpenAI, agent: str
) -> None:
    server.says([ReasoningPart("She asks for tea."), TextPart("Jasmine tea, as ever.")])

    chunks = list(
        client.chat.completions.create(
            model=agent,
            messages=[user("Tea?")],
            stream=True,
            stream_options={"include_usage": True},
        )
    )

    *pieces, last, usage = chunks
    assert (
        "".join(piece.choices[0].delta.content or "" for piece in pieces) == "Jasmine tea, as ever."
    )
    thoughts = [
        getattr(piece.choices[0].delta, "reasoning_content", None) or "" for piece in pieces
    ]
    assert "".join(thoughts) == "She asks for tea."
    assert len(pieces) > 5
    assert {piece.choices[0].finish_reason for piece in pieces} == {None}
    assert last.choices[0].finish_reason == "stop"
    assert (usage.choices, bool(usage.usage and usage.usage.total_tokens)) == ([], True)
    assert len({chunk.id for chunk in chunks}) == 1


def test_only_new_messages_are_added_to_a_continued_conversation(
    server: ServerInThread, client: OpenAI, http: httpx2.Client, agent: str
) -> None:
    server.says("Hello Ada.", "Jasmine.", "Yes.")
    chat = [
        user("I am Ada."),
        assistant("Hello Ada."),
        user("My tea?"),
        assistant("Jasmine."),
        user("Sure?"),
    ]
    for end in (1, 3, 5):
        client.chat.completions.create(model=agent, messages=chat[:end])

    assert asked_texts(server) == ["I am Ada.", "Hello Ada.", "My tea?", "Jasmine.", "Sure?"]
    assert len(conversations(http, agent)) == 1


def test_two_chats_with_the_same_beginning_are_two_conversations(
    server: ServerInThread, client: OpenAI, http: httpx2.Client, agent: str
) -> None:
    server.says("One.", "Two.", "Three.", "Four.")
    for _ in range(2):
        client.chat.completions.create(model=agent, messages=[user("Hello.")])
    for answer in ("One.", "Two."):
        client.chat.completions.create(
            model=agent, messages=[user("Hello."), assistant(answer), user("Go on.")]
        )
        assert asked_texts(server) == ["Hello.", answer, "Go on."]
    assert len(conversations(http, agent)) == 2


def test_edited_and_regenerated_messages_fork_the_conversation(
    server: ServerInThread, http: httpx2.Client, agent: str
) -> None:
    server.says("A1.", "A2.", "A2 again.", "A2 of the edit.", "A3.")
    with openai_client(server, **chat_headers("chat-1")) as client:
        begin = [user("U1."), assistant("A1.")]
        for chat in (
            [user("U1.")],
            [*begin, user("U2.")],
            [*begin, user("U2.")],
            [*begin, user("U2, edited.")],
        ):
            client.chat.completions.create(model=agent, messages=chat)
        assert [asked_texts(server, place) for place in (1, 2, 3)] == [
            ["U1.", "A1.", "U2."],
            ["U1.", "A1.", "U2."],
            ["U1.", "A1.", "U2, edited."],
        ]
        # Back to the first branch, which is recognized by its answers.
        client.chat.completions.create(
            model=agent, messages=[*begin, user("U2."), assistant("A2."), user("U3.")]
        )
    assert asked_texts(server) == ["U1.", "A1.", "U2.", "A2.", "U3."]
    assert len(conversations(http, agent)) == 3


def test_a_named_chat_continues_although_its_client_reformats_answers(
    server: ServerInThread, http: httpx2.Client, agent: str
) -> None:
    server.says("Hello Ada.", "Jasmine.")
    with openai_client(server, **chat_headers("chat-2")) as client:
        client.chat.completions.create(model=agent, messages=[user("I am Ada.")])
        shown = assistant("<details>Thought for a second</details> Hello Ada.")
        client.chat.completions.create(
            model=agent, messages=[user("I am Ada."), shown, user("My tea?")]
        )
    assert asked_texts(server) == ["I am Ada.", "Hello Ada.", "My tea?"]
    assert len(conversations(http, agent)) == 1


def test_earlier_messages_of_a_new_chat_are_stored_for_recall(
    server: ServerInThread, client: OpenAI, http: httpx2.Client, agent: str
) -> None:
    server.says("It was jasmine.")
    chat = [user("My tea is jasmine."), assistant("Noted."), user("Which tea?")]

    client.chat.completions.create(
        model=agent, messages=[{"role": "system", "content": "Be brief."}, *chat]
    )

    assert asked_texts(server) == ["Be brief.", "Which tea?"]
    (conversation,) = conversations(http, agent)
    found = ok(
        http.post("/v1/messages/search", json={"query": "jasmine", "conversation_id": conversation})
    )
    assert "My tea is jasmine." in str(found)


def test_the_next_request_returns_the_result_of_a_client_tool(
    server: ServerInThread, client: OpenAI, agent: str
) -> None:
    server.says(
        [TextPart("Let me look."), call("weather", city="Turin")],
        "It rains in Turin.",
        "You are welcome.",
    )
    chat = [user("How is the weather?")]
    asked = client.chat.completions.create(model=agent, messages=chat, tools=[WEATHER])
    (choice,) = asked.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Let me look.")
    assert choice.message.tool_calls
    (made,) = choice.message.tool_calls
    assert made.type == "function"
    assert (made.function.name, made.function.arguments) == ("weather", '{"city":"Turin"}')

    chat += [
        choice.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": made.id, "content": "Rain."},
    ]
    answer = client.chat.completions.create(model=agent, messages=chat, tools=[WEATHER])

    assert answer.choices[0].message.content == "It rains in Turin."
    returned = [
        one for message in server.model.requests[-1].messages for one in message.tool_returns
    ]
    assert [orjson.loads(one.content)["message"] for one in returned] == ["Rain."]
    chat += [assistant("It rains in Turin."), user("Thanks.")]
    client.chat.completions.create(model=agent, messages=chat)
    assert asked_texts(server)[-2:] == ["It rains in Turin.", "Thanks."]


def test_a_streamed_call_has_an_index_and_needs_no_result_to_continue(
    server: ServerInThread, client: OpenAI, http: httpx2.Client, agent: str
) -> None:
    server.says(call("weather", city="Turin"), "Never mind.")
    stream: Any = client.chat.completions.create(
        model=agent, messages=[user("Weather?")], tools=[WEATHER], stream=True
    )
    chunks = list(stream)
    calls = [one for chunk in chunks for one in chunk.choices[0].delta.tool_calls or ()]
    assert [(one.index, one.function and one.function.name) for one in calls] == [(0, "weather")]
    assert chunks[-1].choices[0].finish_reason == "tool_calls"

    spoken = {"role": "assistant", "tool_calls": [calls[0].model_dump(exclude={"index"})]}
    chat = [user("Weather?"), spoken, user("Forget it.")]
    answer = client.chat.completions.create(model=agent, messages=chat, tools=[WEATHER])

    assert answer.choices[0].message.content == "Never mind."
    assert len(conversations(http, agent)) == 1


def test_calls_of_the_agents_own_tools_are_hidden(
    server: ServerInThread, client: OpenAI, http: httpx2.Client, agent: str
) -> None:
    (found,) = ok(http.get("/v1/agents/", params={"name": agent}))
    (tool,) = ok(http.get("/v1/tools/", params={"name": "memory_insert"}))
    ok(http.patch(f"/v1/agents/{found['id']}/tools/attach/{tool['id']}"))
    server.says(
        [TextPart("Wait."), call("memory_insert", label="persona", new_string="I like tea.")],
        "Done.",
    )

    chunks = list(
        client.chat.completions.create(model=agent, messages=[user("Note it.")], stream=True)
    )

    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Wait.\n\nDone."
    assert not [chunk for chunk in chunks if chunk.choices[0].delta.tool_calls]


def test_a_call_that_needs_approval_says_where_to_decide(
    server: ServerInThread, client: OpenAI, http: httpx2.Client, agent: str
) -> None:
    (found,) = ok(http.get("/v1/agents/", params={"name": agent}))
    (tool,) = ok(http.get("/v1/tools/", params={"name": "memory_insert"}))
    ok(http.patch(f"/v1/agents/{found['id']}/tools/attach/{tool['id']}"))
    place = f"/v1/agents/{found['id']}/tools/approval/memory_insert"
    ok(http.patch(place, json={"requires_approval": True}))
    server.says(
        call("memory_insert", label="persona", new_string="I like tea."),
        "I noted it.",
        "You said so.",
    )

    asked = client.chat.completions.create(model=agent, messages=[user("Note it.")]).choices[0]

    (conversation,) = conversations(http, agent)
    assert asked.finish_reason == "stop"
    assert asked.message.content
    assert (
        f"approval: memory_insert. Approve or reject it at {server.url}/ui/agents/"
        in asked.message.content
    )
    assert conversation in asked.message.content
    decision = {"type": "approval", "approve": True}
    waiting = ok(http.get(f"/v1/conversations/{conversation}/messages", params={"limit": 1}))
    decision |= {"approval_request_id": waiting[-1]["id"]}
    ok(
        http.post(
            f"/v1/conversations/{conversation}/messages",
            json={"messages": [decision], "streaming": False},
        )
    )
    chat = [user("Note it."), assistant(asked.message.content), user("Did I?")]
    client.chat.completions.create(model=agent, messages=chat)
    assert asked_texts(server)[-2:] == ["I noted it.", "Did I?"]


def test_images_are_passed_to_the_model(server: ServerInThread, client: OpenAI, agent: str) -> None:
    urls = (f"data:image/png;base64,{PIXEL}", "https://example.com/cat.png")
    pictures = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    client.chat.completions.create(
        model=agent,
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "What is it?"}, *pictures]}
        ],  # type: ignore[list-item, misc]
    )
    parts = server.model.requests[-1].messages[-1].parts
    assert [(one.data, one.url) for one in parts if isinstance(one, ImagePart)] == [
        (PIXEL, None),
        (None, urls[1]),
    ]


@pytest.mark.parametrize(
    ("given", "status", "words"),
    [
        ({"model": "nobody"}, 404, 'There is no agent "nobody"'),
        ({"messages": []}, 400, "messages: List should have at least 1 item"),
        ({"messages": [assistant("I go on.")]}, 400, "The last message must have the role user"),
        (
            {"messages": [{"role": "tool", "tool_call_id": "call-1", "content": "x"}]},
            400,
            "belong to no call of this chat",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
            422,
            '"input_audio" are not supported',
        ),
        ({"n": 2}, 400, "n: Input should be less than or equal to 1"),
    ],
)
def test_errors_have_openais_format(
    client: OpenAI, agent: str, http: httpx2.Client, given: object, status: int, words: str
) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(**{"model": agent, "messages": [user("Hello.")], **given})  # type: ignore[call-overload, dict-item]
    assert caught.value.status_code == status
    assert isinstance(caught.value.body, dict)
    assert words in caught.value.body["message"]
    assert caught.value.body.keys() == {"message", "type", "param", "code"}
    if status == 404:
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    assert conversations(http, agent) == []


def test_a_provider_error_is_reported_and_the_chat_continues(
    server: ServerInThread, client: OpenAI, agent: str
) -> None:
    server.says(
        ModelError("llm_rate_limit", "Slow down."),
        ModelError("llm_rate_limit", "Slow down."),
        "Hello.",
    )
    with pytest.raises(openai.RateLimitError, match="Slow down"):
        client.chat.completions.create(model=agent, messages=[user("Hello.")])
    with pytest.raises(openai.APIError, match="Slow down"):
        list(client.chat.completions.create(model=agent, messages=[user("Hello.")], stream=True))
    assert (
        client.chat.completions.create(model=agent, messages=[user("Hello.")])
        .choices[0]
        .message.content
        == "Hello."
    )


def test_a_retried_request_runs_once(
    server: ServerInThread, http: httpx2.Client, agent: str
) -> None:
    server.says("Once.", "Twice.")
    body = {"model": agent, "messages": [user("Hello.")]}
    answers = [
        ok(
            http.post(
                "/v1/chat/completions", json=body, headers={"x-stainless-retry-count": str(count)}
            )
        )
        for count in (0, 1)
    ]
    assert answers[0]["choices"] == answers[1]["choices"]
    assert len(server.model.requests) == 1


@pytest.mark.parametrize(
    ("path", "field"), [("chat/completions", "messages"), ("responses", "input")]
)
def test_a_chat_with_unstorable_history_continues(
    server: ServerInThread, http: httpx2.Client, agent: str, path: str, field: str
) -> None:
    """Clients send the whole history each time, so a refusal would repeat for ever."""
    chat = [user("Half \ud83d and \0."), assistant("Pardon?"), user("Hello.")]
    for answer in ("Hi.", "Still here."):
        server.says(answer)
        sent = json.dumps({"model": agent, field: chat, "metadata": {"size": 1 << 70}})
        answered = http.post(
            f"/v1/{path}", content=sent, headers={"content-type": "application/json"}
        )
        assert answer in str(ok(answered))
        chat += [assistant(answer), user("And now?")]


ODD_MESSAGES = [
    user("Hello."),
    {"role": "function", "name": "tea", "content": "Jasmine."},
    {"role": "assistant", "content": "Jasmine.", "tool_calls": [{"id": None, "function": None}]},
    user("And now?"),
]
ODD_ITEMS = [
    user("Hello."),
    {"type": "web_search_call", "id": "ws_1", "status": "completed"},
    {"type": "function_call", "name": "tea"},
    assistant("Jasmine."),
    user("And now?"),
]


@pytest.mark.parametrize(
    ("path", "field", "chat"),
    [("chat/completions", "messages", ODD_MESSAGES), ("responses", "input", ODD_ITEMS)],
)
def test_a_chat_with_messages_of_another_server_continues(
    server: ServerInThread, http: httpx2.Client, agent: str, path: str, field: str, chat: list[Any]
) -> None:
    """A client may have begun the chat with a model of another provider."""
    chat = list(chat)
    for answer in ("Hi.", "Still here."):
        server.says(answer)
        answered = http.post(f"/v1/{path}", json={"model": agent, field: chat})
        assert answer in str(ok(answered))
        chat += [assistant(answer), user("And now?")]
    assert len(conversations(http, agent)) == 1


def test_a_very_long_chat_is_continued(
    server: ServerInThread, http: httpx2.Client, agent: str
) -> None:
    chat = [user("Hm."), assistant("Hm?")] * 6000 + [user("Hello.")]
    server.says("Hi.", "Still here.")
    ok(http.post("/v1/chat/completions", json={"model": agent, "messages": chat}))
    chat += [assistant("Hi."), user("And now?")]
    ok(http.post("/v1/chat/completions", json={"model": agent, "messages": chat}))
    assert len(conversations(http, agent)) == 1


def close_stream_early(
    server: ServerInThread, client: OpenAI, agent: str, gate: Gate, **headers: str
) -> None:
    """Begin to read an answer that waits at the gate, and then close the stream."""
    server.answers_with(gate)
    stream = client.chat.completions.create(
        model=agent,
        messages=[user("Hello.")],
        stream=True,
        extra_headers={"X-OpenWebUI-Chat-Id": "left", **headers},
    )
    with stream:
        next(iter(stream))
        gate.wait()


def only_run(server: ServerInThread, http: httpx2.Client, agent: str) -> Any:
    (conversation,) = conversations(http, agent)
    return ok(http.get("/v1/runs/", params={"conversation_id": conversation}))[-1]


def test_a_turn_finishes_after_its_client_closed_the_stream(
    server: ServerInThread, client: OpenAI, http: httpx2.Client, agent: str
) -> None:
    gate = Gate(server)
    close_stream_early(server, client, agent, gate)
    gate.open()
    run = only_run(server, http, agent)
    if live := server.runtime.live.get(run["id"]):
        server.run(asyncio.wait_for(live.wait(), LIMIT))
    assert ok(http.get(f"/v1/runs/{run['id']}"))["status"] == "completed"
    server.answers_with(lambda _: "Still here.")
    chat = [user("Hello."), {"role": "assistant", "content": "Here"}, user("And now?")]
    headers = {"X-OpenWebUI-Chat-Id": "left"}
    answer = ok(
        http.post("/v1/chat/completions", json={"model": agent, "messages": chat}, headers=headers)
    )
    assert answer["choices"][0]["message"]["content"] == "Still here."
    # The person continues from what the client shows.
    assert asked_texts(server)[-3:] == ["Hello.", "Here", "And now?"]


def test_the_next_message_cancels_a_turn_whose_stream_was_closed(
    server: ServerInThread, client: OpenAI, http: httpx2.Client, agent: str
) -> None:
    close_stream_early(server, client, agent, Gate(server))
    run = only_run(server, http, agent)
    server.answers_with(lambda _: "On we go.")
    chat = [user("Hello."), {"role": "assistant", "content": "He"}, user("Something else.")]
    headers = {"X-OpenWebUI-Chat-Id": "left"}
    answer = ok(
        http.post("/v1/chat/completions", json={"model": agent, "messages": chat}, headers=headers)
    )
    assert answer["choices"][0]["message"]["content"] == "On we go."
    assert ok(http.get(f"/v1/runs/{run['id']}"))["status"] == "cancelled"
    assert asked_texts(server)[-3:] == ["Hello.", "He", "Something else."]


def test_closing_a_stream_can_be_configured_to_cancel_the_turn(
    server: ServerInThread,
    client: OpenAI,
    http: httpx2.Client,
    agent: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RICORDO_OPENAI_LEAVING", "stop")
    gate = Gate(server)
    server.answers_with(gate)
    with client.chat.completions.create(
        model=agent, messages=[user("Hello.")], stream=True
    ) as stream:
        next(iter(stream))
        gate.wait()
    (conversation,) = conversations(http, agent)
    (run,) = ok(http.get("/v1/runs/", params={"conversation_id": conversation}))
    if live := server.runtime.live.get(run["id"]):
        server.run(asyncio.wait_for(live.wait(), LIMIT))
    assert ok(http.get(f"/v1/runs/{run['id']}"))["status"] == "cancelled"


def test_responses_continue_or_fork_by_previous_response_id(
    server: ServerInThread, client: OpenAI, http: httpx2.Client, agent: str
) -> None:
    server.says("Hello Ada.", "Jasmine.", "Green.", "Rain.")
    first = client.responses.create(model=agent, input="I am Ada.", instructions="Be brief.")
    assert (first.status, first.output_text) == ("completed", "Hello Ada.")
    assert first.usage
    assert first.usage.total_tokens > 0
    with client.responses.stream(
        model=agent, input="My tea?", previous_response_id=first.id
    ) as stream:
        kinds = [event.type for event in stream]
        second = stream.get_final_response()
    assert (second.output_text, second.previous_response_id) == ("Jasmine.", first.id)
    assert (kinds[0], kinds[-1], kinds.count("response.output_text.delta")) == (
        "response.created",
        "response.completed",
        1,
    )
    assert asked_texts(server) == ["Be brief.", "I am Ada.", "Hello Ada.", "My tea?"]
    client.responses.create(model=agent, input=[user("And now?")], previous_response_id=first.id)
    assert asked_texts(server) == ["Be brief.", "I am Ada.", "Hello Ada.", "And now?"]
    assert len(conversations(http, agent)) == 2
    for unknown in ("other", "resp_1", second.id.replace("resp_", "resp_0")):
        with pytest.raises(openai.NotFoundError):
            client.responses.create(model=agent, input="x", previous_response_id=unknown)


def test_a_failed_response_ends_its_stream_with_the_error(
    server: ServerInThread, client: OpenAI, agent: str
) -> None:
    server.says(ModelError("llm_rate_limit", "Slow down."))
    events = list(client.responses.create(model=agent, input="Hello.", stream=True))
    assert events[-1].type == "response.failed"
    assert events[-1].response.error
    assert events[-1].response.error.message == "Slow down."


def test_a_body_that_is_no_json_is_refused_without_a_parameter(http: httpx2.Client) -> None:
    json_type = {"content-type": "application/json"}
    for path in ("/v1/chat/completions", "/v1/responses", "/v1/embeddings"):
        for content, headers, message in (
            (b'{"model": }', json_type, "JSON decode error: Expecting value"),
            (
                b'{"model": "x"}',
                {},
                "Only JSON is read here. Send the header Content-Type: application/json",
            ),
        ):
            answer = http.post(path, content=content, headers=headers)

            error = answer.json()["error"]
            assert (answer.status_code, error["message"]) == (400, message)
            assert error["param"] is None


def test_errors_before_routing_have_openais_format(server: ServerInThread, agent: str) -> None:
    words = [user("Hello")]
    with openai_client(server, key="wrong") as stranger:
        with pytest.raises(openai.AuthenticationError) as told:
            stranger.chat.completions.create(model=agent, messages=words)
        assert told.value.type == "authentication_error"
        assert "unknown, expired or revoked" in told.value.body["message"]  # type: ignore[index]
        with pytest.raises(openai.AuthenticationError):
            stranger.embeddings.create(model="embedded", input="x")
    with openai_client(server) as client, pytest.raises(openai.APIStatusError) as long:
        client.chat.completions.create(model=agent, messages=[user("x" * 40_000_000)])
    assert long.value.status_code == 413
    assert "RICORDO_MAX_BODY_MB" in long.value.body["message"]  # type: ignore[index]


UNREADABLE: list[Any] = [
    {"type": "file", "file": {"file_id": "file-1"}},
    {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
    {"type": "image_url", "image_url": {"url": "data:image/heic;base64,AAAA"}},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,%"}},
    {"type": "image_url"},
]


@pytest.mark.parametrize("route", ["chat", "temporary", "title", "responses"])
def test_an_unreadable_part_is_refused_only_in_new_messages(
    route: str, server: ServerInThread, http: httpx2.Client, agent: str
) -> None:
    """Generated chats: each message may have such a part, and only new ones may not."""
    chance = random.Random(route)  # noqa: S311
    name = {"temporary": {**chat_headers("temporary:parts")}, "title": {"X-Ricordo-Task": "title"}}
    path = "/v1/responses" if route == "responses" else "/v1/chat/completions"
    for number in range(12):
        chat: list[Any] = []
        for turn in range(chance.randrange(1, 4)):
            pieces = [{"type": "text", "text": f"Question {turn} of {number}"}]
            chat.append({"role": "user", "content": [*pieces, *chance.sample(UNREADABLE, 2)]})
            chat.append(assistant(f"I cannot read part {turn}."))
        chat += [user("Hello.")] * chance.randrange(1, 3)
        messages = "input" if path == "/v1/responses" else "messages"

        answer = http.post(path, json={"model": agent, messages: chat}, headers=name.get(route, {}))

        assert answer.status_code == 200, answer.text
        said = server.model.requests[-1].messages
        texts = [message.text for message in said if message.role == "user"]
        assert texts[-1] == "Hello."
        if route in ("temporary", "title"):
            earlier = texts[: len(chat) // 2]
            assert all(
                text.count("cannot be read here") == 2 for text in earlier if text != "Hello."
            )
        chat[-1] = {"role": "user", "content": [chance.choice(UNREADABLE)]}
        answer = http.post(path, json={"model": agent, messages: chat}, headers=name.get(route, {}))
        assert answer.status_code in (400, 422), answer.text


def test_an_edited_message_with_an_unreadable_part_is_stored_with_a_note(
    server: ServerInThread, http: httpx2.Client, agent: str
) -> None:
    server.says("Jasmine.", "Yes.")
    body: dict[str, Any] = {"model": agent, "messages": [user("Which tea?")]}
    ok(http.post("/v1/chat/completions", json=body, headers=chat_headers("edited")))
    edited = [{"type": "text", "text": "Which tea, then?"}, UNREADABLE[0]]

    chat = [{"role": "user", "content": edited}, assistant("Jasmine."), user("Sure?")]
    ok(
        http.post(
            "/v1/chat/completions",
            json={**body, "messages": chat},
            headers=chat_headers("edited"),
        )
    )

    note = '(A part of the type "file", which cannot be read here.)'
    assert asked_texts(server) == [f"Which tea, then?\n{note}", "Jasmine.", "Sure?"]


@pytest.mark.parametrize("temporary", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ((TextPart("One, two, th"),), "One, two, th"),
        ((ReasoningPart("Let me count."),), "limit of tokens before it gave an answer"),
        ((), "limit of tokens before it gave an answer"),
    ],
)
def test_an_answer_at_the_limit_of_tokens_has_its_text_or_a_reason(
    server: ServerInThread,
    client: OpenAI,
    agent: str,
    parts: tuple[TextPart | ReasoningPart, ...],
    text: str,
    *,
    stream: bool,
    temporary: bool,
) -> None:
    server.says(ModelReply(parts, finish="length"), "Four.")
    headers = chat_headers("local:1" if temporary else "kept")
    chat = [user("Count.")]
    if stream:
        chunks = list(
            client.chat.completions.create(
                model=agent, messages=chat, stream=True, extra_headers=headers
            )
        )
        shown = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        finish: str | None = chunks[-1].choices[0].finish_reason
    else:
        answer = client.chat.completions.create(model=agent, messages=chat, extra_headers=headers)
        (choice,) = answer.choices
        shown, finish = choice.message.content or "", choice.finish_reason
    assert text in shown
    assert finish == "length"
    # The chat continues in its conversation, and the agent does not read the reason as its words.
    chat += [assistant(shown), user("Go on.")]
    client.chat.completions.create(model=agent, messages=chat, extra_headers=headers)
    if not temporary:
        expected = [text] if text == shown else []
        assert [said for said in asked_texts(server) if said] == ["Count.", *expected, "Go on."]


def test_the_tokens_of_an_answer_that_a_temporary_chat_cannot_use_are_in_the_ledger(
    server: ServerInThread, client: OpenAI, agent: str
) -> None:
    failure = ModelError("llm_empty_response", "The model gave an empty answer.")
    failure.discarded = Usage(100, 200)
    server.says(failure)
    used = partial(runs.used_since, organization_id=LOCAL_ORGANIZATION, since=0)
    before = server.read(used)
    with pytest.raises(APIStatusError, match="empty answer"):
        client.chat.completions.create(
            model=agent, messages=[user("Hi.")], extra_headers=chat_headers("local:1")
        )
    assert server.read(used) - before == 300


def test_json_at_the_limit_of_tokens_has_no_reason_in_its_place(
    server: ServerInThread, client: OpenAI, agent: str
) -> None:
    server.says(ModelReply((ReasoningPart("Let me see."),), finish="length"))
    form: Any = {"type": "json_object"}
    answer = client.chat.completions.create(
        model=agent, messages=[user("As JSON.")], response_format=form
    )
    (choice,) = answer.choices
    assert (choice.message.content, choice.finish_reason) == ("", "length")
