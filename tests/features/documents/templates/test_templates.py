"""Templates with the official client: created, saved, rolled back, and agents created from them."""

import copy
import json
import time
from pathlib import Path
from typing import Any

import pytest
from letta_client import BadRequestError, ConflictError, NotFoundError, UnprocessableEntityError
from sqlalchemy import insert

from ricordo.features.documents.templates import service
from ricordo.storage.schema.core_tables import organizations
from tests.api.conftest import Api
from tests.features.documents.agent_files.test_round_trip import ADD, OTHERS
from tests.seams.http import Wire, ok
from tests.seams.people import OPERATOR, OTHER_ORGANIZATION, People
from tests.seams.server import MODEL, serving

HUMAN = "My name is {{ name }}. {{other}}"


def make(api: Api, **more: Any) -> str:
    blocks = more.pop(
        "memory_blocks",
        [{"label": "human", "value": HUMAN}, {"label": "rules", "value": "Be kind."}],
    )
    made = api.client.agents.create(
        **{"model": MODEL, "system": "You teach.", "memory_blocks": blocks, **more}
    )
    return made.id


def values(api: Api, agent: str) -> dict[str, str]:
    return {block.label or "": block.value for block in api.client.agents.retrieve(agent).blocks}


def wait(api: Api, answer: Any) -> Wire:
    """Wait for the job that this response names."""
    while (job := ok(api.http.get(f"/v1/jobs/{answer.headers['x-job-id']}")))["status"] in (
        "created",
        "running",
    ):
        time.sleep(0.01)
    return dict(job)


def save_and_migrate(api: Api, name: str, **options: Any) -> Wire:
    """Save with a migration, and wait for it."""
    job = wait(
        api, api.client.templates.with_raw_response.save(name, migrate_agents=True, **options)
    )
    assert job["status"] == "completed", job
    return job


def test_a_template_is_made_from_an_agent_and_creates_agents(api: Api) -> None:
    tool = api.client.tools.upsert(source_code=ADD)
    folder = api.client.folders.create(name="Shelf")
    agent = make(
        api, name="Tutor, 2nd", description="Teaches.", tags=["school"], tool_ids=[tool.id], secrets={"KEY": "hush"},
        folder_ids=[folder.id], context_window_limit=9_000,
    )  # fmt: skip
    template = api.client.templates.create(type="agent", agent_id=agent)
    assert (template.name, template.latest_version, template.description) == (
        "Tutor-2nd",
        "1",
        "Teaches.",
    )
    assert template.template_deployment_slug == f"{template.project_slug}/Tutor-2nd:1"
    assert api.client.templates.create(type="agent", agent_id=agent).name == "Tutor-2nd-2"
    with pytest.raises(ConflictError, match="already"):
        api.client.templates.create(type="agent", agent_id=agent, name="Tutor-2nd")
    user = ok(
        api.http.post(
            "/v1/identities/",
            json={"name": "Ada", "identifier_key": "ada", "identity_type": "user"},
        )
    )["id"]
    made = api.client.templates.agents.create(
        "Tutor-2nd:latest", agent_name="Mine",
        memory_variables={"name": "{{other}}"}, tool_variables={"KEY": "new"}, tags=["own"],
        identity_ids=[user],
        initial_message_sequence=[{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}],
    )  # fmt: skip
    (one,) = made.agent_ids
    state = api.client.agents.retrieve(one)
    assert (state.name, state.system, state.description, state.llm_config.context_window) == (
        "Mine",
        "You teach.",
        "Teaches.",
        9_000,
    )
    # The value of a variable is text, in which no variable is replaced.
    assert values(api, one) == {"human": "My name is {{other}}. {{other}}", "rules": "Be kind."}
    assert sorted(state.tags) == ["own", "school"]
    assert [secret.key for secret in state.secrets or ()] == ["KEY"]
    assert {tool.name for tool in state.tools} >= {"add_up", "grep_files", "memory_insert"}
    assert [one.name for one in api.client.agents.folders.list(one)] == ["Shelf"]
    assert [one.message_type for one in api.client.agents.messages.list(one)] == [
        "system_message",
        "user_message",
        "assistant_message",
    ]
    assert (state.base_template_id, state.deployment_id, state.entity_id) == (
        template.id,
        made.deployment_id,
        "agent-0",
    )
    (another,) = api.client.templates.agents.create("Tutor-2nd:1").agent_ids
    assert another != one
    found = [agent.id for agent in api.client.agents.list(base_template_id=template.id)]
    assert sorted(found) == sorted([one, another])
    assert len(api.client.agents.list(template_id=state.template_id or "").items) == 2
    assert api.client.agents.list(template_id=template.id).items == []
    assert api.client.agents.retrieve(agent).template_id is None
    assert api.client.templates.delete("Tutor-2nd").success
    assert api.client.agents.retrieve(one).name == "Mine"
    with pytest.raises(NotFoundError, match="no template"):
        api.client.templates.delete("Tutor-2nd")


def test_a_template_follows_its_agent_until_it_is_rolled_back(api: Api) -> None:
    agent = make(api)
    api.client.templates.create(type="agent", agent_id=agent, name="T")
    api.client.agents.update(agent, system="Two.")
    (now,) = api.client.templates.agents.create("T:current").agent_ids
    (one,) = api.client.templates.agents.create("T:latest").agent_ids
    assert [api.client.agents.retrieve(id).system for id in (now, one)] == ["Two.", "You teach."]
    assert api.client.templates.save("T", message="Shorter").latest_version == "2"
    api.client.agents.update(agent, system="Three.")
    # Unsaved changes are saved first; once saved, they are not saved again.
    done = api.client.templates.rollback("T", version="1")
    assert "newest saved version is 3" in (done.message or "")
    assert "newest saved version is 3" in (
        api.client.templates.rollback("T", version="latest").message or ""
    )
    assert "newest saved version is 3" in (
        api.client.templates.rollback("T", version="3").message or ""
    )
    assert api.client.templates.rollback("T", version="1").success
    systems = {}
    for version in ("1", "2", "3", "current"):
        (made,) = api.client.templates.agents.create(f"T:{version}").agent_ids
        systems[version] = api.client.agents.retrieve(made).system
    assert systems == {"1": "You teach.", "2": "Two.", "3": "Three.", "current": "You teach."}
    # The template does not follow the agent any more.
    api.client.agents.update(agent, system="Four.")
    assert api.client.templates.save("T").latest_version == "4"
    (made,) = api.client.templates.agents.create("T:latest").agent_ids
    assert api.client.agents.retrieve(made).system == "You teach."


def test_a_template_stays_when_its_agent_is_deleted(api: Api) -> None:
    agent = make(api)
    api.client.templates.create(type="agent", agent_id=agent, name="Left")
    api.client.agents.delete(agent)
    assert api.client.templates.save("Left").latest_version == "2"
    assert api.client.templates.agents.create("Left:2").agent_ids


def test_refused_template_requests_say_what_to_do(api: Api) -> None:
    agent = make(api)
    templates = api.client.templates
    templates.create(type="agent", agent_id=agent, name="R")
    rows = api.server.rows()
    new, agents, back = templates.create, templates.agents.create, templates.rollback
    refusals: list[tuple[type[Exception], str, Any]] = [
        (BadRequestError, "current", lambda: back("R", version="current")),
        (BadRequestError, "dev", lambda: back("R", version="dev")),
        (NotFoundError, 'no version "2"', lambda: back("R", version="2")),
        (NotFoundError, "no version", lambda: agents("R:x")),
        (NotFoundError, "no version", lambda: agents("R:0")),
        (NotFoundError, "no template", lambda: agents("Q:1")),
        (BadRequestError, "R:latest", lambda: agents("R")),
        (
            BadRequestError,
            "The new blocks have the variables: name, other",
            lambda: agents("R:1", memory_variables={"nmae": "x"}),
        ),
        (NotFoundError, "no user", lambda: agents("R:1", identity_ids=["identity-x"])),
        (NotFoundError, "not found", lambda: new(type="agent", agent_id="agent-x")),
        (BadRequestError, "cannot be named", lambda: new(type="agent", agent_id=agent, name="a/b")),
        (UnprocessableEntityError, "agent_id", lambda: new(type="agent", agent_file={})),  # type: ignore[call-overload]
        (
            UnprocessableEntityError,
            "agent_file",
            lambda: new(type="agent", agent_id=agent, extra_body={"agent_file": {}}),
        ),
        (
            BadRequestError,
            "holds 2",
            lambda: new(type="agent_file", agent_file={**OTHERS, "agents": OTHERS["agents"] * 2}),
        ),
        (
            UnprocessableEntityError,
            "block_reconciliation",
            lambda: templates.save("R", block_reconciliation_strategy="x"),  # type: ignore[arg-type]
        ),
    ]
    for kind, words, ask in refusals:
        with pytest.raises(kind, match=words):
            ask()
    assert api.server.rows() == rows


def test_templates_need_the_agents_scope_and_belong_to_an_organization(
    tmp_path: Path,
) -> None:
    with (
        serving(tmp_path, api_key=OPERATOR) as server,
        server.client(api_key=OPERATOR) as client,
        server.http() as http,
    ):
        require_kept_apart(People(server, http), Api(server, client, http))


def require_kept_apart(people: People, api: Api) -> None:
    other = {"id": OTHER_ORGANIZATION, "name": "Other", "created_at": 1}
    api.server.write(lambda tx: tx.run(insert(organizations), other))
    agent = make(api)
    template = api.client.templates.create(type="agent", agent_id=agent, name="Whose")
    (one,) = api.client.templates.agents.create("Whose:1").agent_ids
    asked: list[tuple[str, str, Any]] = [
        ("POST", "/v1/templates", {"type": "agent", "agent_id": agent}),
        ("PATCH", "/v1/templates/Whose", {"agent_file_json": OTHERS}),
        ("POST", "/v1/templates/Whose/save", {"migrate_agents": True}),
        ("POST", "/v1/templates/Whose/rollback", {"version": "1"}),
        ("POST", "/v1/templates/Whose:1/agents", {}),
        ("DELETE", "/v1/templates/Whose", None),
        ("GET", "/ui/templates", None),
    ]
    user, boss = people.key("kim"), people.key("boss", "admin", organization=OTHER_ORGANIZATION)
    for method, path, body in asked:
        assert people.send(user, method, path, json=body).status_code == 403
        answer = people.send(boss, method, path, json=body)
        assert answer.status_code == (200 if method == "GET" else 404)
        assert method != "GET" or "Whose" not in answer.text
    assert people.ask(boss, "GET", f"/v1/agents/?base_template_id={template.id}") == []
    # The name is free in the other organization, and its use there changes nothing here.
    theirs = people.ask(
        boss, "POST", "/v1/agents/", json={"model": MODEL, "include_base_tools": False}
    )["id"]
    people.ask(
        boss, "POST", "/v1/templates", json={"type": "agent", "agent_id": theirs, "name": "Whose"}
    )
    people.ask(boss, "POST", "/v1/templates/Whose/save", json={"migrate_agents": True})
    people.ask(boss, "DELETE", "/v1/templates/Whose")
    assert api.client.agents.retrieve(one).system == "You teach."
    assert api.client.templates.save("Whose").latest_version == "2"
    developer = people.key("dev", "developer")
    assert people.ask(developer, "POST", "/v1/templates/Whose:2/agents", json={})["agent_ids"]


def test_a_developer_reads_the_job_that_migrates_the_agents(tmp_path: Path) -> None:
    with serving(tmp_path, api_key=OPERATOR) as server, server.http() as http:
        people = People(server, http)
        developer = people.key("dev", "developer")
        agent = people.ask(developer, "POST", "/v1/agents/", json={"model": MODEL})["id"]
        template = {"type": "agent", "agent_id": agent, "name": "Followed"}
        people.ask(developer, "POST", "/v1/templates", json=template)
        saved = people.send(
            developer, "POST", "/v1/templates/Followed/save", json={"migrate_agents": True}
        )
        id = saved.headers["x-job-id"]
        assert people.ask(developer, "GET", f"/v1/jobs/{id}")["id"] == id
        assert id in [job["id"] for job in people.ask(developer, "GET", "/v1/jobs/")]
        other = people.key("other", "developer")
        assert id not in [job["id"] for job in people.ask(other, "GET", "/v1/jobs/")]
        assert people.send(other, "GET", f"/v1/jobs/{id}").status_code == 404


def test_templates_refuse_invalid_files_with_the_import_error(api: Api) -> None:
    agent = make(api)
    api.client.templates.create(type="agent", agent_id=agent, name="F")
    (own,) = OTHERS["agents"]
    bad: list[Wire] = [{"agents": []}, {"agents": {"agent-0": own}}, {"blocks": []}]
    rows = api.server.rows()
    for file in bad:
        imported = api.http.post("/v1/agents/import", files={"file": ("a.af", json.dumps(file))})
        made = api.http.post("/v1/templates", json={"type": "agent_file", "agent_file": file})
        changed = api.http.patch("/v1/templates/F", json={"agent_file_json": file})
        assert imported.status_code >= 400
        for answer in (made, changed):
            assert (answer.status_code, answer.json()["detail"]) == (
                imported.status_code,
                imported.json()["detail"],
            )
    assert api.server.rows() == rows


def test_templates_repair_files_like_imports_with_warnings(api: Api) -> None:
    agent = make(api)
    api.client.templates.create(type="agent", agent_id=agent, name="G")
    many = [{"id": f"block-{n}", "label": "human", "value": f"x{n}"} for n in (0, 1)]
    (own,) = OTHERS["agents"]
    odd: dict[str, Wire] = {
        "Its name": {**OTHERS, "agents": [{**own, "name": None}]},
        "version 99": {**OTHERS, "ricordo": {"version": 99}},
        "a/.._/b": {**OTHERS, "blocks": [{"id": "block-0", "label": "a/../b", "value": ""}]},
        "limit was raised": {
            **OTHERS,
            "blocks": [{"id": "block-0", "label": "human", "value": "long", "limit": 2}],
        },
        "human_2": {
            **OTHERS,
            "blocks": many,
            "agents": [{**own, "block_ids": ["block-0", "block-1"]}],
        },
    }
    for number, (words, file) in enumerate(odd.items()):
        body = {"type": "agent_file", "agent_file": file, "name": f"Mended {number}"}
        made = api.http.post("/v1/templates", json=body)
        changed = api.http.patch("/v1/templates/G", json={"agent_file_json": file})
        for answer in (made, changed):
            assert answer.status_code == 200, answer.text
            assert words.removeprefix("Its ") in answer.headers["x-ricordo-warnings"]


def test_a_template_from_a_file_leaves_out_messages_and_secrets(api: Api) -> None:
    file = copy.deepcopy(OTHERS)
    file["agents"][0]["secrets"] = {"KEY": "hush-hush"}
    file["tools"].append(
        {
            "id": "tool-9",
            "name": "add_up",
            "tool_type": "custom",
            "source_code": ADD.replace("one + two", "one * two"),
        }
    )
    file["agents"][0]["tool_ids"].append("tool-9")
    api.client.tools.upsert(source_code=ADD)
    assert api.client.templates.create(type="agent_file", agent_file=file, name="Sam").name == "Sam"
    assert "one + two" in (api.client.tools.list(name="add_up").items[0].source_code or "")
    (made,) = api.client.templates.agents.create("Sam:1").agent_ids
    state = api.client.agents.retrieve(made)
    assert {tool.name for tool in state.tools} == {"send_message", "add_up"}
    assert state.name != "Sam"
    assert "Hi Sam." not in api.http.get(f"/v1/agents/{made}/messages").text
    stored = api.server.read(
        lambda tx: tx.connection.exec_driver_sql("SELECT content FROM template_versions").all()
    )
    assert not [row for row in stored if "hush-hush" in row[0] or "Hi Sam." in row[0]]
    file["agents"][0]["system"] = "You are Tom."
    done = api.client.templates.update(
        "Sam", agent_file_json=file, update_existing_tools=True, save_existing_changes=True
    )
    assert "newest saved version is 1" in (done.message or "")
    assert "one * two" in (api.client.tools.list(name="add_up").items[0].source_code or "")
    (made,) = api.client.templates.agents.create("Sam:current").agent_ids
    assert api.client.agents.retrieve(made).system == "You are Tom."
    file["agents"][0]["system"] = "You are Tim."
    done = api.client.templates.update("Sam", agent_file_json=file, save_existing_changes=True)
    assert "newest saved version is 2" in (done.message or "")


def test_a_template_contains_no_users_memory(api: Api) -> None:
    api.http.post("/v1/users/", json={"name": "bea"})
    agent = make(
        api,
        memory_blocks=[{"label": "notes", "value": "The agent's."}],
        extra_body={"user_id": "bea"},
    )
    ok(api.http.put("/users/bea/blocks/notes", json={"body": "A quagga."}))
    api.server.says("Yes.")
    ok(
        api.http.post(
            f"/v1/agents/{agent}/messages",
            json={"input": "My quagga."},
            headers={"x-ricordo-user": "bea"},
        )
    )
    own = ok(api.http.post("/v1/folders/", json={"name": "Quaggas", "user": "bea"}))["id"]
    ok(api.http.patch(f"/v1/agents/{agent}/folders/attach/{own}"))
    for headers in ({}, {"x-ricordo-user": "bea"}):
        name = f"N{len(headers)}"
        ok(
            api.http.post(
                "/v1/templates",
                json={"type": "agent", "agent_id": agent, "name": name},
                headers=headers,
            )
        )
        (made,) = api.client.templates.agents.create(f"{name}:1").agent_ids
        assert values(api, made) == {"notes": "The agent's."}
        assert api.client.agents.folders.list(made).items == []
    stored = api.server.read(
        lambda tx: tx.connection.exec_driver_sql("SELECT content FROM template_versions").all()
    )
    assert not [row for row in stored if "quagga" in row[0].lower() or own in row[0]]


def test_a_large_file_becomes_a_template_and_a_concurrent_save_conflicts(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = [{"id": f"block-{n}", "label": f"b{n}", "value": "x" * 99_000} for n in range(12)]
    file = {
        **OTHERS,
        "blocks": blocks,
        "agents": [{**OTHERS["agents"][0], "block_ids": [one["id"] for one in blocks]}],
    }
    api.client.templates.create(type="agent_file", agent_file=file, name="Large")
    (made,) = api.client.templates.agents.create("Large:1").agent_ids
    assert len(values(api, made)) == 12
    version_of = service.version_of

    def overtaken(*given: Any) -> Any:
        found = version_of(*given)
        with api.server.client() as other:
            other.templates.save("Large")
        return found

    monkeypatch.setattr(service, "version_of", overtaken)
    assert api.client.templates.agents.create("Large:1").agent_ids
    with pytest.raises(ConflictError, match="by another request"):
        api.client.templates.agents.create("Large:latest")
