"""Export and import of memory history, pending proposals and schedules.

The copies are equal, and no author can be forged.
"""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from ricordo.features.documents.agent_files import memory as exported_memory
from ricordo.llm.scripted import call
from tests.api.conftest import Api
from tests.features.documents.agent_files.test_round_trip import export, import_agent
from tests.seams.http import Wire, ok
from tests.seams.server import MODEL, serving
from tests.support import postgres

BOTH = ("sqlite", pytest.param("postgresql", marks=pytest.mark.soak))
# The text of the block after the agent's edits.
TEXT = "Ada of Turin.\n\nLikes tea."
YEAR = 365 * 24 * 3600 * 1000  # milliseconds


@pytest.fixture(scope="module", params=BOTH)
def api(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """Run a server for the tests of this module, on each database."""
    url = None if request.param == BOTH[0] else postgres.server().new_database()
    place = {} if url is None else {"database_url": url}
    with (
        serving(tmp_path_factory.mktemp("data") / "data", **place) as server,
        server.http() as http,
        server.client() as client,
    ):
        yield Api(server, client, http)
    if url:
        postgres.server().drop(url)


@pytest.fixture(autouse=True)
def forget(api: Api) -> None:
    api.server.forget()


def memory(file: Wire) -> Wire:
    told: Wire = file["ricordo"]["agents"]["agent-0"]["memory"]
    return told


def make_agent(api: Api) -> str:
    """Make an agent with history, a deleted block, a hidden one, two proposals and a schedule."""
    client = api.client
    agent = client.agents.create(
        model=MODEL,
        name="Tutor",
        memory_blocks=[
            {"label": "human", "value": "Ada.\n"},
            {"label": "old", "value": "Goes."},
            {"label": "spare", "value": "Kept aside."},
        ],
        tools=["memory_insert", "memory_replace"],
        include_base_tools=False,
    ).id
    client.agents.blocks.update("human", agent_id=agent, value="Ada of Turin.\n")
    api.server.says(call("memory_insert", label="human", new_string="Likes tea."), "Noted.")
    client.agents.messages.create(agent, input="I like tea.")
    own = {block.label: block.id for block in client.agents.blocks.list(agent)}
    client.agents.blocks.detach(own["spare"], agent_id=agent)
    client.blocks.delete(own["old"])
    ok(api.http.patch(f"/v1/blocks/{own['human']}", json={"label": "person", "policy": "propose"}))
    for old, new in (("Likes tea.", "Likes green tea."), ("Ada of Turin.", "Ada of Rome.")):
        edit = call("memory_replace", label="person", old_string=old, new_string=new)
        api.server.says(edit, "Proposed.")
        client.agents.messages.create(agent, input=f"{new}, please.")
    when = {"type": "recurring", "cron_expression": "0 9 * * MON"}
    body = {
        "messages": [{"role": "user", "content": "Plan the week."}],
        "schedule": when,
        "max_steps": 3,
    }
    ok(
        api.http.post(
            f"/v1/agents/{agent}/schedule",
            json=body | {"callback_url": "https://hooks.example/x?key=hush"},
        )
    )
    return agent


def test_a_file_says_how_many_versions_are_too_many(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = make_agent(api)
    shared = api.client.blocks.create(label="plan", value="Plan 0.").id
    api.client.agents.blocks.attach(shared, agent_id=agent)
    for number in range(1, 7):
        api.client.blocks.update(shared, value=f"Plan {number}.")
        if number == 3:
            ok(api.http.patch(f"/v1/blocks/{shared}", json={"label": "weeks"}))
    own = len(memory(export(api, make_agent(api)))["versions"])
    whole = memory(export(api, agent))
    assert len(whole["versions"]) == own + 8
    monkeypatch.setattr(exported_memory, "MOST_VERSIONS", 4)
    cut = memory(export(api, agent))
    assert cut["versions_left_out"] == own + 8
    assert not cut.keys() & {"versions", "proposals"}


def test_history_proposals_and_schedules_survive_export_and_import(api: Api) -> None:
    agent = make_agent(api)
    file = export(api, agent)
    told = memory(file)
    assert [(one["label"], one["value"]) for one in told["versions"]] == [
        ("human", "Ada.\n"),
        ("old", "Goes."),
        ("spare", "Kept aside."),
        ("human", "Ada of Turin.\n"),
        ("human", TEXT),
        ("old", None),
        ("person", TEXT),
    ]
    assert told["versions"][4]["author"] == f"Tutor <{agent}@ricordo>"
    assert [one["value"] for one in told["proposals"]] == [
        TEXT.replace("Likes tea", "Likes green tea"),
        TEXT.replace("Turin", "Rome"),
    ]
    assert "hush" not in json.dumps(file)
    (first, second) = (import_agent(api, file, extra_body={"schedules": True}) for _ in range(2))
    for made in (first, second):
        again = export(api, made)
        # The ids of versions are equal, although they were computed and not copied.
        assert memory(again) == told
        assert again["blocks"] == file["blocks"]
        assert (
            again["ricordo"]["agents"]["agent-0"]["schedules"]
            == file["ricordo"]["agents"]["agent-0"]["schedules"]
        )
    block = api.client.agents.blocks.retrieve("person", agent_id=first)
    shown = ok(api.http.get(f"/v1/blocks/{block.id}/history"))
    assert [(one["author"], one["author_kind"], one["approved_by"]) for one in shown] == [
        ("remote:Local user", "remote", shown[0]["approved_by"]),
        ("remote:Tutor", "remote", shown[0]["approved_by"]),
        *[("remote:Local user", "remote", shown[0]["approved_by"])] * 2,
    ]
    assert shown[0]["approved_by"].startswith("user-")
    assert {one["timestamp"] for one in shown} == {
        one["timestamp"]
        for one in ok(api.http.get(f"/v1/blocks/{_id(api, agent, 'person')}/history"))
    }


def _id(api: Api, agent: str, label: str) -> str:
    return str(api.client.agents.blocks.retrieve(label, agent_id=agent).id)


def test_imported_memory_can_be_edited_and_decided_like_any_other(api: Api) -> None:
    made = import_agent(api, export(api, make_agent(api)))
    assert ok(api.http.get(f"/v1/agents/{made}/schedule"))["scheduled_messages"] == []
    block = _id(api, made, "person")
    waiting = ok(api.http.get(f"/v1/blocks/{block}/diffs"))
    assert [(one["author"], one["status"]) for one in waiting] == [("remote:Tutor", "open")] * 2
    for one in waiting:
        ok(api.http.post(f"/v1/blocks/{block}/diffs/{one['id']}/approve"))
    assert (
        api.client.agents.blocks.retrieve("person", agent_id=made).value
        == "Ada of Rome.\n\nLikes green tea."
    )
    oldest = ok(api.http.get(f"/v1/blocks/{block}/history"))[-1]["sha"]
    ok(api.http.post(f"/v1/blocks/{block}/restore", json={"sha": oldest}))
    assert api.client.agents.blocks.retrieve("person", agent_id=made).value == "Ada.\n"
    blamed = ok(api.http.get(f"/v1/blocks/{block}/blame"))
    assert "Ada." in json.dumps(blamed)
    # Its next export is complete too. A version from an approved proposal by an author of the file
    # has a remote author. Its id is computed with this author.
    names = ("label", "value", "author", "created_at")
    told, again = (
        [[one[name] for name in names] for one in memory(file)["versions"]]
        for file in (export(api, made), export(api, import_agent(api, export(api, made))))
    )
    assert again == told


def test_the_blocks_of_a_file_win_over_its_history(api: Api) -> None:
    """A program that reads plain `.af` may change, add or leave out blocks."""
    file = export(api, make_agent(api))
    plain = copy.deepcopy(file)
    for block in plain["blocks"]:
        if block["label"] == "person":
            block["value"] = "Bea."
    spare = next(one for one in plain["blocks"] if one["label"] == "spare")
    plain["blocks"].remove(spare)
    plain["blocks"].append({"id": "block-9", "label": "new", "value": "New."})
    plain["agents"][0]["block_ids"].append("block-9")
    plain["ricordo"]["agents"]["agent-0"]["memory"]["proposals"] = []
    made = import_agent(api, plain)
    assert {block.label: block.value for block in api.client.agents.blocks.list(made)} == {
        "person": "Bea.",
        "new": "New.",
    }
    (newest, *older) = ok(api.http.get(f"/v1/blocks/{_id(api, made, 'person')}/history"))
    assert (newest["author_kind"], newest["message"], len(older)) == (
        "user",
        "Import Tutor_copy",
        4,
    )
    last = memory(export(api, made))["versions"]
    assert [(one["label"], one["value"]) for one in last[-3:]] == [
        ("spare", None),
        ("person", "Bea."),
        ("new", "New."),
    ]
    assert memory(export(api, import_agent(api, export(api, made))))["versions"] == last


def test_a_version_that_gets_another_id_names_its_old_id(api: Api) -> None:
    file = export(api, make_agent(api))
    first = memory(file)["versions"][0]
    first["value"] = "Grace.\n"
    made = import_agent(api, file)
    found = memory(export(api, made))["versions"]
    assert [one["reason"] for one in found[:1]] == [f"Make Tutor (was {first['id'][:10]})"]
    for one, before in zip(found, memory(file)["versions"], strict=True):
        assert one["reason"].endswith(f"(was {before['id'][:10]})")
    assert memory(export(api, import_agent(api, export(api, made))))["versions"] == found


def test_shared_blocks_are_imported_with_their_own_history(api: Api) -> None:
    agent = make_agent(api)
    loose = api.client.blocks.create(label="draft", value="One.")
    api.client.blocks.update(loose.id, label="plan", value="Two.")
    api.client.agents.blocks.attach(loose.id, agent_id=agent)
    made = import_agent(api, export(api, agent))
    found = memory(export(api, made))["versions"]
    assert [(one["label"], one["value"]) for one in found[-2:]] == [
        ("plan", "One."),
        ("plan", "Two."),
    ]
    assert "(was " in found[-1]["reason"]
    assert api.client.blocks.retrieve(loose.id).value == "Two."


def test_authors_named_in_a_file_become_remote_authors(api: Api) -> None:
    user = ok(api.http.get("/v1/users/"))
    id = (user["items"] if isinstance(user, dict) else user)[0]["id"]
    file = export(api, make_agent(api))
    for one in (*memory(file)["versions"], *memory(file)["proposals"]):
        one["author"] = f"Root <administrator+{id}@ricordo>"
    made = import_agent(api, file)
    block = _id(api, made, "person")
    for found in (
        ok(api.http.get(f"/v1/blocks/{block}/history")),
        ok(api.http.get(f"/v1/blocks/{block}/diffs")),
    ):
        assert {(one["author"], one["author_kind"]) for one in found} == {("remote:Root", "remote")}
    # A pending proposal of the file is not applied, whatever author it names.
    assert api.client.agents.blocks.retrieve("person", agent_id=made).value == TEXT


def _versions(**changed: Any) -> Any:
    def change(told: Wire) -> None:
        told["versions"][1] |= changed

    return change


def _proposals(**changed: Any) -> Any:
    def change(told: Wire) -> None:
        told["proposals"][-1] |= changed

    return change


def _flood(told: Wire) -> None:
    told["versions"] *= 2_000


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_versions(created_at=10**18), "less than or equal"),
        (_versions(created_at="soon"), "created_at"),
        (_versions(created_at=True), "valid integer"),
        (_versions(label="a/../b"), "is reserved"),
        (_versions(label="x" * 300), "at most 255"),
        (_versions(author="Ada"), "is not an author"),
        (_versions(author="Ada\n<user-1@ricordo>"), "is not an author"),
        (_versions(author="Ada <user-1@ricordo>\nparent 1"), "is not an author"),
        (_versions(reason="a\0b"), "cannot be stored"),
        (_versions(id="xyz"), "should match pattern"),
        (_versions(parents=["1" * 40]), "parents"),
        (_flood, "at most 10000"),
        (_proposals(label="nowhere"), "names a version that is not in the file"),
        (_proposals(base="1" * 40), "names a version that is not in the file"),
        (_proposals(confidence=7), "less than or equal to 1"),
        (_proposals(author="x"), "is not an author"),
        (lambda told: told.update(detached_block_ids=["block-0", "block-0"]), "there twice"),
    ],
    ids=range(17),
)
def test_invalid_parts_of_a_history_are_left_out_and_reported(
    api: Api, change: Any, words: str
) -> None:
    file = _hostile(api)
    change(memory(file))
    answer = ok(
        api.http.post("/v1/agents/import", files={"file": ("a.af", json.dumps(file).encode())})
    )
    assert any(words in told for told in answer["warnings"]), answer["warnings"]
    # Everything that was stored can be shown and exported again, and no author is forged.
    (agent,) = answer["agent_ids"]
    again = export(api, agent)
    assert {block.label for block in api.client.agents.blocks.list(agent)} == {"person"}
    for one in memory(again)["versions"]:
        assert one["author"].count("<") == 1
    ok(api.http.get(f"/v1/blocks/{_id(api, agent, 'person')}/history"))
    api.client.agents.delete(agent)


_FILES: dict[str, Wire] = {}


def _hostile(api: Api) -> Wire:
    if api.server.url not in _FILES:
        _FILES[api.server.url] = export(api, make_agent(api))
    return copy.deepcopy(_FILES[api.server.url])


PASSAGE = {"text": "t", "created_at": 10**18}
MESSAGE = {"id": "m", "role": "user", "parts": [{"kind": "text", "text": 5}], "created_at": 1}


@pytest.mark.parametrize(
    "whole",
    [
        {"agents": "x"},
        {"agents": {"agent-0": [1]}},
        {"agents": {"agent-0": {"archives": [1]}}},
        {"agents": {"agent-0": {"archives": [{"id": "x"}]}}},
        {"agents": {"agent-0": {"archives": [{"id": "x", "name": "n", "passages": [PASSAGE]}]}}},
        {"agents": {"agent-0": {"messages": [{**MESSAGE, "parts": [], "created_at": 10**18}]}}},
        {"agents": {"agent-0": {"messages": [MESSAGE]}}},
        {"agents": {"agent-0": {"conversations": [{"summary": 5}]}}},
        {"agents": {"agent-0": {"schedules": [{"messages": [], "schedule": {"scheduled_at": 1}}]}}},
    ],
    ids=range(9),
)
def test_an_invalid_ricordo_part_is_left_out_and_the_agent_works(api: Api, whole: Wire) -> None:
    """Impossible times and dates were once stored. Every list that contained them then failed."""
    file = _hostile(api) | {"ricordo": {"version": 1, **whole}}
    answer = ok(
        api.http.post(
            "/v1/agents/import",
            files={"file": ("a.af", json.dumps(file).encode())},
            data={"schedules": "true"},
        )
    )
    assert answer["warnings"]
    (agent,) = answer["agent_ids"]
    for path in ("messages", "archival-memory", "schedule", "export"):
        ok(api.http.get(f"/v1/agents/{agent}/{path}"))
    ok(api.http.get("/v1/conversations/", params={"agent_id": agent}))


def test_secrets_in_a_history_are_not_imported(api: Api) -> None:
    file = _hostile(api)
    secret = "sk-proj-9fJ2kLmN4pQrStUvWxYz1234567890abcdef"
    memory(file)["versions"][0] |= {"value": f"Key {secret}", "reason": secret}
    made = import_agent(api, file)
    found = export(api, made)
    assert secret not in json.dumps(found)
    assert memory(export(api, import_agent(api, found)))["versions"] == memory(found)["versions"]


def test_schedules_are_imported_only_when_requested_and_allowed(api: Api) -> None:
    file = _hostile(api)
    whole = file["ricordo"]["agents"]["agent-0"]
    said = [{"role": "user", "content": "Hello."}]
    whole["schedules"] = [
        {"messages": said, "schedule": {"type": "one-time", "scheduled_at": 1_000_000}},
        {"messages": said, "schedule": {"type": "one-time", "scheduled_at": 2_000 * YEAR}}
        | {"callback_url": "https://evil.example/"},
    ]
    made = import_agent(api, file, extra_body={"schedules": True})
    (row,) = ok(api.http.get(f"/v1/agents/{made}/schedule"))["scheduled_messages"]
    assert (row["schedule"]["scheduled_at"], "callback_url" in row["message"]) == (
        2_000 * YEAR,
        False,
    )
    assert (
        ok(api.http.get(f"/v1/agents/{import_agent(api, file)}/schedule"))["scheduled_messages"]
        == []
    )


def test_schedules_keep_their_time_zone_and_default_to_utc(api: Api) -> None:
    file = _hostile(api)
    file["agents"][0]["timezone"] = "Europe/Berlin"
    said = [{"role": "user", "content": "Hello."}]
    daily = {"type": "recurring", "cron_expression": "0 7 * * *"}
    zones = ({}, {"timezone": "Asia/Tokyo"})
    file["ricordo"]["agents"]["agent-0"]["schedules"] = [
        {"messages": said, "schedule": daily | one} for one in zones
    ]
    made = import_agent(api, file, extra_body={"schedules": True})
    rows = ok(api.http.get(f"/v1/agents/{made}/schedule"))["scheduled_messages"]
    assert sorted(row["schedule"]["timezone"] for row in rows) == ["Asia/Tokyo", "UTC"]


def test_an_export_has_the_agents_own_block_despite_users_copies(api: Api) -> None:
    """A user's export once lacked the agent's blocks of which the user had copies."""
    name = "bea"
    api.http.post("/v1/users/", json={"name": name})
    agent = api.client.agents.create(
        model=MODEL,
        name="Coach",
        memory_blocks=[{"label": "notes", "value": "Shared."}],
        tools=["memory_insert"],
    ).id
    headers = {"x-ricordo-user": name}
    api.server.says(call("memory_insert", label="notes", new_string="Bea limps."), "Noted.")
    ok(api.http.post(f"/v1/agents/{agent}/messages", json={"input": "I limp."}, headers=headers))
    file = ok(api.http.get(f"/v1/agents/{agent}/export", headers=headers))
    assert [(one["label"], one["value"]) for one in file["blocks"]] == [("notes", "Shared.")]
    assert "limps" not in json.dumps({**file, "agents": [], "ricordo": memory(file)})


def test_a_template_keeps_no_history_proposals_or_schedules(api: Api) -> None:
    file = _hostile(api)
    name = api.client.templates.create(type="agent_file", agent_file=file).name
    (made,) = api.client.templates.agents.create(template_version=f"{name}:latest").agent_ids
    told = export(api, made)["ricordo"]["agents"]["agent-0"]
    assert [(one["label"], one["value"]) for one in told["memory"]["versions"]] == [
        ("person", TEXT)
    ]
    assert (
        told["memory"]["proposals"],
        told["memory"]["detached_block_ids"],
        told["schedules"],
    ) == ([], [], [])


def test_a_file_without_history_creates_one_version_of_each_block(api: Api) -> None:
    file = _hostile(api)
    for more in (
        {"ricordo": {"version": 1}},
        {"ricordo": {"version": 1, "agents": {"agent-0": {"memory": {}}}}},
        {},
    ):
        made = import_agent(api, {**file, "ricordo": None} | more)
        (only,) = memory(export(api, made))["versions"]
        assert (only["label"], only["reason"], only["author"][:10]) == (
            "person",
            "Make Tutor_copy",
            "Local user",
        )
