"""Sleeping agents, which work on another agent's memory.

The tests check when they run, what they read, whose memory they change, and deletion.
"""

import random
from collections import Counter
from typing import Any

import httpx2
import pytest
from sqlalchemy import select, text

from ricordo.domain.model import ModelRequest
from ricordo.domain.scope import Scope
from ricordo.errors import ModelError, Unavailable
from ricordo.features.groups import sleep_queries, sleeptime
from ricordo.llm.scripted import Line, call
from ricordo.storage.engine.repository import Page
from ricordo.storage.schema.core_tables import jobs, steps
from tests.campaigns.sizes import short_and_long
from tests.seams.http import ok
from tests.seams.server import MODEL, ServerInThread
from tests.seams.stores import count_statements
from tests.seams.waiting import wait_for

BLOCKS = [
    {"label": "human", "value": "Nothing is known."},
    {"label": "persona", "value": "A tutor."},
]


def main_agent(http: httpx2.Client, **fields: Any) -> dict[str, Any]:
    body = {"name": "tutor", "model": MODEL, "memory_blocks": BLOCKS, "enable_sleeptime": True}
    return dict(ok(http.post("/v1/agents/", json=body | fields)))


def set_frequency(http: httpx2.Client, agent: dict[str, Any], frequency: int | None) -> str:
    group = agent["multi_agent_group"]
    config = {
        "manager_type": "sleeptime",
        "manager_agent_id": agent["id"],
        "sleeptime_agent_frequency": frequency,
    }
    assert (
        ok(http.patch(f"/v1/groups/{group['id']}", json={"manager_config": config}))[
            "sleeptime_agent_frequency"
        ]
        == frequency
    )
    return str(group["agent_ids"][0])


def say(
    http: httpx2.Client, agent: dict[str, Any], text: str, user: str | None = None
) -> list[str]:
    headers = {"x-ricordo-user": user} if user else {}
    answer = ok(
        http.post(f"/v1/agents/{agent['id']}/messages", json={"input": text}, headers=headers)
    )
    return list(answer["usage"]["run_ids"])


def wait_for_runs(http: httpx2.Client, run_ids: list[str]) -> list[dict[str, Any]]:
    """Wait until these runs have ended, and return them."""

    def runs() -> list[dict[str, Any]]:
        return [ok(http.get(f"/v1/runs/{id}")) for id in run_ids]

    wait_for(lambda: all(run["status"] in ("completed", "failed", "cancelled") for run in runs()))
    return runs()


def is_asleep(request: ModelRequest) -> bool:
    return any("<system-reminder>" in message.text for message in request.messages)


def transcripts_of(server: ServerInThread) -> list[str]:
    """Return the transcripts of sleeping agents, each text once, in order."""
    seen: dict[str, None] = {}
    for request in list(server.model.requests):
        for message in request.messages:
            if "<system-reminder>" in message.text and "Messages:" in message.text:
                seen.setdefault(message.text.split("Messages:\n", 1)[1])
    return list(seen)


def finish_edits(request: ModelRequest) -> Line:
    return (
        call("memory_finish_edits")
        if is_asleep(request)
        else f"You said: {request.messages[-1].text[-40:]}"
    )


def test_a_pair_is_created_with_shared_blocks_and_different_tools(http: httpx2.Client) -> None:
    agent = main_agent(http)
    group = agent["multi_agent_group"]
    assert agent["enable_sleeptime"] is True
    assert group == agent["managed_group"]
    assert (group["manager_type"], group["sleeptime_agent_frequency"], group["turns_counter"]) == (
        "sleeptime",
        5,
        -1,
    )
    assert group["manager_agent_id"] == agent["id"]
    names = {tool["name"] for tool in agent["tools"]}
    assert not names & {
        "core_memory_append",
        "core_memory_replace",
        "memory_insert",
        "archival_memory_insert",
    }
    (sleeper_id,) = group["agent_ids"]
    sleeper = ok(http.get(f"/v1/agents/{sleeper_id}"))
    assert (sleeper["name"], sleeper["agent_type"]) == ("tutor-sleeptime", "sleeptime_agent")
    assert {tool["name"] for tool in sleeper["tools"]} == {
        *("memory_replace", "memory_insert", "memory_rethink", "memory_finish_edits")
    }
    assert {"tool_name": "memory_finish_edits", "type": "exit_loop"}.items() <= next(
        rule for rule in sleeper["tool_rules"] if rule["type"] == "exit_loop"
    ).items()
    assert {block["label"] for block in sleeper["blocks"]} == {"human", "persona", "memory_persona"}
    for block in agent["blocks"]:
        agents = ok(http.get(f"/v1/blocks/{block['id']}/agents"))
        assert {one["id"] for one in agents} == {agent["id"], sleeper_id}
    assert ok(http.get(f"/v1/agents/{sleeper_id}/groups"))[0]["id"] == group["id"]


def test_attaching_or_detaching_a_block_affects_both_agents_of_a_pair(http: httpx2.Client) -> None:
    agent = main_agent(http)
    (sleeper_id,) = agent["multi_agent_group"]["agent_ids"]
    block = ok(http.post("/v1/blocks/", json={"label": "plan", "value": "None yet."}))

    def owners() -> set[str]:
        return {one["id"] for one in ok(http.get(f"/v1/blocks/{block['id']}/agents"))}

    for _ in range(2):
        ok(http.patch(f"/v1/agents/{agent['id']}/core-memory/blocks/attach/{block['id']}"))
        assert owners() == {agent["id"], sleeper_id}
    ok(http.patch(f"/v1/agents/{agent['id']}/core-memory/blocks/detach/{block['id']}"))
    assert owners() == set()
    ok(http.patch(f"/v1/agents/{sleeper_id}/core-memory/blocks/attach/{block['id']}"))
    assert owners() == {agent["id"], sleeper_id}


def test_a_block_created_by_the_sleeping_agent_is_shared_with_the_main_agent(
    server: ServerInThread, http: httpx2.Client
) -> None:
    memory = next(tool["id"] for tool in ok(http.get("/v1/tools/?name=memory")))
    agent = main_agent(http)
    sleeper_id = set_frequency(http, agent, None)
    ok(http.patch(f"/v1/agents/{sleeper_id}/tools/attach/{memory}"))
    made = {
        "command": "create",
        "path": "/memories/goals",
        "description": "Goals.",
        "file_text": "Pass the exam.",
    }
    server.answers_with(
        lambda request: (
            ("Hm." if not is_asleep(request) else call("memory", **made))
            if not any(message.role == "tool" for message in request.messages)
            else call("memory_finish_edits")
        )
    )
    wait_for_runs(http, say(http, agent, "I want to pass the exam."))
    blocks = {
        block["label"]: block["value"]
        for block in ok(http.get(f"/v1/agents/{agent['id']}"))["blocks"]
    }
    assert any("Pass the exam." in value for value in blocks.values()), blocks


def test_the_sleeping_agent_runs_after_the_first_turn_and_every_nth_turn(
    server: ServerInThread, http: httpx2.Client
) -> None:
    server.answers_with(finish_edits)
    agent = main_agent(http)
    sleeper_id = set_frequency(http, agent, 2)
    counts, started = [], []
    for number in range(6):
        ids = say(http, agent, f"Message {number}.")
        counts.append(len(ids))
        started += ids
        listed = ok(http.get("/v1/runs/", params={"agent_id": sleeper_id}))
        assert {run["id"] for run in listed} == set(started)
    assert counts == [1, 0, 1, 0, 1, 0]
    assert all(run["status"] == "completed" for run in wait_for_runs(http, started))
    told = "\n".join(transcripts_of(server))
    for number in range(5):
        assert told.count(f"user: Message {number}.") == 1
    group = ok(http.get(f"/v1/groups/{agent['multi_agent_group']['id']}"))
    assert group["turns_counter"] == 1
    assert group["last_processed_message_id"].startswith("message-")


def test_a_due_run_that_could_not_be_planned_follows_the_next_turn(
    server: ServerInThread, http: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers_with(finish_edits)
    agent = main_agent(http)
    set_frequency(http, agent, 3)

    def talk(first: int, last: int) -> list[list[str]]:
        return [say(http, agent, f"Turn {number}.", "ada") for number in range(first, last)]

    def fail(*_: Any) -> None:
        raise Unavailable("The prompt cannot be rendered.")

    # For a while, the sleeping agent gets no conversation.
    with monkeypatch.context() as patch:
        patch.setattr(sleeptime, "begin_default", fail)
        assert talk(0, 2) == [[], []]
    started = talk(2, 6)
    assert [len(ids) for ids in started] == [1, 0, 0, 1]
    wait_for_runs(http, [run_id for ids in started for run_id in ids])
    told = "\n".join(transcripts_of(server))
    assert [told.count(f"user: Turn {number}.") for number in range(6)] == [1] * 6


@pytest.mark.parametrize(
    ("frequency", "expected"), [(None, [1, 1, 1]), (0, [0, 0, 0]), (1, [1, 1, 1])]
)
def test_no_frequency_means_every_turn_and_zero_means_never(
    server: ServerInThread, http: httpx2.Client, frequency: int | None, expected: list[int]
) -> None:
    server.answers_with(finish_edits)
    agent = main_agent(http)
    set_frequency(http, agent, frequency)
    started = [say(http, agent, f"Word {number}.") for number in range(3)]
    assert [len(ids) for ids in started] == expected
    wait_for_runs(http, [id for ids in started for id in ids])
    if any(expected):
        told = "\n".join(transcripts_of(server))
        assert [told.count(f"user: Word {number}.") for number in range(3)] == [1, 1, 1]


def test_many_messages_are_split_into_several_transcripts(
    server: ServerInThread, http: httpx2.Client
) -> None:
    server.answers_with(finish_edits)
    agent = main_agent(http)
    sleeper_id = set_frequency(http, agent, 40)
    first = say(http, agent, "Number 0.")
    for number in range(1, 40):
        assert say(http, agent, f"Number {number}.") == []
    last = say(http, agent, "Number 40.")
    wait_for_runs(http, first + last)
    told = transcripts_of(server)
    assert len(told) >= 3
    assert [
        sum(text.count(f"user: Number {number}.\n") for text in told) for number in range(41)
    ] == [1] * 41
    made = server.read(
        lambda tx: sleep_queries.page_of_transcripts(
            tx, Scope(), Page(limit=50), agent_id=sleeper_id
        )
    )
    assert {one.status for one in made} == {"done"}
    assert max(one.message_count for one in made) <= 50


def test_what_the_sleeping_agent_learns_about_a_user_stays_private(
    server: ServerInThread, http: httpx2.Client
) -> None:
    def answer(request: ModelRequest) -> Line:
        if not is_asleep(request):
            return "Noted."
        if any(message.role == "tool" for message in request.messages[-2:]):
            return call("memory_finish_edits")
        text = request.messages[-1].text
        word = next(word for word in ("ALBATROS", "BADGER") if word in text)
        return call("memory_rethink", label="human", new_memory=f"Likes the {word.lower()}.")

    server.answers_with(answer)
    agent = main_agent(http)
    set_frequency(http, agent, None)
    runs = [
        *say(http, agent, "I like the ALBATROS.", "ada"),
        *say(http, agent, "I like the BADGER.", "ben"),
    ]
    assert [run["status"] for run in wait_for_runs(http, runs)] == ["completed", "completed"]
    for user, own, other in (("ada", "albatros", "badger"), ("ben", "badger", "albatros")):
        seen = str(
            ok(http.get(f"/v1/agents/{agent['id']}", headers={"x-ricordo-user": user}))["blocks"]
        )
        assert own in seen
        assert other not in seen
    assert "badger" not in str(ok(http.get(f"/v1/agents/{agent['id']}"))).lower()
    for request in server.model.requests:
        asked = " ".join(message.text for message in request.messages).upper()
        assert not ("ALBATROS" in asked and "BADGER" in asked)


def test_a_failure_of_the_sleeping_agent_fails_its_run_and_is_retried(
    server: ServerInThread, http: httpx2.Client
) -> None:
    failures = [
        ModelError("llm_error", "The provider is down."),
        ModelError("llm_error", "Still down."),
    ]

    def answer(request: ModelRequest) -> Line:
        if not is_asleep(request):
            return "Fine."
        return failures.pop() if failures else call("memory_finish_edits")

    server.answers_with(answer)
    agent = main_agent(http)
    sleeper_id = set_frequency(http, agent, None)
    (run_id,) = say(http, agent, "My dog is called Rex.")
    assert wait_for_runs(http, [run_id])[0]["status"] == "failed"

    def statuses() -> set[str]:
        page = Page(limit=5)
        return {
            one.status
            for one in server.read(
                lambda tx: sleep_queries.page_of_transcripts(tx, Scope(), page, agent_id=sleeper_id)
            )
        }

    wait_for(lambda: statuses() == {"done"})
    assert sum(text.count("My dog is called Rex.") for text in transcripts_of(server)) == 1
    assert len(say(http, agent, "Good bye.")) == 1


def test_a_turn_that_awaits_an_approval_starts_no_sleeptime_run(
    server: ServerInThread, http: httpx2.Client
) -> None:
    agent = main_agent(http)
    set_frequency(http, agent, None)
    tool = agent["tools"][0]["name"]
    ok(
        http.patch(
            f"/v1/agents/{agent['id']}/tools/approval/{tool}", json={"requires_approval": True}
        )
    )
    server.answers_with(finish_edits)
    server.answers_with(
        lambda request: (
            call("memory_finish_edits")
            if is_asleep(request)
            else ("Done." if request.messages[-1].role == "tool" else call(tool, query="tea"))
        )
    )
    answer = ok(http.post(f"/v1/agents/{agent['id']}/messages", json={"input": "Look for tea."}))
    assert answer["stop_reason"]["stop_reason"] == "requires_approval"
    assert answer["usage"]["run_ids"] == []
    request = next(
        one for one in answer["messages"] if one["message_type"] == "approval_request_message"
    )
    approval = {"type": "approval", "approve": True, "approval_request_id": request["id"]}
    done = ok(http.post(f"/v1/agents/{agent['id']}/messages", json={"messages": [approval]}))
    assert len(done["usage"]["run_ids"]) == 1
    wait_for_runs(http, done["usage"]["run_ids"])
    assert sum(text.count("user: Look for tea.") for text in transcripts_of(server)) == 1


def test_a_stream_contains_the_ids_of_sleeptime_runs(
    server: ServerInThread, http: httpx2.Client
) -> None:
    server.answers_with(finish_edits)
    agent = main_agent(http)
    body = {"messages": [{"role": "user", "content": "Hello."}]}
    with http.stream("POST", f"/v1/agents/{agent['id']}/messages/stream", json=body) as stream:
        text = stream.read().decode()
    assert '"run_ids":["run-' in text
    listed = ok(
        http.get("/v1/runs/", params={"agent_id": agent["multi_agent_group"]["agent_ids"][0]})
    )
    assert listed[0]["id"] in text
    wait_for_runs(http, [listed[0]["id"]])


def test_deleting_the_main_agent_deletes_the_sleeping_agent_and_the_group(
    http: httpx2.Client,
) -> None:
    agent = main_agent(http)
    group = agent["multi_agent_group"]
    ok(http.delete(f"/v1/agents/{agent['id']}"))
    assert http.get(f"/v1/agents/{group['agent_ids'][0]}").status_code == 404
    assert http.get(f"/v1/groups/{group['id']}").status_code == 404


def test_deleting_the_sleeping_agent_allows_a_new_pair(
    http: httpx2.Client,
) -> None:
    agent = main_agent(http)
    (sleeper_id,) = agent["multi_agent_group"]["agent_ids"]
    ok(http.delete(f"/v1/agents/{sleeper_id}"))
    left = ok(http.get(f"/v1/agents/{agent['id']}"))
    assert not left["enable_sleeptime"]
    assert left["multi_agent_group"] is None
    again = ok(http.patch(f"/v1/agents/{agent['id']}", json={"enable_sleeptime": True}))
    assert again["multi_agent_group"]["agent_ids"] != [sleeper_id]
    assert again["enable_sleeptime"] is True


def test_an_agent_whose_sleeping_group_ends_has_sleeptime_no_longer(http: httpx2.Client) -> None:
    first, second, other = main_agent(http), main_agent(http), main_agent(http, name="Other")
    ok(http.delete(f"/v1/groups/{first['multi_agent_group']['id']}"))
    ok(http.delete(f"/v1/groups/{other['multi_agent_group']['id']}"))
    config = {"manager_type": "sleeptime", "manager_agent_id": other["id"]}
    path = f"/v1/groups/{second['multi_agent_group']['id']}"
    members = other["multi_agent_group"]["agent_ids"]
    ok(http.patch(path, json={"manager_config": config, "agent_ids": members}))
    shown = [ok(http.get(f"/v1/agents/{agent['id']}")) for agent in (first, second, other)]
    assert [bool(agent["multi_agent_group"]) for agent in shown] == [False, False, True]
    assert [agent["enable_sleeptime"] for agent in shown] == [False, False, True]


def test_sleeptime_is_enabled_for_an_agent_with_users(http: httpx2.Client) -> None:
    identity = ok(
        http.post(
            "/v1/identities/",
            json={"identifier_key": "theo", "name": "Theo", "identity_type": "user"},
        )
    )
    agent = main_agent(http, enable_sleeptime=False, identity_ids=[identity["id"]])
    changed = ok(http.patch(f"/v1/agents/{agent['id']}", json={"enable_sleeptime": True}))
    (sleeper_id,) = changed["multi_agent_group"]["agent_ids"]
    sleeper = ok(http.get(f"/v1/agents/{sleeper_id}"))
    assert sleeper["identity_ids"] == agent["identity_ids"] == [identity["id"]]


def test_sleeptime_can_be_disabled_and_enabled_again(
    server: ServerInThread, http: httpx2.Client
) -> None:
    server.answers_with(finish_edits)
    agent = main_agent(http)
    set_frequency(http, agent, None)
    off = ok(http.patch(f"/v1/agents/{agent['id']}", json={"enable_sleeptime": False}))
    assert not off["enable_sleeptime"]
    assert off["multi_agent_group"]["id"] == agent["multi_agent_group"]["id"]
    ok(http.post(f"/v1/agents/{agent['id']}/messages", json={"input": "Alone."}))
    assert transcripts_of(server) == []
    ok(http.patch(f"/v1/agents/{agent['id']}", json={"enable_sleeptime": True}))
    wait_for_runs(http, say(http, agent, "Together."))
    assert sum(text.count("user: Together.") for text in transcripts_of(server)) == 1


@pytest.mark.parametrize("turns", short_and_long(30, 200))
def test_the_sleeping_agent_never_mixes_two_users(
    server: ServerInThread, http: httpx2.Client, turns: int
) -> None:
    """One user's messages reach no prompt, transcript, block or proposal of the other."""
    dice = random.Random(turns)  # noqa: S311
    words = {"ada": "kanariada", "ben": "kanariben", "": "kanarinobody"}
    mixed: list[str] = []
    edits_of: Counter[str] = Counter()

    def answer(request: ModelRequest) -> Line:
        told = " ".join(f"{message.text} {message.parts!r}" for message in request.messages)
        # Everybody may read changes of shared blocks from a conversation without a user.
        users = [words[user] for user in ("ada", "ben") if words[user] in told]
        seen = [word for word in words.values() if word in request.messages[-1].text] or ["nothing"]
        if len(users) > 1 or (users and words[""] in request.messages[-1].text):
            mixed.append(told[-500:])
        if not is_asleep(request):
            return f"I heard {seen[:1]}."
        if request.messages[-1].role == "tool":
            return call("memory_finish_edits")
        # Each user's edits use the three tools in turn. The first tool only makes proposals, so
        # with this tool alone the user's blocks would stay empty.
        edits_of[seen[0]] += 1
        number = edits_of[seen[0]]
        edits = [
            call("memory_insert", label="notes", new_string=f"Again {seen[0]}, {number}."),
            call("memory_rethink", label="human", new_memory=f"About {seen[0]}, {number}."),
            call(
                "memory_replace",
                label="persona",
                old_string="tutor",
                new_string=f"tutor of {seen[0]}",
            ),
        ]
        return edits[number % len(edits)]

    server.answers_with(answer)
    agent = main_agent(
        http, memory_blocks=[*BLOCKS, {"label": "notes", "value": "", "policy": "propose"}]
    )
    set_frequency(http, agent, 2)
    started: list[str] = []
    for _ in range(turns):
        user = dice.choice(list(words))
        started += say(http, agent, f"Think of {words[user]} {dice.random()}.", user or None)
    wait_for_runs(http, started)
    assert mixed == []
    for user, own in words.items():
        headers = {"x-ricordo-user": user} if user else {}
        params = {"user_id": user} if user else {}
        told = str(
            ok(http.get(f"/v1/agents/{agent['id']}", headers=headers, params=params))["blocks"]
        )
        assert own in told
        if user:
            told += str(ok(http.get(f"/users/{user}/diffs", params={"status": "all"})))
        assert [
            other for name, other in words.items() if name and name != user and other in told
        ] == []
    rows = server.read(
        lambda tx: tx.all(
            text(
                "SELECT user_id, CAST(parts AS TEXT) AS parts FROM messages WHERE group_id IS NOT "
                "NULL"
            )
        )
    )
    assert len(rows) >= len(words)
    for row in rows:
        own = words[names_of(server).get(row.user_id, "")]
        assert [other for other in words.values() if other != own and other in row.parts] == []


def names_of(server: ServerInThread) -> dict[str, str]:
    return {
        row.id: row.identifier
        for row in server.read(lambda tx: tx.all(text("SELECT id, identifier FROM users")))
    }


def test_untrusted_messages_make_the_sleeptime_run_untrusted(
    server: ServerInThread, http: httpx2.Client
) -> None:
    agent = main_agent(http, memory_blocks=[{"label": "facts", "value": "None.", "shared": True}])
    set_frequency(http, agent, None)
    server.answers_with(
        lambda request: (
            "Read."
            if not is_asleep(request)
            else call("memory_finish_edits")
            if request.messages[-1].role == "tool"
            else call("memory_rethink", label="facts", new_memory="The moon is cheese.")
        )
    )
    # Messages of another sender than the conversation's user are untrusted.
    message = {"role": "user", "content": "The moon is cheese.", "sender_id": "somebody-else"}
    answer = ok(http.post(f"/v1/agents/{agent['id']}/messages", json={"messages": [message]}))
    (run,) = wait_for_runs(http, answer["usage"]["run_ids"])
    found = server.read(
        lambda tx: tx.all(select(steps.c.is_untrusted).where(steps.c.run_id == run["id"]))
    )
    assert found
    assert all(row.is_untrusted for row in found)
    # The edit of a guarded block waits for approval.
    assert ok(http.get(f"/v1/agents/{agent['id']}"))["blocks"][0]["value"] == "None."


def test_sleeptime_adds_three_statements_to_the_end_of_a_turn(
    server: ServerInThread, http: httpx2.Client
) -> None:
    server.answers_with(finish_edits)
    counts = {}
    for is_on in (False, True):
        agent = main_agent(http, enable_sleeptime=is_on)
        runs = say(http, agent, "First.")
        wait_for_runs(http, runs if is_on else [])
        say(http, agent, "Second.")
        with count_statements(server.runtime.store) as counted:
            say(http, agent, "Third.")
        said = [str(one) for one in counted.statements]
        counts[is_on] = sum("sleep_" in one or "groups" in one or "AS first" in one for one in said)
    assert counts == {False: 0, True: 3}


def test_a_spent_background_budget_postpones_the_sleeptime_run(
    server: ServerInThread, http: httpx2.Client
) -> None:
    server.answers_with(finish_edits)
    agent = main_agent(http)
    sleeper_id = set_frequency(http, agent, None)
    ok(http.patch(f"/v1/agents/{sleeper_id}/budget", json={"daily_tokens": 1}))
    wait_for_runs(http, say(http, agent, "Spend it."))
    (late,) = say(http, agent, "Wait until tomorrow.")
    waiting = select(jobs.c.id).where(
        jobs.c.key == f"sleeptime:{sleeper_id}", jobs.c.status == "waiting"
    )

    def is_put_off() -> bool:
        return bool(
            server.read(
                lambda tx: tx.all(waiting.where(jobs.c.not_before > jobs.c.created_at + 60_000_000))
            )
        )

    wait_for(is_put_off)
    assert ok(http.get(f"/v1/runs/{late}"))["status"] == "created"
    assert transcripts_of(server)[-1].count("Wait until tomorrow.") == 0


def test_the_librarian_files_statements_of_users_only(
    http: httpx2.Client,
) -> None:
    agent = main_agent(http, model="ricordo/librarian")
    said = "I play the cello. What do you know about tea?"
    wait_for_runs(http, say(http, agent, said))
    value = ok(http.get(f"/v1/agents/{agent['id']}/core-memory/blocks/human"))["value"]
    assert "I play the cello." in value
    assert "tea" not in value
    assert "not a language model" not in value
