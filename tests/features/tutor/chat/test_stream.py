"""A student's chat.

It is streamed, stored as a conversation of this student, and resumed after a broken connection.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx2
import orjson
import pytest

from ricordo.errors import ModelError
from ricordo.llm.scripted import call
from tests.seams.http import OPERATOR, bearer, ok, refused
from tests.seams.server import MODEL, Gate, ServerInThread, serving
from tests.seams.stores import count_statements

COURSE = f"""
[[agent]]
name = "coach"
model = "{MODEL}"
instructions = "Coach them."
workspace = "isolated"
[[block]]
label = "student"
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    with serving(tmp_path_factory.mktemp("tutor"), api_key=OPERATOR) as server:
        yield server


@pytest.fixture
def server(running: ServerInThread) -> ServerInThread:
    running.forget()
    return running


@pytest.fixture(scope="module")
def http(running: ServerInThread) -> Iterator[httpx2.Client]:
    with running.http(headers=bearer(running.key(role="service"))) as opened:
        yield opened


@pytest.fixture(scope="module", autouse=True)
def course(running: ServerInThread) -> str:
    with running.http(headers=bearer(OPERATOR)) as boss:
        made = ok(boss.put("/v1/courses/essay", json={"source": COURSE}))
    return str(made["agents"]["coach"])


def chat_messages(*texts: str) -> list[dict[str, str]]:
    """Return a chat in which user and assistant alternate."""
    return [
        {"role": ("user", "assistant")[place % 2], "content": text}
        for place, text in enumerate(texts)
    ]


def chat(
    http: httpx2.Client, user: str | None, chat_id: str | None, *texts: str, **more: Any
) -> list[dict[str, Any]]:
    body = {"user_id": user, "chat_id": chat_id, "messages": chat_messages(*texts), **more}
    answer = http.post("/chat/stream", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    return [
        orjson.loads(line.removeprefix("data: "))
        for line in answer.text.split("\n\n")
        if line.startswith("data: ")
    ]


def message_text(events: list[dict[str, Any]]) -> str:
    return "".join(event["content"] for event in events if event["type"] == "message")


def test_a_chat_is_streamed_with_its_proposals(server: ServerInThread, http: httpx2.Client) -> None:
    server.says(
        call("memory_insert", label="student", new_string="Plays the cello."), "A cello, I see."
    )
    events = chat(http, "ada", "c1", "I play the cello.")
    assert [event["type"] for event in events if event["type"] != "message"] == [
        "status",
        "tool_call",
        "tool_call",
        "status",
        "done",
    ]
    calls = [event for event in events if event["type"] == "tool_call"]
    assert [(event["name"], event["status"]) for event in calls] == [
        ("memory_insert", "running"),
        ("memory_insert", "completed"),
    ]
    assert message_text(events) == "A cello, I see."
    assert (events[-2]["content"], "/ui/people/" in events[-2]["url"]) == (
        "Proposed to remember: Plays the cello.",
        True,
    )
    assert (events[-2]["added"], events[-2]["removed"], events[-2]["may_decide"]) == (
        "Plays the cello.",
        "",
        False,
    )
    assert [one["label"] for one in ok(http.get("/users/ada/diffs"))] == ["student"]
    (conversation,) = ok(http.get("/v1/conversations/", headers={"x-ricordo-user": "ada"}))
    assert (conversation["summary"], conversation["id"]) == (
        "chat_c1",
        events[-1]["conversation_id"],
    )
    assert http.get("/health", headers={"authorization": ""}).json()["status"] == "ok"


def test_a_chat_continues_and_forks_at_an_edited_message(
    server: ServerInThread, http: httpx2.Client
) -> None:
    server.says("One.", "Two.", "Another two.", "Three.")
    first = chat(http, "bea", "c2", "a")
    second = chat(http, "bea", "c2", "a", "One.", "b")
    assert second[-1]["conversation_id"] == first[-1]["conversation_id"]
    edited = chat(http, "bea", "c2", "a", "One.", "b, I mean c")
    assert edited[-1]["conversation_id"] != first[-1]["conversation_id"]
    shown = [message.text for message in server.model.requests[-1].messages[1:]]
    assert shown == ["a", "One.", "b, I mean c"]
    chat(http, "bea", "c2", "a", "One.", "b", "Two.", "d")
    assert [message.text for message in server.model.requests[-1].messages[1:]] == [
        "a",
        "One.",
        "b",
        "Two.",
        "d",
    ]


def test_after_a_deleted_message_later_answers_stay_and_appear_once(
    server: ServerInThread, http: httpx2.Client
) -> None:
    server.says("One.", "Two.", "Three.", "Four.", "Five.")
    for texts in (("a",), ("a", "One.", "b"), ("a", "One.", "b", "Two.", "c")):
        chat(http, "hal", "c3", *texts)
    deleted = ("a", "One.", "c", "Three.", "d")
    chat(http, "hal", "c3", *deleted)
    assert [message.text for message in server.model.requests[-1].messages[1:]] == list(deleted)
    chat(http, "hal", "c3", *deleted, "Four.", "e")
    assert [message.text for message in server.model.requests[-1].messages[1:]] == [
        *deleted,
        "Four.",
        "e",
    ]


def test_chats_of_different_students_are_separate(
    server: ServerInThread, http: httpx2.Client
) -> None:
    server.says("One.", "Two.", "Three.")
    made = {
        chat(http, user, id, "Hello")[-1]["conversation_id"]
        for user, id in (("cy", "x"), ("di", "x"), ("cy", "y"))
    }
    assert len(made) == 3
    assert all(len(request.messages) == 2 for request in server.model.requests)
    ada = bearer(server.key("eve"))
    refused(
        http.post(
            "/chat/stream",
            json={"user_id": "cy", "chat_id": "x", "messages": chat_messages("a")},
            headers=ada,
        ),
        403,
    )
    own = http.post(
        "/chat/stream", json={"chat_id": "x", "messages": chat_messages("a")}, headers=ada
    )
    assert own.status_code == 200
    assert "user_id" in refused(
        http.post("/chat/stream", json={"messages": chat_messages("a")}), 400
    )


def test_a_reader_can_resume_an_interrupted_answer(
    server: ServerInThread, http: httpx2.Client
) -> None:
    gate = Gate(server, "At last.")
    server.answers_with(gate)
    body = {"user_id": "flo", "chat_id": "c3", "messages": chat_messages("Slowly.")}
    with (
        suppress(httpx2.ReadTimeout),
        http.stream("POST", "/chat/stream", json=body, timeout=0.5) as answer,
    ):
        for _ in answer.iter_lines():
            pass
    gate.wait()
    gate.open()
    events = chat(http, "flo", "c3", "Slowly.", resume=True)
    assert message_text(events) == "At last."
    assert len(server.model.requests) == 1
    again = chat(http, "flo", "c3", "Slowly.")  # The same without `resume` asks for another answer.
    assert len(server.model.requests) == 2
    assert again[-1]["run_id"] != events[-1]["run_id"]


def test_a_reader_can_resume_a_later_answer(server: ServerInThread, http: httpx2.Client) -> None:
    server.says("One.")
    first = chat(http, "hal", "c5", "a")
    gate = Gate(server, "Two.")
    server.answers_with(gate)
    body = {"user_id": "hal", "chat_id": "c5", "messages": chat_messages("a", "One.", "b")}
    with (
        suppress(httpx2.ReadTimeout),
        http.stream("POST", "/chat/stream", json=body, timeout=0.5) as answer,
    ):
        for _ in answer.iter_lines():
            pass
    gate.wait()
    gate.open()
    again = chat(http, "hal", "c5", "a", "One.", "b", resume=True)
    assert message_text(again) == "Two."
    assert len(server.model.requests) == 2
    server.says("Three.")
    last = chat(http, "hal", "c5", "a", "One.", "b", "Two.", "c")
    assert {events[-1]["conversation_id"] for events in (first, again, last)} == {
        first[-1]["conversation_id"]
    }


def test_a_chat_continues_in_its_conversation_after_a_failed_answer(
    server: ServerInThread, http: httpx2.Client
) -> None:
    server.says("One.", ModelError("llm_rate_limit", "Slow down."), "Three.")
    first = chat(http, "ina", "c6", "a")
    failed = chat(http, "ina", "c6", "a", "One.", "b")
    assert [event["type"] for event in failed] == ["status", "error", "done"]
    last = chat(http, "ina", "c6", "a", "One.", "b", "", "c")
    assert last[-1]["conversation_id"] == first[-1]["conversation_id"]
    assert [message.text for message in server.model.requests[-1].messages[1:]] == [
        "a",
        "One.",
        "b",
        "c",
    ]


def test_a_students_turn_runs_at_most_four_more_statements(
    server: ServerInThread, http: httpx2.Client
) -> None:
    texts, turns = ["a"], []
    # Meanwhile the server writes the index, and reads keys and courses again. So the test takes the
    # smallest of four counts.
    for _ in range(4):
        with count_statements(server.runtime.store) as counted:  # type: ignore[arg-type]
            assert message_text(chat(http, "jo", "c7", *texts)) == "ok"
        turns.append((len(counted.statements), counted.transactions, counted.statements))
        texts += ["ok", "b"]
    statements, transactions, which = min(turns)
    assert statements <= 12 + 4, which
    assert transactions <= 2 + 2  # find the student and the conversation


def test_model_errors_are_events_and_invalid_requests_are_refused(
    server: ServerInThread, http: httpx2.Client
) -> None:
    server.says(ModelError("llm_rate_limit", "Slow down."))
    events = chat(http, "gus", "c4", "Hello")
    assert [event["type"] for event in events] == ["status", "error", "done"]
    assert "Slow down." in events[1]["message"]
    unknown = {"user_id": "gus", "model": "nobody", "messages": chat_messages("a")}
    assert 'no course and no agent "nobody"' in refused(
        http.post("/chat/stream", json=unknown), 404
    )
    assert "last message" in refused(
        http.post("/chat/stream", json={"user_id": "gus", "messages": chat_messages("a", "b")}), 400
    )
    assert message_text(chat(http, "gus", None, "Hello", model="essay/coach")) == "ok"


def prompt_texts(server: ServerInThread) -> list[str]:
    return [message.text for message in server.model.requests[-1].messages[1:]]


def client_texts(server: ServerInThread) -> list[str]:
    """Return the answers in the last request that the client wrote or changed."""
    return [
        message.text
        for message in server.model.requests[-1].messages
        if message.role == "assistant" and message.sender_id
    ]


@pytest.mark.parametrize(
    ("name", "texts", "theirs"),
    [
        ("first question", ("A?", "One.", "b", "Two.", "c"), []),
        ("second question", ("a", "One.", "B?", "Two.", "c"), []),
        ("first answer", ("a", "One, edited.", "b", "Two.", "c"), ["One, edited."]),
        ("last answer", ("a", "One.", "b", "Two, and more.", "c"), ["Two, and more."]),
        ("shortened", ("a", "One.", "b", "Tw", "c"), ["Tw"]),
        ("both answers", ("a", "1", "b", "2", "c"), ["1", "2"]),
        ("question and answer", ("a", "One.", "B?", "2", "c"), ["2"]),
        ("first pair deleted", ("b", "Two.", "c"), []),
        ("last pair deleted", ("a", "One.", "c"), []),
        ("other form", ("a", "<details>Hm.</details>One.", "b", "**Two**.", "c"), []),
    ],
)
def test_the_model_sees_a_chat_edited_in_place_as_the_client_shows_it(
    server: ServerInThread,
    http: httpx2.Client,
    name: str,
    texts: tuple[str, ...],
    theirs: list[str],
) -> None:
    server.says("One.", "Two.", "Three.", "Four.")
    for before in (("a",), ("a", "One.", "b")):
        chat(http, "kim", name, *before)
    chat(http, "kim", name, *texts)
    plain = ["a", "One.", "b", "Two.", "c"] if name == "other form" else list(texts)
    assert (prompt_texts(server), client_texts(server)) == (plain, theirs)
    # The next message continues this conversation without duplicates.
    after = chat(http, "kim", name, *texts, "Three.", "d")
    assert (prompt_texts(server), client_texts(server)) == ([*plain, "Three.", "d"], theirs)
    last = chat(http, "kim", name, *texts, "Three.", "d", "Four.", "e")
    assert last[-1]["conversation_id"] == after[-1]["conversation_id"]


def test_a_deleted_answer_is_not_shown_to_the_model(
    server: ServerInThread, http: httpx2.Client
) -> None:
    server.says("One.", "Two.", "Three.")
    chat(http, "kim", "deleted answer", "a")
    chat(http, "kim", "deleted answer", "a", "One.", "b")
    chat(http, "kim", "deleted answer", "a", "One.", "b", "", "c")
    assert prompt_texts(server) == ["a", "One.", "b", "c"]


def test_a_stopped_answer_keeps_the_shown_text(server: ServerInThread, http: httpx2.Client) -> None:
    server.says("One.")
    first = chat(http, "lea", "stopped", "a")
    gate = Gate(server, "Two whole sentences. And more.")
    server.answers_with(gate)
    body = {"user_id": "lea", "chat_id": "stopped", "messages": chat_messages("a", "One.", "b")}
    with (
        suppress(httpx2.ReadTimeout),
        http.stream("POST", "/chat/stream", json=body, timeout=0.3) as answer,
    ):
        for _ in answer.iter_lines():
            pass
    gate.wait()
    conversation_id = first[-1]["conversation_id"]
    as_lea = {"x-ricordo-user": "lea"}
    ok(http.post(f"/v1/conversations/{conversation_id}/cancel", headers=as_lea))
    server.answers_with(lambda _: "Three.")
    texts = ("a", "One.", "b", "Two whole", "c")
    stopped = chat(http, "lea", "stopped", *texts)
    assert stopped[-1]["conversation_id"] == conversation_id
    assert (prompt_texts(server), client_texts(server)) == (list(texts), ["Two whole"])
    chat(http, "lea", "stopped", *texts, "Three.", "d")
    assert prompt_texts(server) == [*texts, "Three.", "d"]
    # The answer after the stopped one is regenerated.
    chat(http, "lea", "stopped", *texts)
    assert prompt_texts(server) == list(texts)
