"""A person's view of sleeping agents over HTTP: runs with cost and changes, "not now"."""

from typing import Any

import httpx2

from ricordo.domain.model import ModelRequest
from ricordo.llm.scripted import Line, call
from tests.features.groups.test_sleeptime import (
    is_asleep,
    main_agent,
    say,
    set_frequency,
    transcripts_of,
    wait_for_runs,
)
from tests.seams.http import ok
from tests.seams.server import ServerInThread
from tests.seams.waiting import wait_for


def learns(request: ModelRequest) -> Line:
    if not is_asleep(request):
        return "Noted."
    if any(message.role == "tool" for message in request.messages[-2:]):
        return call("memory_finish_edits")
    return call(
        "memory_rethink",
        label="human",
        new_memory=f"Said {len(request.messages[-1].text)} letters.",
    )


def work(
    http: httpx2.Client, agent: dict[str, Any], user: str | None = None
) -> list[dict[str, Any]]:
    headers = {"x-ricordo-user": user} if user else {}
    return list(ok(http.get(f"/v1/agents/{agent['id']}/sleeptime/transcripts", headers=headers)))


def test_a_user_sees_the_changes_and_cost_of_their_own_runs(
    server: ServerInThread, http: httpx2.Client
) -> None:
    server.answers_with(learns)
    agent = main_agent(http)
    sleeper_id = set_frequency(http, agent, None)
    runs = {user: say(http, agent, f"I am {user}.", user) for user in ("ada", "ben")}
    wait_for_runs(http, [run_id for run_ids in runs.values() for run_id in run_ids])
    for user, run_ids in runs.items():
        wait_for(lambda user=user: [one["status"] for one in work(http, agent, user)] == ["done"])  # type: ignore[misc]
        (one,) = work(http, agent, user)
        assert (one["run_id"], one["agent_id"]) == (run_ids[0], sleeper_id)
        usage = ok(http.get(f"/v1/runs/{run_ids[0]}/usage"))
        assert (one["prompt_tokens"], one["completion_tokens"]) == (
            usage["prompt_tokens"],
            usage["completion_tokens"],
        )
        assert one["step_count"] >= 1
        assert [(change["status"], change["label"]) for change in one["changes"]] == [
            ("applied", "human")
        ]
    assert len(work(http, agent)) == 2
    assert work(http, agent, "nobody-yet") == []
    named = http.get(f"/v1/agents/{sleeper_id}/sleeptime/transcripts", params={"user_id": "ada"})
    assert [one["run_id"] for one in ok(named)] == runs["ada"]


def test_pausing_affects_one_user_and_skips_messages_sent_meanwhile(
    server: ServerInThread, http: httpx2.Client
) -> None:
    server.answers_with(learns)
    agent = main_agent(http)
    set_frequency(http, agent, None)
    path, ada = f"/v1/agents/{agent['id']}/sleeptime", {"x-ricordo-user": "ada"}
    wait_for_runs(http, say(http, agent, "First.", "ada"))
    assert ok(http.patch(path, json={"paused": True}, headers=ada))["paused"] is True
    assert [
        ok(http.get(path, headers=who))["paused"] for who in (ada, {"x-ricordo-user": "ben"}, {})
    ] == [*(True, False, False)]
    assert say(http, agent, "SECRET.", "ada") == []
    wait_for_runs(http, say(http, agent, "Hello from Ben.", "ben"))
    assert ok(http.patch(path, json={"paused": False}, headers=ada))["paused"] is False
    wait_for_runs(http, say(http, agent, "Third.", "ada"))
    told = "\n".join(transcripts_of(server))
    assert [word in told for word in ("First.", "Hello from Ben.", "Third.", "SECRET.")] == [
        True,
        True,
        True,
        False,
    ]


def test_conversations_without_a_user_are_paused_separately(
    server: ServerInThread, http: httpx2.Client
) -> None:
    server.answers_with(learns)
    agent = main_agent(http)
    set_frequency(http, agent, None)
    path = f"/v1/agents/{agent['id']}/sleeptime"
    ok(http.patch(path, json={"paused": True}))
    assert say(http, agent, "Nobody in particular.") == []
    assert len(say(http, agent, "I am Ada.", "ada")) == 1
    assert http.patch(path, json={"paused": "later"}).status_code == 422


def test_an_agent_without_sleeptime_has_no_sleeptime_route(http: httpx2.Client) -> None:
    agent = main_agent(http, enable_sleeptime=False)
    answer = http.get(f"/v1/agents/{agent['id']}/sleeptime")
    assert answer.status_code == 404
    assert "enable_sleeptime" in answer.json()["detail"]
