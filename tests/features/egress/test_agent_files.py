"""Policies in agent files and templates: no policy is lost, and an invalid file allows no model."""

import json
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ricordo.domain.egress import Destination, permits, read_label
from ricordo.storage.conversations import default_id
from tests.features.egress.providers import CLOUD, LOCAL, World
from tests.features.egress.test_blocks import agent_of, allow, block_of, say, switch
from tests.features.egress.test_fields import SCHEMA, TEXT
from tests.seams.http import Wire, ok

CANARY = "Has the illness vuq-file."


def export(http: httpx2.Client, agent: str) -> Wire:
    return dict(ok(http.get(f"/v1/agents/{agent}/export")))


def import_agent(http: httpx2.Client, file: Wire) -> str:
    content = ("agent.af", json.dumps(file).encode())
    (made,) = ok(http.post("/v1/agents/import", files={"file": content}))["agent_ids"]
    return str(made)


def allowed(http: httpx2.Client, path: str) -> Any:
    return ok(http.get(f"/v1/{path}/egress"))["allowed"]


def threads_of(http: httpx2.Client, agent: str) -> dict[str, str]:
    listed = ok(http.get("/v1/conversations/", params={"agent_id": agent}))
    return {thread["summary"]: thread["id"] for thread in listed}


def test_egress_policies_are_exported_and_imported(world: World, http: httpx2.Client) -> None:
    agent = agent_of(http, ("human", CANARY), ("open", "Likes tea."), model=LOCAL)
    allow(http, f"blocks/{block_of(http, agent, 'human')}", "local", "unknown-provider")
    body = {"agent_id": agent, "summary": "Private"}
    thread = ok(http.post("/v1/conversations/", params={"agent_id": agent}, json=body))["id"]
    messages = {"messages": [{"role": "user", "content": "vuq-thread"}], "streaming": False}
    ok(http.post(f"/v1/conversations/{thread}/messages", json=messages))
    allow(http, f"conversations/{thread}", "local")
    folder = ok(http.post("/v1/folders/", json={"name": f"Shelf of {agent}"}))["id"]
    ok(http.patch(f"/v1/agents/{agent}/folders/attach/{folder}"))
    allow(http, f"folders/{folder}")
    file = export(http, agent)

    made = import_agent(http, file)

    assert allowed(http, f"blocks/{block_of(http, made, 'human')}") == ["local", "unknown-provider"]
    assert allowed(http, f"blocks/{block_of(http, made, 'open')}") is None
    assert allowed(http, f"conversations/{threads_of(http, made)['Private']}") == ["local"]
    (shelf,) = ok(http.get(f"/v1/agents/{made}/folders"))
    assert allowed(http, f"folders/{shelf['id']}") == []
    assert "unknown-provider" in file["blocks"][0]["egress"]
    again = export(http, made)
    assert again["blocks"] == file["blocks"]
    (part,), (part_again,) = (f["ricordo"]["agents"].values() for f in (file, again))
    (private,), (private_again,) = part["conversations"], part_again["conversations"]
    assert {message["egress"] for message in private["messages"][1:]} == {"local"}
    assert private_again["messages"][1:] == private["messages"][1:]
    switch(http, made, CLOUD)
    say(http, made, "Hello.")
    assert "Likes tea." in world.cloud.last
    assert not world.cloud.saw("vuq-file")


def test_the_default_conversations_policy_is_exported_and_imported(
    world: World, http: httpx2.Client
) -> None:
    agent = agent_of(http, model=LOCAL)
    say(http, agent, "vuq-default")
    allow(http, f"conversations/{default_id(agent)}", "local")
    made = import_agent(http, export(http, agent))
    switch(http, made, CLOUD)
    sent = {"messages": [{"role": "user", "content": "Hello."}]}
    assert "egress policy" in http.post(f"/v1/agents/{made}/messages", json=sent).text
    assert not world.cloud.saw("vuq-default")


def test_a_schema_fields_policy_limits_the_whole_imported_block(
    world: World, http: httpx2.Client
) -> None:
    folder = world.server.settings.data_dir / "block_schemas"
    folder.mkdir(exist_ok=True)
    (folder / "student.toml").write_text(SCHEMA)
    blocks = [{"label": "student", "value": TEXT, "schema_ref": "student"}]
    agent = ok(http.post("/v1/agents/", json={"model": CLOUD, "memory_blocks": blocks}))["id"]
    made = import_agent(http, export(http, agent))
    assert allowed(http, f"blocks/{block_of(http, made, 'student')}") == ["local"]
    say(http, made, "Hello.")
    assert not world.cloud.saw("vuqkzoq-field")


@pytest.mark.parametrize(
    "policy", [["local"], {"allowed": ["openai"]}, 5, True, "", "o p", "openai;;", "nobody,openai"]
)
def test_an_invalid_policy_in_a_file_allows_no_model(
    world: World, http: httpx2.Client, policy: Any
) -> None:
    file = export(http, agent_of(http, ("human", CANARY)))
    file["blocks"][0]["egress"] = policy
    file["sources"] = [{"id": "source-0", "name": "Shelf", "egress": policy}]
    file["agents"][0]["folder_ids"] = ["source-0"]
    (part,) = file["ricordo"]["agents"].values()
    part["egress"] = policy
    made = import_agent(http, file)
    (shelf,) = ok(http.get(f"/v1/agents/{made}/folders"))
    assert allowed(http, f"folders/{shelf['id']}") == []
    assert allowed(http, f"blocks/{block_of(http, made, 'human')}") == []
    sent = {"messages": [{"role": "user", "content": "Hello."}]}
    assert "egress policy" in http.post(f"/v1/agents/{made}/messages", json=sent).text
    assert not world.cloud.saw("vuq-file")


@given(value=st.none() | st.integers() | st.lists(st.text()) | st.text(";,ab :-", max_size=20))
def test_a_parsed_policy_label_never_allows_unnamed_destinations(value: Any) -> None:
    label = read_label(value)
    assert (label is None) == (value is None)
    assert read_label(label) == label
    if label is not None:
        assert not permits(label, Destination("openai", is_local=True))


def test_a_template_keeps_policies_and_a_migration_only_tightens_them(
    world: World, http: httpx2.Client, quick_jobs: None
) -> None:
    agent = agent_of(http, ("human", CANARY), ("rules", "Be kind vuq-rule."), name="Private")
    allow(http, f"blocks/{block_of(http, agent, 'human')}", "local")
    ok(http.post("/v1/templates", json={"type": "agent", "agent_id": agent, "name": "Private"}))
    (made,) = ok(http.post("/v1/templates/Private:latest/agents", json={}))["agent_ids"]
    assert allowed(http, f"blocks/{block_of(http, made, 'human')}") == ["local"]
    assert allowed(http, f"blocks/{block_of(http, made, 'rules')}") is None

    allow(http, f"blocks/{block_of(http, agent, 'human')}")
    allow(http, f"blocks/{block_of(http, agent, 'rules')}", "local")
    answer = http.post("/v1/templates/Private/save", json={"migrate_agents": True})
    while ok(http.get(f"/v1/jobs/{answer.headers['x-job-id']}"))["status"] != "completed":
        pass

    assert allowed(http, f"blocks/{block_of(http, made, 'human')}") == []
    assert allowed(http, f"blocks/{block_of(http, made, 'rules')}") == ["local"]
    say(http, made, "Hello.")
    assert not world.cloud.saw("vuq-")
