"""Blocks without an owner, blocks of agents, and their versions."""

from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from letta_client import APIStatusError, ConflictError, NotFoundError
from letta_client.types import AgentState

from ricordo.domain.ids import is_id, new_id
from ricordo.domain.scope import LOCAL_USER
from tests.api.conftest import Api
from tests.seams.http import ok, put, refused
from tests.seams.server import MODEL, StrictLetta


def test_a_new_block_has_all_the_fields_it_was_created_with(client: StrictLetta) -> None:
    plain: dict[str, Any] = {
        "label": "project/plan",
        "value": "Write tests.",
        "description": "What I work on",
    }
    plain |= {"limit": 500, "read_only": True, "hidden": True, "metadata": {"n": 1}}
    made = client.blocks.create(**plain, tags=["b", "a"])

    assert is_id(made.id, "block")
    shown = client.blocks.retrieve(made.id).to_dict()
    assert {name: shown[name] for name in plain} == plain
    assert (shown["tags"], shown["is_template"]) == (["a", "b"], False)
    assert shown["created_by_id"] == shown["last_updated_by_id"] == LOCAL_USER
    assert {**made.to_dict(), "tags": ["a", "b"]} == shown


def test_an_update_changes_only_the_fields_that_were_sent(
    client: StrictLetta, http: httpx2.Client
) -> None:
    made = client.blocks.create(
        label="human", value="Ada", description="Whom", limit=10, tags=["x"]
    )

    written = client.blocks.update(made.id, value="Grace").to_dict()
    assert written["version"] != made.to_dict()["version"]
    assert client.blocks.retrieve(made.id).to_dict() == written
    assert written == {**made.to_dict(), "value": "Grace", "version": written["version"]}
    plain: dict[str, Any] = {
        "label": "person",
        "description": "Who",
        "limit": 20,
        "read_only": True,
        "hidden": True,
    }
    plain |= {"metadata": {"a": 1}, "tags": ["y"]}
    changed = client.blocks.update(made.id, **plain).to_dict()
    assert {name: changed[name] for name in plain} == plain
    assert client.blocks.retrieve(made.id).to_dict() == changed
    # An empty value and a null description are changes too.
    http.patch(f"/v1/blocks/{made.id}", json={"value": "", "description": None, "tags": []})
    now = client.blocks.retrieve(made.id)
    assert (now.value, now.description, now.tags) == ("", None, [])


def test_an_update_with_a_stale_if_match_is_refused(
    client: StrictLetta, http: httpx2.Client
) -> None:
    made = http.post("/v1/blocks/", json={"label": "human", "value": "Ada"}).json()
    seen = {"if-match": f'"{made["version"]}"'}
    written = http.patch(f"/v1/blocks/{made['id']}", json={"value": "Grace"}, headers=seen)
    late = http.patch(f"/v1/blocks/{made['id']}", json={"value": "Eve"}, headers=seen)
    assert (written.status_code, late.status_code) == (200, 412)
    assert "changed since you read it" in late.json()["detail"]
    assert client.blocks.retrieve(made["id"]).value == "Grace"


def test_blocks_are_counted_and_filtered_by_label_substrings_and_tags(
    client: StrictLetta, http: httpx2.Client
) -> None:
    mark, before = new_id("mark"), http.get("/v1/blocks/count").json()
    tea = client.blocks.create(
        label=f"{mark}/tea", value="Green 100%", description="Drinks", tags=[mark, "hot"]
    )
    ink = client.blocks.create(label=f"{mark}/ink", value="Blue", description="Pens", tags=[mark])

    def ids(**query: Any) -> list[str]:
        return [found.id for found in client.blocks.list(**query)]

    assert http.get("/v1/blocks/count").json() == before + 2
    assert ids(label=f"{mark}/tea") == [tea.id]
    assert ids(label_search=mark) == [ink.id, tea.id]
    assert ids(label_search=mark, value_search="0%") == [tea.id]
    assert ids(label_search=mark, value_search="_") == []
    assert ids(label_search=mark, description_search="pen") == [ink.id]
    assert ids(tags=[mark, "hot"]) == [ink.id, tea.id]
    assert ids(tags=[mark, "hot"], match_all_tags=True) == [tea.id]


def test_blocks_are_filtered_by_identities_and_number_of_agents(api: Api) -> None:
    client, http = api.client, api.http
    mark = new_id("mark")
    none, one, two = [
        client.blocks.create(label=f"{mark}/{name}", value="").id for name in ("none", "one", "two")
    ]
    for attached in ([one, two], [two]):
        client.agents.create(model=MODEL, block_ids=attached)
    ada, bob = [
        ok(
            http.post(
                "/v1/identities/",
                json={"identifier_key": mark + name, "name": name, "identity_type": "user"},
            )
        )
        for name in ("ada", "bob")
    ]
    http.patch(f"/v1/blocks/{one}/identities/attach/{ada['id']}")

    def ids(**query: Any) -> list[str]:
        return [found.id for found in client.blocks.list(label_search=mark, **query)]

    assert ids(connected_to_agents_count_eq=[0]) == [none]
    assert ids(connected_to_agents_count_eq=[0, 2]) == [two, none]
    assert ids(connected_to_agents_count_gt=0, connected_to_agents_count_lt=2) == [one]
    assert ids(identity_id=ada["id"]) == ids(identifier_keys=[mark + "bob", mark + "ada"]) == [one]
    assert (
        ids(identity_id=bob["id"])
        == ids(identifier_keys=["nobody"])
        == ids(templates_only=True)
        == []
    )
    assert ids(project_id="here", limit=2) == ids()
    refused(http.get("/v1/blocks/", params={"connected_to_agents_count_gt": "-1"}), 422)


def test_a_deleted_block_is_removed_from_its_agents(client: StrictLetta, agent: AgentState) -> None:
    human = client.agents.blocks.retrieve("human", agent_id=agent.id)

    answer = client.blocks.delete(human.id)

    assert answer == {"message": f"Block id={human.id} successfully deleted"}
    assert [block.label for block in client.agents.retrieve(agent.id).blocks] == ["persona"]
    for ask in (client.blocks.retrieve, client.blocks.delete):
        with pytest.raises(NotFoundError):
            ask(human.id)


def test_an_agents_blocks_are_read_and_changed_by_label(
    client: StrictLetta, agent: AgentState
) -> None:
    human = client.agents.blocks.retrieve("human", agent_id=agent.id)
    changed = client.agents.blocks.update(
        "human", agent_id=agent.id, value="His name is Bob.", limit=40
    )

    assert human.id == agent.blocks[1].id
    assert human.value == "Her name is Ada."
    assert (changed.id, changed.value, changed.limit) == (human.id, "His name is Bob.", 40)
    assert client.blocks.retrieve(human.id).value == "His name is Bob."
    assert {block.label for block in client.agents.blocks.list(agent.id)} == {"persona", "human"}
    # A shared block is the same for all its agents, and only its new label finds it.
    other = client.agents.create(model=MODEL, block_ids=[human.id])
    client.agents.blocks.update("human", agent_id=agent.id, label="friend")
    assert client.agents.blocks.retrieve("friend", agent_id=other.id).value == "His name is Bob."
    with pytest.raises(NotFoundError) as caught:
        client.agents.blocks.retrieve("human", agent_id=agent.id)
    assert caught.value.body == {
        "detail": f"NOT_FOUND: Block with label human not found for agent {agent.id}"
    }


def test_a_label_may_contain_slashes_and_core_memory_lists_all_blocks(api: Api) -> None:
    made = api.client.agents.create(
        model=MODEL, memory_blocks=[{"label": "people/ada", "value": "Curious"}]
    )
    address = f"/v1/agents/{made.id}/core-memory"

    assert api.client.agents.blocks.retrieve("people/ada", agent_id=made.id).value == "Curious"
    changed = api.http.patch(f"{address}/blocks/people/ada", json={"value": "Very curious"}).json()
    assert changed["value"] == "Very curious"
    memory = api.http.get(address).json()
    assert memory["blocks"] == [changed]
    assert (memory["agent_type"], memory["git_enabled"], memory["file_blocks"]) == (
        "letta_v1_agent",
        False,
        [],
    )


def test_attaching_and_detaching_a_block_twice_changes_nothing_more(
    client: StrictLetta, agent: AgentState
) -> None:
    block = client.blocks.create(label="project", value="Ricordo")

    once = client.agents.blocks.attach(block.id, agent_id=agent.id)
    twice = client.agents.blocks.attach(block.id, agent_id=agent.id)
    assert [one.label for one in once.blocks] == ["persona", "human", "project"]
    assert twice.to_dict() == once.to_dict()
    assert [one.id for one in client.blocks.agents.list(block.id)] == [agent.id]

    detached = client.agents.blocks.detach(block.id, agent_id=agent.id)
    assert [one.label for one in detached.blocks] == ["persona", "human"]
    assert client.agents.blocks.detach(block.id, agent_id=agent.id).to_dict() == detached.to_dict()
    assert list(client.blocks.agents.list(block.id)) == []
    assert client.blocks.retrieve(block.id).value == "Ricordo"


def test_two_blocks_of_an_agent_never_share_a_label(api: Api, agent: AgentState) -> None:
    other = api.client.blocks.create(label="human", value="Someone else")
    before, rows = api.client.agents.retrieve(agent.id).to_dict(), api.server.rows()

    attempts: list[Callable[[], object]] = [
        lambda: api.client.agents.blocks.attach(other.id, agent_id=agent.id),
        lambda: api.client.agents.update(
            agent.id, name="Half", block_ids=[agent.blocks[1].id or "", other.id]
        ),
        lambda: api.client.agents.blocks.update("persona", agent_id=agent.id, label="human"),
        lambda: api.client.blocks.update(agent.blocks[0].id or "", label="human", value="Half"),
    ]
    for attempt in attempts:
        with pytest.raises(ConflictError) as caught:
            attempt()
        detail = caught.value.body["detail"]  # type: ignore[index]
        assert detail.startswith("CONFLICT: ")
        assert '"human"' in detail
        assert "UNIQUE" not in detail
        assert caught.value.response.headers["x-should-retry"] == "false"

    assert api.client.agents.retrieve(agent.id).to_dict() == before
    assert api.server.rows() == rows


def test_an_invalid_label_is_refused(api: Api, agent: AgentState) -> None:
    rows = api.server.rows()
    for label in ("", " ", "a//b", "/a", "a/", "history", "a/restore", "a\nb", "<a>", "x" * 256):
        for answer in (
            api.http.post("/v1/blocks/", json={"label": label, "value": ""}),
            api.http.post(
                "/v1/agents/",
                json={"model": MODEL, "memory_blocks": [{"label": label, "value": ""}]},
            ),
            api.http.patch(
                f"/v1/blocks/{agent.blocks[0].id}", json={"label": label, "value": "Half"}
            ),
        ):
            assert answer.status_code == 400, label
            assert answer.json()["detail"].startswith("INVALID_ARGUMENT: Block label "), label
    assert api.server.rows() == rows
    assert api.client.blocks.retrieve(agent.blocks[0].id or "").value == "I am Nina."


def test_a_text_over_the_limit_is_refused_on_every_route_without_partial_changes(
    api: Api, agent: AgentState
) -> None:
    persona = agent.blocks[0].id or ""
    api.client.blocks.update(persona, limit=20)
    api.client.blocks.update(persona, value="é" * 20)
    assert api.client.blocks.create(label="new", value="", limit=0).limit == 0
    before, rows = api.client.agents.retrieve(agent.id).to_dict(), api.server.rows()
    long = "x" * 21

    attempts: list[Callable[[], object]] = [
        lambda: api.client.blocks.create(label="new", value=long, limit=20, tags=["t"]),
        lambda: api.client.blocks.create(label="new", value="x" * 100_001),
        lambda: api.client.blocks.update(persona, value=long, description="Half", tags=["half"]),
        lambda: api.client.blocks.update(persona, limit=3),
        lambda: api.client.agents.blocks.update("persona", agent_id=agent.id, value=long),
        lambda: api.client.agents.create(
            model=MODEL, tags=["t"], memory_blocks=[{"label": "new", "value": long, "limit": 20}]
        ),
    ]
    for attempt in attempts:
        with pytest.raises(APIStatusError) as caught:
            attempt()
        assert caught.value.status_code == 422
        detail = caught.value.body["detail"]  # type: ignore[index]
        assert detail.startswith('INVALID_ARGUMENT: Block "')
        assert "its limit is" in detail

    assert api.client.agents.retrieve(agent.id).to_dict() == before
    assert api.server.rows() == rows


def test_a_blocks_history_can_be_read_compared_blamed_and_restored_by_its_id(
    api: Api, agent: AgentState
) -> None:
    block = api.client.agents.blocks.retrieve("human", agent_id=agent.id)
    api.client.agents.blocks.update(
        "human", agent_id=agent.id, value="Her name is Ada.\nShe likes tea."
    )
    address = f"/v1/blocks/{block.id}"

    newest, first = ok(api.http.get(f"{address}/history"))
    assert (newest["parents"], first["label"], first["author_kind"]) != ([], "human", "agent")
    assert ok(api.http.get(f"{address}/history", params={"limit": 1, "before": newest["sha"]})) == [
        first
    ]
    assert ok(api.http.get(f"{address}/versions/{first['sha'][:7]}"))["body"] == "Her name is Ada."
    seen = ok(api.http.get(f"{address}/compare"))
    assert (seen["from_version"], seen["to_version"]) == (first["sha"], newest["sha"])
    blamed = ok(api.http.get(f"{address}/blame"))
    assert [one["version"] for one in blamed["lines"]] == [first["sha"], newest["sha"]]
    assert blamed["versions"] == [first, newest]

    back = ok(api.http.post(f"{address}/restore", json={"sha": first["sha"], "message": "Back"}))
    assert ok(api.http.get(f"{address}/history"))[0]["message"] == "Back"
    assert (back["id"], back["value"]) == (block.id, "Her name is Ada.")
    assert api.client.blocks.retrieve(block.id).value == "Her name is Ada."
    assert len(ok(api.http.get(f"{address}/history"))) == 3
    ok(api.http.post(f"{address}/restore", json={"sha": first["sha"]}))
    assert len(ok(api.http.get(f"{address}/history"))) == 3


def test_a_version_longer_than_the_current_limit_is_not_restored(
    client: StrictLetta, http: httpx2.Client
) -> None:
    block = client.blocks.create(label="note", value="A long text")
    (first,) = ok(http.get(f"/v1/blocks/{block.id}/history"))
    client.blocks.update(block.id, value="Short", limit=5)

    assert "limit" in refused(
        http.post(f"/v1/blocks/{block.id}/restore", json={"sha": first["sha"]}), 422
    )
    assert client.blocks.retrieve(block.id).value == "Short"


def test_a_version_of_another_block_is_not_found(client: StrictLetta, http: httpx2.Client) -> None:
    block = client.blocks.create(label="note", value="One")
    other = client.blocks.create(label="other", value="Other")
    (foreign,) = ok(http.get(f"/v1/blocks/{other.id}/history"))
    for sha in (foreign["sha"], "0" * 40, "short", "g" * 7):
        for address in (f"/v1/blocks/{block.id}", f"/v1/blocks/{new_id('block')}"):
            answer = http.post(f"{address}/restore", json={"sha": sha})
            assert answer.status_code == (422 if sha == "short" else 404), answer.text
            for path in (
                "history?before=",
                "versions/",
                "blame?at=",
                "compare?from=",
                "compare?to=",
            ):
                answer = http.get(f"{address}/{path}{sha}")
                assert answer.status_code == 404, (path, answer.text)
                assert "Other" not in answer.text


def test_a_blocks_policy_can_be_set_and_changed(client: StrictLetta, http: httpx2.Client) -> None:
    made = client.blocks.create(label="note", value="One", extra_body={"policy": "guarded"})
    assert ok(http.get(f"/v1/blocks/{made.id}"))["policy"] == "guarded"

    def change(**body: object) -> tuple[object, object]:
        changed = ok(http.patch(f"/v1/blocks/{made.id}", json=body))
        return changed["policy"], changed["read_only"]

    assert change(policy="explicit") == ("explicit", False)
    assert change(read_only=True) == ("read_only", True)
    assert change(policy="propose") == ("propose", False)
    assert change(policy="read_only") == ("read_only", True)
    assert change(read_only=False) == ("direct", False)
    assert change(policy=None, value="Two") == ("direct", False)
    refused(http.patch(f"/v1/blocks/{made.id}", json={"policy": "none"}), 422)
    refused(http.post("/v1/blocks/", json={"label": "a", "value": "", "policy": "none"}), 422)


def test_clearing_read_only_on_a_users_block_sets_the_propose_policy(http: httpx2.Client) -> None:
    made = put(http, ada := new_id("ada"), "student", "One", policy="read_only")

    changed = ok(
        http.patch(
            f"/v1/blocks/{made['id']}", json={"read_only": False}, headers={"x-ricordo-user": ada}
        )
    )

    assert changed["policy"] == "propose"


def test_an_agents_blocks_keep_the_policies_they_were_created_with(
    client: StrictLetta, http: httpx2.Client
) -> None:
    blocks = [
        {"label": "human", "value": "", "policy": "propose"},
        {"label": "persona", "value": ""},
    ]
    made = ok(http.post("/v1/agents/", json={"model": MODEL, "memory_blocks": blocks}))

    assert {one["label"]: one["policy"] for one in made["blocks"]} == {
        "human": "propose",
        "persona": "direct",
    }
