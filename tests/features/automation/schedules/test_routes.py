"""Schedules over HTTP and on their page, as the official client reads and writes them."""

import time
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from letta_client import BadRequestError, ConflictError, NotFoundError

from ricordo.features.automation.schedules import service
from tests.api.conftest import Api
from tests.features.automation.schedules.test_sending import HOURLY, new_agent, plan
from tests.features.web.pages.test_home import visitor
from tests.seams.http import bearer, ok, refused
from tests.seams.server import MODEL, serving

PIXEL = "iVBORw0KGgo="


def test_a_schedule_is_returned_as_it_was_created(api: Api) -> None:
    agent = new_agent(api.client)
    picture: Any = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": PIXEL},
    }
    messages: Any = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "Look."}, picture],
            "otid": "mine",
            "sender_id": "x",
        }
    ]
    at = time.time() * 1000 + 60_000
    given: Any = {
        "callback_url": "https://example.com/x",
        "max_steps": 7.0,
        "include_return_message_types": ["user_message"],
    }
    made = api.client.agents.schedule.create(
        agent, messages=messages, schedule={"scheduled_at": at}, **given
    )
    shown = api.client.agents.schedule.retrieve(made.id, agent_id=agent)
    assert shown.next_scheduled_time == made.next_scheduled_at
    assert shown.schedule.type == "one-time"
    assert shown.schedule.scheduled_at == at
    assert shown.message.messages[0].content[1].source.data == PIXEL  # type: ignore[union-attr]
    assert shown.message.messages[0].otid is None  # each due time gets its own otid
    told = (
        shown.message.callback_url,
        shown.message.max_steps,
        shown.message.include_return_message_types,
    )
    assert told == tuple(given.values())
    recurring = plan(api.client, agent)
    page = api.client.agents.schedule.list(agent, limit="1")
    assert page.has_next_page
    assert page.scheduled_messages[0].id == recurring
    last = api.client.agents.schedule.list(agent, limit="1", after=recurring)
    assert (last.has_next_page, last.scheduled_messages[0].id) == (False, made.id)
    assert api.client.agents.schedule.delete(made.id, agent_id=agent).success is True
    other = new_agent(api.client)
    for wrong in (made.id, "schedule-1"):
        with pytest.raises(NotFoundError):
            api.client.agents.schedule.retrieve(wrong, agent_id=agent)
    with pytest.raises(NotFoundError):
        api.client.agents.schedule.delete(recurring, agent_id=other)


def test_a_schedules_time_zone_falls_back_to_its_user_then_its_agent(api: Api) -> None:
    said = [{"role": "user", "content": "Good morning."}]
    people: Any = {"name": "Aiko", "identifier_key": "aiko", "identity_type": "user"}
    people["properties"] = [{"key": "timezone", "value": "Asia/Tokyo", "type": "string"}]
    ok(api.http.post("/v1/identities/", json=people))
    agent = api.client.agents.create(model=MODEL, timezone="Europe/Berlin").id

    def zone_of(schedule: dict[str, Any], user: str = "") -> tuple[str, str]:
        headers = {"x-ricordo-user": user} if user else {}
        body = {"messages": said, "schedule": {"type": "recurring", **schedule}}
        made = ok(api.http.post(f"/v1/agents/{agent}/schedule", json=body, headers=headers))
        shown = ok(api.http.get(f"/v1/agents/{agent}/schedule/{made['id']}", headers=headers))
        name = shown["schedule"]["timezone"]
        at = datetime.fromisoformat(made["next_scheduled_at"]).astimezone(ZoneInfo(name))
        return name, at.strftime("%H:%M")

    seven = {"cron_expression": "0 7 * * *"}
    assert zone_of(seven) == ("Europe/Berlin", "07:00")
    assert zone_of(seven, "aiko") == ("Asia/Tokyo", "07:00")
    assert zone_of(seven | {"timezone": "America/New_York"}, "aiko") == (
        "America/New_York",
        "07:00",
    )
    assert zone_of(seven | {"timezone": "UTC"}) == ("UTC", "07:00")
    assert zone_of({"cron_expression": "CRON_TZ=Asia/Kolkata 30 7 * * *"}) == (
        "Asia/Kolkata",
        "07:30",
    )
    # UTC is a zone like others if the expression names it.
    for prefix in ("CRON_TZ=UTC ", "TZ=UTC  ", " CRON_TZ=Etc/UTC "):
        for user in ("", "aiko"):
            name, at = zone_of({"cron_expression": f"{prefix}0 9 * * *"}, user)
            assert (name.removeprefix("Etc/"), at) == ("UTC", "09:00")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"schedule": {"scheduled_at": 1}}, "is in the past"),
    ({"schedule": {"scheduled_at": 1e300}}, "less than or equal"),
    ({"schedule": {"type": "recurring", "cron_expression": "0 0 30 2 *"}}, "never comes"),
    ({"schedule": {"type": "recurring", "cron_expression": "soon"}}, "five fields"),
    ({"schedule": {"type": "recurring", "cron_expression": "*/90 * * * *"}}, "has a step of 90"),
    (
        {
            "schedule": {
                "type": "recurring",
                "cron_expression": "0 7 * * *",
                "timezone": "Mars/Base",
            }
        },
        "is unknown",
    ),
    ({"schedule": {"type": "recurring", "cron_expression": "TZ=Mars 0 7 * * *"}}, "is unknown"),
    ({"schedule": {"type": "weekly"}}, "one-time"),
    ({"messages": []}, "at least 1"),
    ({"messages": [{"role": "user", "content": []}]}, "no message to answer"),
    ({"messages": [{"type": "approval", "approve": True}]}, "role"),
    (
        {
            "messages": [
                {"role": "user", "content": [{"type": "image", "source": {"url": "http://x"}}]}
            ]
        },
        "base64",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {"data": "%"}}]}]},
        "not base64",
    ),
    ({"messages": [{"role": "user", "content": "x" * 1_000_001}]}, "longer than"),
    ({"callback_url": "http://127.0.0.1/x"}, "RICORDO_ALLOW_PRIVATE_CALLBACKS"),
    ({"callback_url": "http://169.254.169.254/"}, "RICORDO_ALLOW_PRIVATE_CALLBACKS"),
    ({"include_return_message_types": ["x"]}, "pattern"),
    ({"max_steps": 0}, "greater than"),
]


@pytest.mark.parametrize(("given", "words"), WRONG, ids=[words for _, words in WRONG])
def test_invalid_schedules_are_refused_with_a_reason(
    api: Api, given: dict[str, Any], words: str
) -> None:
    agent = new_agent(api.client)
    body = {"messages": [{"role": "user", "content": "Hello."}], "schedule": HOURLY} | given
    answer = api.http.post(f"/v1/agents/{agent}/schedule", json=body)
    assert 400 <= answer.status_code < 500
    assert words in answer.text
    assert api.client.agents.schedule.list(agent).scheduled_messages == []


def test_an_agent_has_a_limited_number_of_schedules(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_SCHEDULES", 2)
    agent = new_agent(api.client)
    ids = [plan(api.client, agent) for _ in range(2)]
    with pytest.raises(ConflictError, match="Delete one"):
        plan(api.client, agent)
    api.client.agents.schedule.delete(ids[0], agent_id=agent)
    plan(api.client, agent)


def test_schedules_need_an_api_key_and_users_delete_only_their_own(tmp_path: Any) -> None:
    with serving(tmp_path, api_key="operator") as server:
        boss, ada = server.client(api_key="operator"), server.client(api_key=server.key("ada"))
        agent = new_agent(boss)
        shared = plan(boss, agent)
        with server.http(headers=bearer(server.key("ada", kind="session"))) as http:
            body = {"messages": [{"role": "user", "content": "Hello."}], "schedule": HOURLY}
            assert "with an API key" in refused(
                http.post(f"/v1/agents/{agent}/schedule", json=body), 403
            )
        with server.http(headers=bearer(ada.api_key)) as http:
            assert "shared" in refused(http.delete(f"/v1/agents/{agent}/schedule/{shared}"), 403)
            assert (
                ok(http.get(f"/v1/agents/{agent}/schedule"))["scheduled_messages"][0]["id"]
                == shared
            )


def test_the_schedules_page_lists_and_deletes_schedules(tmp_path: Any) -> None:
    with visitor(tmp_path) as browser:
        assert "Nothing is sent to an agent later" in browser.get("/ui/schedules").text
        agent = browser.post(
            "/v1/agents/", json={"name": "<Nina>", "model": "ricordo/librarian"}
        ).json()["id"]
        body = {"messages": [{"role": "user", "content": "<i>Water</i>"}], "schedule": HOURLY}
        id = browser.post(f"/v1/agents/{agent}/schedule", json=body).json()["id"]
        page = browser.get("/ui/schedules").text
        for words in ("&lt;Nina&gt;", "&lt;i&gt;Water&lt;/i&gt;", "0 * * * *", "<time"):
            assert words in page
        gone = browser.post(f"/ui/schedules/{agent}/{id}/delete")
        assert gone.headers["location"] == "/ui/schedules"
        assert "Nothing is sent to an agent later" in browser.get("/ui/schedules").text


def test_schedules_of_unknown_agents_and_incomplete_schedules_are_refused(api: Api) -> None:
    body: Any = {"messages": [{"role": "user", "content": "x"}], "schedule": HOURLY}
    with pytest.raises(NotFoundError):
        api.client.agents.schedule.create("agent-00000000-0000-4000-8000-000000000000", **body)
    with pytest.raises(BadRequestError):
        api.client.agents.schedule.create(
            new_agent(api.client), **{**body, "schedule": {"scheduled_at": 5}}
        )
