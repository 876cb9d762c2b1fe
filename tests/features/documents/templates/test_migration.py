"""Agents that are migrated to a new version of their template.

The tests check what changes, what stays, what waits for approval, and kills.
"""

import asyncio
import json
import time
from typing import Any

import pytest

from ricordo.errors import Conflict
from ricordo.features.documents.templates import jobs as migration
from ricordo.llm.scripted import call
from ricordo.storage import jobs
from tests.api.conftest import Api
from tests.features.documents.agent_files.test_round_trip import ADD
from tests.features.documents.templates.test_templates import make, save_and_migrate, values
from tests.seams.http import ok
from tests.seams.server import Gate
from tests.seams.stores import killed_after


def change(api: Api, agent: str, label: str, **changes: Any) -> None:
    api.client.agents.blocks.update(label, agent_id=agent, **changes)


def deploy(api: Api, template: str, **more: Any) -> str:
    (made,) = api.client.templates.agents.create(f"{template}:latest", **more).agent_ids
    return made


def histories(api: Api, agent: str) -> dict[str, list[str]]:
    held = api.client.agents.retrieve(agent).blocks
    return {
        one.label or "": [v["message"] for v in ok(api.http.get(f"/v1/blocks/{one.id}/history"))]
        for one in held
    }


def test_a_migration_updates_an_agent_but_keeps_its_own_changes(api: Api) -> None:
    tool = api.client.tools.upsert(source_code=ADD)
    agent = make(api, secrets={"A": "a", "B": "b"}, max_files_open=3)
    template = api.client.templates.create(type="agent", agent_id=agent, name="Follow")
    one = deploy(
        api,
        "Follow",
        memory_variables={"name": "Ada"},
        tool_variables={"B": "mine", "C": "own"},
        tags=["own"],
    )
    api.server.says("Hello.")
    api.client.agents.messages.create(one, input="Hi.")
    api.client.agents.passages.create(one, text="Bees dance.")
    change(api, one, "human", value="Ada likes tea.")
    fresh = api.client.blocks.create(label="fresh", value="New.")
    api.client.agents.blocks.attach(fresh.id, agent_id=agent)
    api.client.agents.update(
        agent,
        system="You ask.",
        tool_ids=[tool.id],
        tags=["t"],
        secrets={"A": "", "D": ""},
        max_files_open=4,
    )
    change(api, agent, "rules", value="Be brief.", description="How to be.", read_only=True)
    before = api.http.get(f"/v1/agents/{one}/messages").text
    job = save_and_migrate(api, "Follow")
    assert job["metadata"]["progress"] == {"done": 1, "total": 1}
    state = api.client.agents.retrieve(one)
    assert (state.system, sorted(state.tags), state.max_files_open) == ("You ask.", ["own", "t"], 4)
    assert [tool.name for tool in state.tools] == ["add_up"]
    assert [secret.key for secret in state.secrets or ()] == ["A", "D"]
    assert values(api, one) == {
        "human": "My name is Ada. {{other}}",
        "rules": "Be brief.",
        "fresh": "New.",
    }
    rules = next(block for block in state.blocks if block.label == "rules")
    assert (rules.description, rules.read_only) == ("How to be.", True)
    assert histories(api, one)["human"] == [
        "Bring to the template Follow:2",
        histories(api, one)["human"][1],
        histories(api, one)["human"][2],
    ]
    # The new block belongs to this agent. The first agent's block is not attached to it.
    assert fresh.id not in [block.id for block in state.blocks]
    assert (state.name, state.base_template_id) == (
        api.client.agents.retrieve(one).name,
        template.id,
    )
    assert api.client.agents.list(template_id=state.template_id or "").items[0].id == one
    assert api.http.get(f"/v1/agents/{one}/messages").text == before
    assert [one.text for one in api.client.agents.passages.list(one)] == ["Bees dance."]
    # The agent's next turn has the new prompt.
    api.server.says("Yes.")
    api.client.agents.messages.create(one, input="And now?")
    asked = api.server.model.requests[-1].messages
    assert ("You ask." in asked[0].text, "Be brief." in asked[0].text, asked[1].text) == (
        True,
        True,
        "Hi.",
    )


def test_a_migration_keeps_the_parts_that_it_was_told_to_keep(api: Api) -> None:
    folders = {name: api.client.folders.create(name=name).id for name in ("First", "Second", "Own")}
    agent = make(api, secrets={"A": "a"}, folder_ids=[folders["First"]])
    api.client.templates.create(type="agent", agent_id=agent, name="Keep")
    keeps, loses = (deploy(api, "Keep", tool_variables={"OWN": "x"}) for _ in range(2))
    for id in (keeps, loses):
        api.client.agents.folders.attach(folders["Own"], agent_id=id)
        change(api, id, "human", value="Ada.")
    api.client.agents.update(agent, folder_ids=[folders["Second"]])
    human = api.client.agents.blocks.retrieve("human", agent_id=agent)
    change(api, agent, "human", value="Nobody.", description="The person.")
    api.client.blocks.delete(
        next(one.id for one in api.client.agents.retrieve(agent).blocks if one.label == "rules")
    )
    preserved = {
        f"preserve_{name}_on_migration": True
        for name in ("core_memories", "environment_variables", "sources")
    }
    save_and_migrate(api, "Keep", **preserved)
    for id in (keeps, loses):
        assert values(api, id) == {"human": "Ada.", "rules": "Be kind."}
        assert api.client.agents.blocks.retrieve("human", agent_id=id).description == "The person."
        assert sorted(secret.key for secret in api.client.agents.retrieve(id).secrets or ()) == [
            "A",
            "OWN",
        ]
        assert {one.name for one in api.client.agents.folders.list(id)} == {
            "First",
            "Second",
            "Own",
        }
    save_and_migrate(api, "Keep", block_reconciliation_strategy="reconcile-all")
    for id in (keeps, loses):
        assert values(api, id) == {"human": "Nobody."}
        assert [secret.key for secret in api.client.agents.retrieve(id).secrets or ()] == ["A"]
        assert [one.name for one in api.client.agents.folders.list(id)] == ["Second"]
        assert "grep_files" in [tool.name for tool in api.client.agents.retrieve(id).tools]
    assert human.id


def test_a_migration_follows_the_policies_of_blocks(api: Api) -> None:
    ok(api.http.put("/users/cleo/blocks/notes", json={"body": "Cleo's.", "policy": "direct"}))
    labels = ("free", "guarded", "asked", "explicit", "locked", "going")
    agent = make(api, memory_blocks=[{"label": label, "value": "One."} for label in labels])
    api.client.templates.create(type="agent", agent_id=agent, name="Ask")
    one = deploy(api, "Ask")
    ids = {block.label: block.id for block in api.client.agents.retrieve(one).blocks}
    policies = {
        "guarded": "guarded",
        "asked": "propose",
        "explicit": "explicit",
        "locked": "read_only",
        "going": "propose",
    }
    for label, policy in policies.items():
        ok(api.http.patch(f"/v1/blocks/{ids[label]}", json={"policy": policy}))
    shared = api.client.blocks.create(label="shared", value="Ours.")
    api.client.agents.blocks.attach(shared.id, agent_id=one)
    theirs = ok(api.http.get("/v1/blocks/", params={"label": "notes"}))[0]["id"]
    api.client.agents.blocks.attach(theirs, agent_id=one)
    for label in labels[:-1]:
        change(api, agent, label, value="Two.", description="Other.")
    api.client.blocks.delete(api.client.agents.blocks.retrieve("going", agent_id=agent).id)
    save_and_migrate(api, "Ask", block_reconciliation_strategy="reconcile-all")
    held = {
        block["label"]: block for block in ok(api.http.get(f"/v1/agents/{one}/core-memory/blocks"))
    }
    texts = {label: block["value"] for label, block in held.items()}
    assert texts == {
        "free": "Two.",
        "guarded": "Two.",
        "asked": "One.",
        "explicit": "One.",
        "locked": "Two.",
        "going": "One.",
    }
    assert {held[label]["policy"] for label in ("asked", "explicit", "going")} == {
        "propose",
        "explicit",
    }
    assert held["locked"]["policy"] == "read_only"
    # Blocks of others may be detached, but not changed. Users' blocks are not even detached.
    assert ok(api.http.get(f"/v1/blocks/{shared.id}"))["value"] == "Ours."
    assert [one_["id"] for one_ in ok(api.http.get(f"/v1/blocks/{theirs}/agents"))] == [one]
    assert ok(api.http.get("/users/cleo/blocks/notes"))["body"] == "Cleo's."
    waiting = {
        label: ok(api.http.get(f"/v1/blocks/{ids[label]}/diffs"))
        for label in ("asked", "explicit", "going")
    }
    assert [len(found) for found in waiting.values()] == [1, 1, 1], waiting
    # A second migration proposes nothing new.
    save_and_migrate(api, "Ask", block_reconciliation_strategy="reconcile-all")
    assert len(ok(api.http.get(f"/v1/blocks/{ids['asked']}/diffs"))) == 1
    ok(
        api.http.post(
            f"/v1/blocks/{ids['asked']}/diffs/{waiting['asked'][0]['id']}/approve", json={}
        )
    )
    assert values(api, one)["asked"] == "Two."


def test_a_migration_killed_at_any_write_migrates_each_agent_once(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = make(api)
    api.client.templates.create(type="agent", agent_id=agent, name="Kill")
    made = [deploy(api, "Kill") for _ in range(4)]
    api.client.agents.delete(made[3])
    change(api, agent, "rules", value="Two.")
    waiting: list[Any] = []
    monkeypatch.setattr(
        jobs, "add", lambda _tx, job: waiting.append(job) if job.kind == migration.MIGRATE else job
    )
    assert api.client.templates.save("Kill", migrate_agents=True).latest_version == "2"
    change(api, agent, "rules", value="Three.")
    assert api.client.templates.save("Kill", migrate_agents=True).latest_version == "3"
    monkeypatch.undo()
    older, newer = waiting
    runtime = api.server.runtime

    async def run(job: Any) -> int:
        kills = 0
        for _ in range(10):
            with killed_after(runtime, 1):
                try:
                    await migration.migrate(runtime, job, lambda _done, _total: None)
                    break
                except asyncio.CancelledError:
                    kills += 1
        return kills

    assert api.server.run(run(newer)) > 0
    # A late job moves no agent to an older version.
    api.server.run(run(older))
    api.server.run(run(newer))
    for id in made[:3]:
        assert values(api, id)["rules"] == "Three."
        assert histories(api, id)["rules"].count("Bring to the template Kill:3") == 1
        assert "Bring to the template Kill:2" not in histories(api, id)["rules"]
    api.client.templates.delete("Kill")
    assert api.server.run(run(newer)) == 0


def test_agents_migrated_to_a_tool_with_approval_get_its_rule(api: Api) -> None:
    agent = make(api, include_base_tools=False)
    api.client.templates.create(type="agent", agent_id=agent, name="Gate")
    one = deploy(api, "Gate")
    tool = api.client.tools.upsert(
        source_code=ADD.replace("add_up", "pay_up"), default_requires_approval=True
    )
    file = json.loads(api.client.agents.export_file(agent))
    file["tools"] = [{"id": "tool-0", "name": tool.name, "tool_type": "custom"}]
    file["agents"][0]["tool_ids"] = ["tool-0"]
    api.client.templates.update("Gate", agent_file_json=file)
    save_and_migrate(api, "Gate")
    state = api.client.agents.retrieve(one)
    assert [(rule.type, rule.tool_name) for rule in state.tool_rules or ()] == [
        ("requires_approval", "pay_up")
    ]
    assert [tool.name for tool in state.tools] == ["pay_up"]


def test_a_migration_attaches_a_detached_block_again(api: Api) -> None:
    agent = make(api)
    api.client.templates.create(type="agent", agent_id=agent, name="Loose")
    one = deploy(api, "Loose")
    block = api.client.agents.blocks.retrieve("rules", agent_id=one)
    api.client.agents.blocks.detach(block.id or "", agent_id=one)
    change(api, agent, "rules", value="Two.")
    save_and_migrate(api, "Loose")
    assert values(api, one)["rules"] == "Two."
    assert api.client.agents.blocks.retrieve("rules", agent_id=one).id == block.id


def test_a_failed_migration_of_one_agent_is_reported_and_others_continue(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = make(api)
    api.client.templates.create(type="agent", agent_id=agent, name="Stuck")
    made = [deploy(api, "Stuck") for _ in range(3)]
    change(api, agent, "rules", value="Two.")
    bring = migration.bring

    def fails(tx: Any, agent_id: str, **more: Any) -> None:
        bring(tx, agent_id=agent_id, **more)
        if agent_id == made[1]:
            raise Conflict("It does not want to.")

    with monkeypatch.context() as patched:
        patched.setattr(migration, "bring", fails)
        answer = api.client.templates.with_raw_response.save("Stuck", migrate_agents=True)
        place = f"/v1/jobs/{answer.headers['x-job-id']}"
        while not (told := ok(api.http.get(place))["metadata"]).get("error"):
            time.sleep(0.01)
    assert f"1 of 3 agents could not be brought to Stuck:2. {made[1]}: It does not want to." in str(
        told["error"]
    )
    # Nothing of the failed migration is stored.
    assert [values(api, id)["rules"] for id in made] == ["Two.", "Be kind.", "Two."]
    versions = [api.client.agents.retrieve(id).template_id for id in made]
    assert (versions[0] == versions[2], versions[0] == versions[1]) == (True, False)


def test_a_migration_merges_with_an_edit_of_a_running_turn(api: Api) -> None:
    agent = make(api, memory_blocks=[{"label": "rules", "value": "One.\nTwo.\nThree.\n"}])
    api.client.templates.create(type="agent", agent_id=agent, name="Turn")
    one = deploy(api, "Turn")
    change(api, agent, "rules", value="One!\nTwo.\nThree.\n")
    gate = Gate(
        api.server, call("memory_replace", label="rules", old_string="Three.", new_string="3.")
    )
    lines = [gate, None]

    async def answer(request: Any) -> Any:
        line = lines.pop(0) if lines else None
        return await line(request) if line else "Done."

    api.server.answers_with(answer)
    run = ok(api.http.post(f"/v1/agents/{one}/messages/async", json={"input": "Go."}))
    gate.wait()
    save_and_migrate(api, "Turn")
    gate.open()
    while ok(api.http.get(f"/v1/runs/{run['id']}"))["status"] in ("created", "running"):
        pass
    assert values(api, one) == {"rules": "One!\nTwo.\n3.\n"}
