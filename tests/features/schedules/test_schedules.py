"""Scheduled messages with the official client: sent once at their time, again and again, and never after they were deleted."""

import time
from pathlib import Path
from typing import Any

import pytest
from letta_client import NotFoundError, UnprocessableEntityError
from letta_client.types import AgentState

from ricordo.domain.clock import SECOND
from ricordo.features.schedules import queries, service
from tests.api.conftest import Api
from tests.seams.http import ok
from tests.seams.server import LIMIT, MODEL, serving


def soon(seconds: float) -> dict[str, Any]:
    return {"type": "one-time", "scheduled_at": (time.time() + seconds) * 1000}


def texts(api: Api, agent: str) -> list[str]:
    listed = api.http.get(f"/v1/agents/{agent}/messages", params={"limit": 100}).json()
    return [one["content"] for one in listed if one["message_type"] in ("user_message", "assistant_message")]


def wait_for(api: Api, agent: str, text: str) -> list[str]:
    until = time.monotonic() + LIMIT
    while time.monotonic() < until:
        if text in (found := texts(api, agent)):
            return found
        time.sleep(0.05)
    raise AssertionError(f"{text} was not said: {texts(api, agent)}")


def test_a_message_is_sent_at_its_time_and_its_schedule_is_gone(api: Api, agent: AgentState) -> None:
    api.server.says("Good morning!")
    schedule = api.client.agents.schedule
    made = schedule.create(
        agent.id, messages=[{"role": "user", "content": "Wake up."}], schedule=soon(0.3), max_steps=3
    )
    assert made.next_scheduled_at
    shown = schedule.retrieve(made.id, agent_id=agent.id)
    assert (shown.message.messages[0].content, shown.schedule.type) == ("Wake up.", "one-time")
    assert [one.id for one in schedule.list(agent.id).scheduled_messages] == [made.id]
    assert "Wake up." not in texts(api, agent.id)
    assert wait_for(api, agent.id, "Good morning!")[-2:] == ["Wake up.", "Good morning!"]
    until = time.monotonic() + LIMIT
    while schedule.list(agent.id).scheduled_messages:
        assert time.monotonic() < until
    (run,) = api.client.runs.list(agent_id=agent.id).items
    assert run.background


def test_what_is_deleted_is_not_sent(api: Api, agent: AgentState) -> None:
    schedule = api.client.agents.schedule
    made = schedule.create(agent.id, messages=[{"role": "user", "content": "Never."}], schedule=soon(0.4))
    assert schedule.delete(made.id, agent_id=agent.id).success
    with pytest.raises(NotFoundError):
        schedule.retrieve(made.id, agent_id=agent.id)
    time.sleep(1.5)
    assert "Never." not in texts(api, agent.id)


def test_pages_of_schedules_and_what_is_refused(api: Api, agent: AgentState) -> None:
    schedule, said = api.client.agents.schedule, [{"role": "user", "content": "Hello."}]
    recurring = {"type": "recurring", "cron_expression": "0 8 * * 1-5"}
    ids = [schedule.create(agent.id, messages=said, schedule=recurring).id for _ in range(3)]  # type: ignore[arg-type]
    first = schedule.list(agent.id, limit="2")
    assert (first.has_next_page, [one.id for one in first.scheduled_messages]) == (True, ids[:0:-1])
    rest = schedule.list(agent.id, after=ids[1])
    assert (rest.has_next_page, [one.id for one in rest.scheduled_messages]) == (False, ids[:1])
    other = api.client.agents.create(model=MODEL).id
    for id, owner in ((ids[0], other), ("schedule-0", agent.id)):
        with pytest.raises(NotFoundError):
            schedule.retrieve(id, agent_id=owner)
        with pytest.raises(NotFoundError):
            schedule.delete(id, agent_id=owner)
    for bad, words in (
        ({"type": "recurring", "cron_expression": "0 0 30 2 *"}, "no day that comes"),
        ({"type": "recurring", "cron_expression": "often"}, "five fields"),
        ({"type": "one-time", "scheduled_at": 1000}, "has passed"),
        ({"type": "one-time", "scheduled_at": -1}, "scheduled_at"),
    ):
        answer = api.http.post(f"/v1/agents/{agent.id}/schedule", json={"messages": said, "schedule": bad})
        assert (answer.status_code in (400, 422), words in answer.text) == (True, True), answer.text
    private = {"messages": said, "schedule": recurring, "callback_url": "http://169.254.169.254/"}
    assert api.http.post(f"/v1/agents/{agent.id}/schedule", json=private).status_code in (400, 422)
    with pytest.raises(UnprocessableEntityError):
        schedule.create(agent.id, messages=[], schedule=recurring)  # type: ignore[arg-type]
    for _ in range(service.MOST - 3):
        schedule.create(agent.id, messages=said, schedule=recurring)  # type: ignore[arg-type]
    assert (
        "is the most"
        in api.http.post(f"/v1/agents/{agent.id}/schedule", json={"messages": said, "schedule": recurring}).text
    )
    api.client.agents.delete(agent.id)
    assert api.server.read(lambda tx: queries.count(tx, agent.id)) == 0


def test_a_time_is_sent_once_whatever_is_killed_and_those_that_passed_are_one(
    api: Api, agent: AgentState, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = api.server.runtime
    said = [{"role": "user", "content": "Each minute."}]
    made = api.client.agents.schedule.create(
        agent.id, messages=said, schedule={"type": "recurring", "cron_expression": "* * * * *"}
    )
    long_ago = runtime.store.clock.now() - 3600 * SECOND
    api.server.write(lambda tx: queries.put_off(tx, made.id, long_ago, None))

    def job() -> Any:
        one = api.server.read(lambda tx: queries.by_id(tx, made.id))
        assert one
        return service.Job(service.SEND, one.organization_id, {"schedule_id": one.id, "due_at": one.due_at})

    first = job()
    with monkeypatch.context() as killed:

        def die(*_: Any) -> None:
            raise KeyError("killed")

        killed.setattr(service, "_go_on", die)
        with pytest.raises(KeyError):
            api.server.run(service.send(runtime, first, lambda *_: None))
    for _ in range(2):  # again after the kill, and a job that somebody still had
        api.server.run(service.send(runtime, first, lambda *_: None))
    wait_for(api, agent.id, "ok")
    assert texts(api, agent.id).count("Each minute.") == 1
    later = job().payload["due_at"]
    assert 0 < later - runtime.store.clock.now() <= 60 * SECOND


def test_a_users_schedule_is_theirs_and_goes_with_them(tmp_path: Path) -> None:
    with serving(tmp_path, api_key="the-operator") as server:
        operator, ada, ben = (
            server.http(headers={"authorization": f"Bearer {key}"})
            for key in ("the-operator", server.key("ada"), server.key("ben"))
        )
        with operator, ada, ben:
            agent = ok(operator.post("/v1/agents/", json={"model": MODEL}))["id"]
            place, said = f"/v1/agents/{agent}/schedule", [{"role": "user", "content": "Mine."}]
            made = ok(ada.post(place, json={"messages": said, "schedule": soon(0.4)}))
            weekly = {"type": "recurring", "cron_expression": "@weekly"}
            kept = ok(ada.post(place, json={"messages": said, "schedule": weekly}))["id"]
            assert ok(ben.get(place))["scheduled_messages"] == []
            for method in ("GET", "DELETE"):
                assert ben.request(method, f"{place}/{made['id']}").status_code == 404
            until = time.monotonic() + LIMIT
            while "Mine." not in ada.get(f"/v1/agents/{agent}/messages").text:
                assert time.monotonic() < until
            assert "Mine." not in ben.get(f"/v1/agents/{agent}/messages").text
            assert operator.delete("/v1/users/ada").status_code in (200, 202)
            while server.read(lambda tx: queries.by_id(tx, kept)):
                assert time.monotonic() < until + LIMIT
