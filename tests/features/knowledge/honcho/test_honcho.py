"""Honcho with this server.

Messages arrive there in order and once, and it answers questions only about its user.
"""

import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from ricordo.agents.conversations import fork_conversation
from ricordo.domain.agent import VERSION_OF
from ricordo.domain.scope import Scope
from ricordo.features.knowledge.honcho import jobs, queries
from ricordo.features.knowledge.honcho.forgetting import forget_thing, next_name
from ricordo.features.knowledge.honcho.options import HonchoSettings
from ricordo.features.memory_care.forgetting.needle import Needle
from ricordo.llm.scripted import call
from ricordo.settings import load_settings
from ricordo.storage import conversations, users
from ricordo.storage.engine.store import Transaction
from tests.seams.http import OPERATOR, bearer, ok, refused
from tests.seams.server import LIMIT, MODEL, ServerInThread, serving
from tests.support.honcho import FakeHoncho
from tests.support.json_server import KEY


@pytest.fixture
def honcho(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHoncho]:
    fake = FakeHoncho()
    monkeypatch.setenv("RICORDO_HONCHO_URL", fake.url)
    monkeypatch.setenv("RICORDO_HONCHO_API_KEY", KEY)
    yield fake
    fake.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerInThread]:
    with serving(tmp_path, api_key=OPERATOR) as running:
        yield running


@pytest.fixture
def http(server: ServerInThread) -> Iterator[httpx2.Client]:
    with server.http(headers=bearer(OPERATOR)) as opened:
        yield opened


@pytest.fixture
def agent(http: httpx2.Client) -> str:
    return str(
        ok(
            http.post(
                "/v1/agents/", json={"model": MODEL, "name": "Coach", "tools": ["query_student"]}
            )
        )["id"]
    )


def chat(http: httpx2.Client, agent: str, user: str, chat_id: str, *texts: str) -> None:
    said = [
        {"role": ("user", "assistant")[place % 2], "content": text}
        for place, text in enumerate(texts)
    ]
    body = {"user_id": user, "chat_id": chat_id, "model": agent, "messages": said}
    answer = http.post("/chat/stream", json=body)
    assert '"type":"done"' in answer.text, answer.text


def until(is_so: Callable[[], object]) -> None:
    """Wait until the condition holds; fail with its last value after the limit."""
    end = time.monotonic() + 6 * LIMIT  # jobs of a loaded machine
    while not is_so() and time.monotonic() < end:
        time.sleep(0.02)
    assert is_so()


def test_both_sides_of_a_chat_reach_honcho_in_order_with_their_peers(
    honcho: FakeHoncho, server: ServerInThread, http: httpx2.Client, agent: str
) -> None:
    server.says("A fine subject.", "Then begin at sea.")
    chat(http, agent, "ada", "c1", "I write about sailing.")
    chat(http, agent, "ada", "c1", "I write about sailing.", "A fine subject.", "How do I begin?")
    wanted = [
        ("user", "I write about sailing."),
        ("agent", "A fine subject."),
        ("user", "How do I begin?"),
        ("agent", "Then begin at sea."),
    ]
    until(lambda: honcho.said("chat_c1") == wanted)
    session = honcho.sessions["chat_c1"]
    assert session["metadata"] == {"user_id": "ada", "chat_id": "c1"}
    (student,) = [id for id in session["peers"] if id.startswith("user-")]
    assert session["peers"] == {student: {"observe_me": True}, agent: {"observe_me": False}}
    assert all(
        one["metadata"]["chat_id"] == "c1" and one["created_at"]
        for one in honcho.messages["chat_c1"]
    )
    assert all(seen.path.startswith("/v3/workspaces") for seen in honcho.seen)


def test_two_users_with_the_same_chat_id_get_two_sessions(
    honcho: FakeHoncho, server: ServerInThread, http: httpx2.Client, agent: str
) -> None:
    chat(http, agent, "ada", "same", "I am Ada.")
    until(lambda: len(honcho.said("chat_same")) == 2)
    chat(http, agent, "bob", "same", "I am Bob.")
    until(lambda: len(honcho.sessions) == 2)
    (other,) = honcho.sessions.keys() - {"chat_same"}
    until(lambda: honcho.said(other) == [("user", "I am Bob."), ("agent", "ok")])
    assert honcho.said("chat_same") == [("user", "I am Ada."), ("agent", "ok")]


def test_messages_received_before_a_failure_are_not_sent_again(
    honcho: FakeHoncho, server: ServerInThread, http: httpx2.Client, agent: str
) -> None:
    honcho.drops_answers = 1
    chat(http, agent, "ada", "c2", "Once only.")
    until(lambda: any(seen.path.endswith("/messages/list") for seen in honcho.seen))
    chat(http, agent, "ada", "c2", "Once only.", "ok", "And more.")
    until(lambda: len(honcho.said("chat_c2")) >= 4)
    assert [text for _, text in honcho.said("chat_c2")] == ["Once only.", "ok", "And more.", "ok"]


def test_messages_unsent_because_of_a_kill_are_sent_later(
    honcho: FakeHoncho,
    server: ServerInThread,
    http: httpx2.Client,
    agent: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server was killed between the end of a turn and the job that it adds."""
    with monkeypatch.context() as killed:
        killed.setattr(server.runtime, "after_turn", [])
        chat(http, agent, "ada", "c3", "Before the kill.")
        assert honcho.seen == []
    server.run(jobs.catch_up(server.runtime, None, None))  # type: ignore[arg-type]
    until(lambda: honcho.said("chat_c3") == [("user", "Before the kill."), ("agent", "ok")])
    # No message is missing any more, so no job is added.
    until(lambda: not server.run(server.runtime.store.read(lambda tx: queries.behind(tx, 0))))


def test_the_first_conversation_of_each_user_with_an_agent_reaches_honcho(
    honcho: FakeHoncho, server: ServerInThread, http: httpx2.Client, agent: str
) -> None:
    """Lists do not show it, since clients name it only through its agent."""
    for user in ("ada", "bob"):
        acting = {"x-ricordo-user": user}
        body = {"messages": [{"role": "user", "content": f"I am {user}."}]}
        ok(http.post(f"/v1/agents/{agent}/messages", json=body, headers=acting))
    until(lambda: len(honcho.sessions) == 2)
    said = [[("user", f"I am {user}."), ("agent", "ok")] for user in ("ada", "bob")]
    until(lambda: sorted(map(honcho.said, honcho.sessions)) == sorted(said))


def test_a_later_version_of_a_chat_reaches_honcho_and_a_tasks_copy_does_not(
    honcho: FakeHoncho, server: ServerInThread, http: httpx2.Client, agent: str
) -> None:
    acting = {"x-ricordo-user": "ada"}
    chat_id = ok(http.post(f"/v1/conversations/?agent_id={agent}", json={}, headers=acting))["id"]

    def say(conversation_id: str, text: str) -> None:
        body = {"messages": [{"role": "user", "content": text}], "streaming": False}
        ok(http.post(f"/v1/conversations/{conversation_id}/messages", json=body, headers=acting))

    say(chat_id, "The first wording.")
    runtime = server.runtime
    ada = server.run(runtime.store.read(lambda tx: users.require(tx, Scope(), "ada")))
    for description in (f"{VERSION_OF}{chat_id}", None):
        fork = server.run(
            fork_conversation(runtime, Scope().acting_for(ada), chat_id, is_hidden=True)
        )
        server.run(
            runtime.store.write(partial(conversations.change, id=fork.id, description=description))
        )
        say(fork.id, f"Said in the copy with {description}.")

    def sent() -> list[str]:
        return [text for name in honcho.sessions for _, text in honcho.said(name)]

    until(lambda: f"Said in the copy with {VERSION_OF}{chat_id}." in sent())
    say(chat_id, "The last wording.")
    until(lambda: "The last wording." in sent())
    assert "Said in the copy with None." not in sent()


def test_conversations_that_cannot_be_sent_do_not_hide_others(
    honcho: FakeHoncho,
    server: ServerInThread,
    http: httpx2.Client,
    agent: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jobs, "is_on", lambda: False)
    monkeypatch.setattr(queries, "_BEHIND_AT_ONCE", 2)
    for number in range(5):
        chat(http, agent, "ada", f"many{number}", "Hello.")
    behind = server.run(server.runtime.store.read(lambda tx: queries.behind(tx, 0)))
    assert len(behind) == 5


def test_honcho_answers_only_about_the_asking_user(
    honcho: FakeHoncho, server: ServerInThread, http: httpx2.Client, agent: str
) -> None:
    chat(http, agent, "ada", "c4", "I fear the night.")
    until(lambda: honcho.said("chat_c4"))
    (student,) = [id for id in honcho.sessions["chat_c4"]["peers"] if id.startswith("user-")]
    honcho.knows[student] = "She fears the night."
    told = ok(http.post("/users/ada/ask", json={"question": "What does she fear?"}))
    assert told == {"answer": "She fears the night.", "known": True, "citations": []}
    ok(http.put("/users/bob/blocks/notes", json={"body": "Bob."}))
    assert (
        ok(http.post("/users/bob/ask", json={"question": "What does she fear?"}))["known"] is False
    )
    server.says(call("query_student", question="What do they fear?"), "I know.")
    chat(http, agent, "ada", "c5", "What do I fear?")
    assert honcho.asked[-1] == (student, "What do they fear?")
    (part,) = server.model.requests[-1].messages[-1].tool_returns
    assert "She fears the night." in part.content
    assert part.is_untrusted
    until(lambda: len(honcho.said("chat_c5")) == 2)
    honcho.fails(503)
    assert "does not answer" in refused(
        http.post("/users/ada/ask", json={"question": "And now?"}), 503
    )
    honcho.fails(401, words=f"invalid key {KEY}")
    assert KEY not in refused(http.post("/users/ada/ask", json={"question": "And now?"}), 400)


def test_the_erasure_receipt_reports_the_request_to_honcho(
    honcho: FakeHoncho, server: ServerInThread, http: httpx2.Client, agent: str
) -> None:
    chat(http, agent, "ada", "c6", "Forget me.")
    chat(http, agent, "bob", "c7", "Keep me.")
    until(lambda: len(honcho.said("chat_c6")) == len(honcho.said("chat_c7")) == 2)
    receipt = http.delete("/users/ada").json()["receipt"]
    until(lambda: http.get(receipt).json()["status"] == "done")
    assert honcho.said("chat_c6") == []
    assert len(honcho.said("chat_c7")) == 2
    (sentence,) = [one for one in ok(http.get(receipt))["elsewhere"] if "Honcho" in one]
    assert "was asked to delete the user's conversations there: 1." in sentence


def test_a_forgotten_text_is_replaced_at_honcho_for_its_user_only(
    honcho: FakeHoncho, server: ServerInThread, http: httpx2.Client, agent: str
) -> None:
    secret = "I have a rare illness"
    chat(http, agent, "ada", "c9", f"Hello. {secret}.")
    chat(http, agent, "ada", "c10", "I like tea.")
    chat(http, agent, "bob", "c11", f"{secret}.")
    until(lambda: all(len(honcho.said(f"chat_c{n}")) == 2 for n in (9, 10, 11)))
    ada, bob = (honcho.messages[name][0]["peer_id"] for name in ("chat_c9", "chat_c11"))
    honcho.conclusions = {
        "k1": (ada, f"{secret}, she says."),
        "k2": (ada, "Likes tea."),
        "k3": (bob, f"{secret}."),
    }
    honcho.cards = {ada: ["Name: Ada", f"{secret}."], bob: [f"{secret}."]}

    receipt = http.post("/users/ada/forget", json={"text": secret, "all": True}).json()["receipt"]
    until(lambda: http.get(receipt).json()["status"] == "done")
    until(lambda: len(honcho.said("chat_c9__2")) == 2)

    assert "chat_c9" not in honcho.messages
    assert honcho.said("chat_c9__2")[0] == ("user", "Hello. [forgotten]")
    assert honcho.sessions["chat_c9__2"]["metadata"] == {"user_id": "ada", "chat_id": "c9"}
    assert honcho.said("chat_c10")[0] == ("user", "I like tea.")
    assert honcho.said("chat_c11")[0] == ("user", f"{secret}.")
    assert set(honcho.conclusions) == {"k2", "k3"}
    assert honcho.cards == {ada: ["Name: Ada"], bob: [f"{secret}."]}
    (sentence,) = [one for one in ok(http.get(receipt))["elsewhere"] if "Honcho" in one]
    assert "replace conversations that contained it: 1, " in sentence
    assert "the user's card: 2." in sentence
    # Later messages go to the new session.
    chat(http, agent, "ada", "c9", f"Hello. {secret}.", "ok", "And tea.")
    until(lambda: ("user", "And tea.") in honcho.said("chat_c9__2"))


def test_a_session_deleted_before_a_kill_is_sent_again_once(
    honcho: FakeHoncho, server: ServerInThread, http: httpx2.Client, agent: str
) -> None:
    chat(http, agent, "ada", "c12", "I like tea.")
    until(lambda: len(honcho.said("chat_c12")) == 2)
    user = honcho.messages["chat_c12"][0]["peer_id"]
    honcho.messages["chat_c12"] = []
    for _ in range(2):
        server.run(forget_thing(server.runtime, user, Needle("I have a rare illness")))
        until(lambda: len(honcho.said("chat_c12__2")) == 2)
    assert "chat_c12__3" not in honcho.messages


def test_the_receipt_reports_that_honcho_was_unreachable(
    honcho: FakeHoncho, server: ServerInThread, http: httpx2.Client, agent: str
) -> None:
    chat(http, agent, "ada", "c13", "I have a rare illness.")
    until(lambda: len(honcho.said("chat_c13")) == 2)
    user = honcho.messages["chat_c13"][0]["peer_id"]
    honcho.fails(503)
    (sentence,) = server.run(forget_thing(server.runtime, user, Needle("I have a rare illness")))
    assert "may still have the forgotten text" in sentence


@pytest.mark.parametrize(("name", "later"), [("chat_1", "chat_1__2"), ("c__9", "c__10")])
def test_the_next_session_name_counts_up(name: str, later: str) -> None:
    assert next_name(name) == later


def test_without_settings_nothing_is_sent_to_honcho(
    server: ServerInThread, http: httpx2.Client, agent: str
) -> None:
    assert not HonchoSettings().is_on
    chat(http, agent, "ada", "c8", "To myself.")
    server.run(jobs.catch_up(server.runtime, None, None))  # type: ignore[arg-type]

    def waiting(tx: Transaction) -> int:
        return sum(job.kind == "honcho.send" for job in all_jobs(tx))

    assert server.run(server.runtime.store.read(waiting)) == 0


def all_jobs(tx: Transaction) -> list[Any]:
    from ricordo.storage.jobs import ROWS

    return list(ROWS.all(tx, ROWS.select, {}))


def test_the_old_names_of_the_settings_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in (("WORKSPACE_ID", "school"), ("ENVIRONMENT", "local"), ("API_KEY", "k")):
        monkeypatch.setenv(f"RALPH_HONCHO_{name}", value)
        # monkeypatch knows the variable now, so it removes the value that `load_settings` sets.
        monkeypatch.setenv(f"RICORDO_HONCHO_{name}", "")
        monkeypatch.delenv(f"RICORDO_HONCHO_{name}")
    load_settings(data_dir=tmp_path)
    options = HonchoSettings()
    assert (options.honcho_workspace_id, options.honcho_environment, options.is_on) == (
        "school",
        "local",
        True,
    )


@pytest.mark.parametrize("value", ["demo", "Demo", " demo "])
def test_a_server_with_the_demo_environment_starts_without_honcho(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, value: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RALPH_HONCHO_ENVIRONMENT", value)
    # Tests before this one may have set the level of all loggers.
    with caplog.at_level(logging.WARNING, logger="ricordo.settings"):
        load_settings(data_dir=tmp_path)
    assert not HonchoSettings().is_on
    assert "demo server is gone" in caplog.text
