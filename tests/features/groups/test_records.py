"""Groups as records: created, listed, changed and deleted, and their shared blocks."""

import json
from typing import Any

import httpx2
import pytest

from tests.seams.http import ok, refused
from tests.seams.server import MODEL

Wire = dict[str, Any]


def new_agents(http: httpx2.Client, *names: str) -> list[str]:
    return [
        str(ok(http.post("/v1/agents/", json={"name": name, "model": MODEL}))["id"])
        for name in names
    ]


def new_group(http: httpx2.Client, agent_ids: list[str], **fields: Any) -> Wire:
    return dict(
        ok(
            http.post(
                "/v1/groups/", json={"agent_ids": agent_ids, "description": "A panel."} | fields
            )
        )
    )


def config(kind: str, manager: str | None = None, **fields: Any) -> Wire:
    return {"manager_type": kind} | ({"manager_agent_id": manager} if manager else {}) | fields


def owners(http: httpx2.Client, block_id: str) -> set[str]:
    return {one["id"] for one in ok(http.get(f"/v1/blocks/{block_id}/agents"))}


def test_a_group_can_be_created_read_listed_and_deleted(http: httpx2.Client) -> None:
    ada, ben, cleo = new_agents(http, "ada", "ben", "cleo")
    before = ok(http.get("/v1/groups/count"))
    group = new_group(http, [ben, ada, cleo])
    assert group["id"].startswith("group-")
    assert (group["manager_type"], group["agent_ids"], group["max_turns"]) == (
        "round_robin",
        [ben, ada, cleo],
        None,
    )
    assert ok(http.get(f"/v1/groups/{group['id']}")) == group
    hidden = new_group(http, [ada], hidden=True)
    listed = [one["id"] for one in ok(http.get("/v1/groups/"))]
    assert group["id"] in listed
    assert hidden["id"] not in listed
    assert hidden["id"] in [
        one["id"] for one in ok(http.get("/v1/groups/", params={"show_hidden_groups": True}))
    ]
    assert ok(http.get("/v1/groups/count")) == before + 2
    assert [one["id"] for one in ok(http.get(f"/v1/agents/{ada}/groups"))] == [
        hidden["id"],
        group["id"],
    ]
    for one in (group, hidden):
        assert "successfully deleted" in ok(http.delete(f"/v1/groups/{one['id']}"))["message"]
    assert http.get(f"/v1/groups/{group['id']}").status_code == 404
    assert ok(http.get(f"/v1/agents/{ada}"))["id"] == ada


def test_each_manager_type_has_its_settings_and_defaults(http: httpx2.Client) -> None:
    lead, one, two = new_agents(http, "lead", "one", "two")
    dynamic = new_group(http, [one, two], manager_config=config("dynamic", lead))
    assert (dynamic["termination_token"], dynamic["manager_agent_id"]) == ("DONE!", lead)
    for token, stored in (("END", "END"), (None, "DONE!")):
        change = {"manager_config": config("dynamic", lead, termination_token=token)}
        changed = ok(http.patch(f"/v1/groups/{dynamic['id']}", json=change))
        assert changed["termination_token"] == stored
    ok(http.delete(f"/v1/groups/{dynamic['id']}"))
    voice = new_group(
        http,
        [one],
        manager_config=config(
            "voice_sleeptime", lead, max_message_buffer_length=30, min_message_buffer_length=15
        ),
    )
    assert (voice["max_message_buffer_length"], voice["min_message_buffer_length"]) == (30, 15)
    changed = ok(
        http.patch(
            f"/v1/groups/{voice['id']}",
            json={"manager_config": config("voice_sleeptime", max_message_buffer_length=20)},
        )
    )
    assert (changed["max_message_buffer_length"], changed["min_message_buffer_length"]) == (20, 15)


@pytest.mark.parametrize(
    ("asked", "status", "words"),
    [
        ({"manager_config": {"manager_type": "swarm"}}, 400, "swarm"),
        ({"manager_config": {"manager_type": "dynamic"}}, 422, "manager_agent_id"),
        ({"manager_config": {"manager_type": "orchestra"}}, 422, ""),
        ({"agent_ids": ["{one}", "{one}"]}, 400, "twice"),
        (
            {"agent_ids": ["agent-00000000-0000-4000-8000-000000000000"]},
            404,
            "agent-00000000-0000-4000-8000-000000000000",
        ),
        ({"agent_ids": ["one"]}, 422, ""),
        (
            {"manager_config": {"manager_type": "supervisor", "manager_agent_id": "{one}"}},
            400,
            "manager",
        ),
        (
            {
                "manager_config": {"manager_type": "dynamic", "manager_agent_id": "{lead}"},
                "agent_ids": ["{one}", "{same}"],
            },
            400,
            "one",
        ),
        (
            {
                "manager_config": {
                    "manager_type": "voice_sleeptime",
                    "manager_agent_id": "{lead}",
                    "max_message_buffer_length": 4,
                    "min_message_buffer_length": 2,
                }
            },
            400,
            "greater",
        ),
        (
            {
                "manager_config": {
                    "manager_type": "voice_sleeptime",
                    "manager_agent_id": "{lead}",
                    "max_message_buffer_length": 10,
                    "min_message_buffer_length": 10,
                }
            },
            400,
            "greater",
        ),
        (
            {
                "manager_config": {
                    "manager_type": "voice_sleeptime",
                    "manager_agent_id": "{lead}",
                    "max_message_buffer_length": 10,
                }
            },
            400,
            "both",
        ),
        ({"shared_block_ids": ["block-00000000-0000-4000-8000-000000000000"]}, 404, "block-"),
    ],
)
def test_invalid_groups_are_refused_and_not_stored(
    http: httpx2.Client, asked: Wire, status: int, words: str
) -> None:
    lead, one, same = new_agents(http, "lead", "one", "one")
    text = json.dumps({"agent_ids": [one], "description": "No."} | asked)
    body = json.loads(text.replace("{one}", one).replace("{same}", same).replace("{lead}", lead))
    before = ok(http.get("/v1/groups/count"))
    answer = http.post("/v1/groups/", json=body)
    assert answer.status_code == status, answer.text
    assert words in answer.text
    assert ok(http.get("/v1/groups/count")) == before


def test_group_settings_can_be_set_to_zero_null_and_empty(http: httpx2.Client) -> None:
    one, two = new_agents(http, "one", "two")
    group = new_group(http, [one, two], manager_config=config("round_robin", max_turns=3))

    def changed(**fields: Any) -> Wire:
        return dict(ok(http.patch(f"/v1/groups/{group['id']}", json=fields)))

    assert changed(manager_config=config("round_robin", max_turns=0))["max_turns"] == 0
    assert changed(manager_config=config("round_robin", max_turns=None))["max_turns"] is None
    assert changed(description="")["description"] == ""
    assert changed(agent_ids=[two])["agent_ids"] == [two]
    assert changed(agent_ids=[])["agent_ids"] == []
    assert "cannot become" in refused(
        http.patch(f"/v1/groups/{group['id']}", json={"manager_config": config("dynamic")}), 400
    )


def test_shared_blocks_are_attached_to_current_members_and_the_manager(
    http: httpx2.Client,
) -> None:
    lead, one, two, three = new_agents(http, "lead", "one", "two", "three")
    block, later = (
        ok(http.post("/v1/blocks/", json={"label": label, "value": "x"}))["id"]
        for label in ("board", "plan")
    )
    group = new_group(
        http, [one, two], manager_config=config("supervisor", lead), shared_block_ids=[block]
    )
    assert group["shared_block_ids"] == [block]
    assert owners(http, block) == {lead, one, two}
    for _ in range(2):
        ok(http.patch(f"/v1/groups/{group['id']}/blocks/attach/{later}"))
    assert owners(http, later) == {lead, one, two}
    ok(http.patch(f"/v1/groups/{group['id']}", json={"agent_ids": [two, three]}))
    assert owners(http, block) == owners(http, later) == {lead, two, three}
    ok(http.patch(f"/v1/groups/{group['id']}/blocks/detach/{later}"))
    assert owners(http, later) == set()
    ok(http.patch(f"/v1/groups/{group['id']}", json={"shared_block_ids": []}))
    assert owners(http, block) == set()


def test_a_manager_leads_one_group_and_cannot_be_deleted(
    http: httpx2.Client,
) -> None:
    lead, one = new_agents(http, "lead", "one")
    group = new_group(http, [one], manager_config=config("supervisor", lead))
    assert ok(http.get(f"/v1/agents/{lead}"))["multi_agent_group"]["id"] == group["id"]
    body = {
        "agent_ids": [one],
        "description": "Another.",
        "manager_config": config("dynamic", lead),
    }
    assert "manages another group" in refused(http.post("/v1/groups/", json=body), 409)
    assert "Delete the group first" in refused(http.delete(f"/v1/agents/{lead}"), 409)
    ok(http.delete(f"/v1/groups/{group['id']}"))
    ok(http.delete(f"/v1/agents/{lead}"))


def test_deleting_a_member_removes_it_from_its_group(http: httpx2.Client) -> None:
    one, two = new_agents(http, "one", "two")
    group = new_group(http, [one, two])
    ok(http.delete(f"/v1/agents/{one}"))
    assert ok(http.get(f"/v1/groups/{group['id']}"))["agent_ids"] == [two]
