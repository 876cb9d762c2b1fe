"""Export and import of agents that manage a group, with its members and shared blocks."""

import copy
from typing import Any

import pytest

from tests.api.conftest import Api
from tests.features.documents.agent_files.test_round_trip import export
from tests.seams.http import Wire, ok
from tests.seams.server import MODEL

KINDS = {
    "supervisor": {},
    "dynamic": {"max_turns": 3, "termination_token": "OVER"},
    "sleeptime": {"sleeptime_agent_frequency": 7},
    "voice_sleeptime": {"max_message_buffer_length": 30, "min_message_buffer_length": 15},
}


def new_agent(api: Api, name: str, **more: Any) -> str:
    blocks = [{"label": "persona", "value": f"I am {name}."}]
    return str(api.client.agents.create(name=name, model=MODEL, memory_blocks=blocks, **more).id)  # type: ignore[arg-type]


def import_file(api: Api, file: Any, **form: Any) -> Wire:
    import json

    files = {"file": ("agent.af", json.dumps(file).encode())}
    return dict(ok(api.http.post("/v1/agents/import", files=files, data=form)))


def blocks_of(api: Api, agent_id: str) -> dict[str, str]:
    return {
        block["label"]: block["id"]
        for block in ok(api.http.get(f"/v1/agents/{agent_id}"))["blocks"]
    }


def group_of(api: Api, agent_id: str) -> Wire:
    return dict(ok(api.http.get(f"/v1/agents/{agent_id}"))["multi_agent_group"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_is_imported_with_new_agents_and_shared_blocks(api: Api, kind: str) -> None:
    manager, *members = (new_agent(api, name) for name in ("Mia", "Noa", "Ole"))
    plan = ok(api.http.post("/v1/blocks/", json={"label": "plan", "value": "Begin."}))["id"]
    config = {"manager_type": kind, "manager_agent_id": manager, **KINDS[kind]}
    body = {
        "agent_ids": members,
        "description": "Tutors.",
        "manager_config": config,
        "shared_block_ids": [plan],
    }
    before = ok(api.http.post("/v1/groups/", json=body))
    file = export(api, manager)
    assert [agent["name"] for agent in file["agents"]] == ["Mia", "Noa", "Ole"]
    assert file["groups"][0]["agent_ids"] == ["agent-1", "agent-2"]
    assert file["groups"][0]["manager_config"] == {**config, "manager_agent_id": "agent-0"}
    assert not [id for id in (*members, manager, plan, before["id"]) if id in str(file["groups"])]
    answer = import_file(api, file)
    assert not [line for line in answer["warnings"] if "roup" in line]
    new_manager, *new_members = answer["agent_ids"]
    group = group_of(api, new_manager)
    changed = {"id", "agent_ids", "manager_agent_id", "shared_block_ids"}
    assert {name: group[name] for name in group.keys() - changed} == {
        name: before[name] for name in before.keys() - changed
    }
    assert (group["agent_ids"], group["id"] != before["id"]) == (new_members, True)
    shared = {blocks_of(api, id)["plan"] for id in answer["agent_ids"]}
    assert group["shared_block_ids"] == list(shared)
    assert shared != {plan}
    personas = {blocks_of(api, id)["persona"] for id in answer["agent_ids"]}
    assert len(personas) == 3
    # The copy exports the same file.
    again = export(api, new_manager)
    assert again["groups"] == file["groups"]
    assert [one["block_ids"] for one in again["agents"]] == [
        one["block_ids"] for one in file["agents"]
    ]


@pytest.mark.parametrize("is_on", [True, False])
def test_a_sleeptime_pair_is_imported_as_exported(api: Api, is_on: bool) -> None:
    main = new_agent(api, "Pia", enable_sleeptime=True)
    if not is_on:
        ok(api.http.patch(f"/v1/agents/{main}", json={"enable_sleeptime": False}))
    (sleeper,) = group_of(api, main)["agent_ids"]
    file = export(api, main)
    answer = import_file(api, file, name="Quin")
    new_main, new_sleeper = answer["agent_ids"]
    state = ok(api.http.get(f"/v1/agents/{new_main}"))
    assert (state["name"], bool(state["enable_sleeptime"])) == ("Quin", is_on)
    assert state["multi_agent_group"]["agent_ids"] == [new_sleeper]
    theirs = ok(api.http.get(f"/v1/agents/{new_sleeper}"))
    assert theirs["agent_type"] == "sleeptime_agent"
    assert blocks_of(api, new_main).items() <= blocks_of(api, new_sleeper).items()
    assert {tool["name"] for tool in theirs["tools"]} == {
        tool["name"] for tool in ok(api.http.get(f"/v1/agents/{sleeper}"))["tools"]
    }
    ok(api.http.delete(f"/v1/agents/{new_main}"))
    assert api.http.get(f"/v1/agents/{new_sleeper}").status_code == 404


def test_a_file_that_enables_sleeptime_without_a_group_gets_a_pair(api: Api) -> None:
    file = export(api, new_agent(api, "Rob"))
    file["agents"][0]["enable_sleeptime"] = True
    (agent,) = import_file(api, file)["agent_ids"]
    assert group_of(api, agent)["manager_type"] == "sleeptime"


def test_a_group_with_a_missing_member_imports_its_agents_only(api: Api) -> None:
    manager, member = new_agent(api, "Sol"), new_agent(api, "Tom")
    config = {"manager_type": "supervisor", "manager_agent_id": manager}
    ok(
        api.http.post(
            "/v1/groups/", json={"agent_ids": [member], "description": "", "manager_config": config}
        )
    )
    file = copy.deepcopy(export(api, manager))
    del file["agents"][1]
    answer = import_file(api, file)
    assert [
        line
        for line in answer["warnings"]
        if "Groups: one is left out" in line and "agent-1" in line
    ]
    assert len(answer["agent_ids"]) == 1


def test_group_messages_stay_with_each_agent_and_refer_to_the_new_group(api: Api) -> None:
    manager, member = new_agent(api, "Ugo"), new_agent(api, "Val")
    config = {"manager_type": "dynamic", "manager_agent_id": manager, "max_turns": 1}
    body = {"agent_ids": [member], "description": "", "manager_config": config}
    group = ok(api.http.post("/v1/groups/", json=body))["id"]
    api.server.answers_with(
        lambda request: "Val" if "speaks next" in request.messages[-1].text else "Tea."
    )
    said = {"messages": [{"role": "user", "content": "What do you drink?"}]}
    ok(api.http.post(f"/v1/groups/{group}/messages", json=said))
    file = export(api, manager)
    assert group not in str(file)
    new_manager, new_member = import_file(api, file)["agent_ids"]
    new_group = group_of(api, new_manager)["id"]
    held = ok(api.http.get(f"/v1/agents/{new_member}/messages", params={"group_id": new_group}))
    assert "Tea." in [one.get("content") for one in held]
    old = ok(api.http.get(f"/v1/groups/{group}/messages", params={"limit": 100}))
    assert [one.get("content") for one in old].count("Tea.") == 1
