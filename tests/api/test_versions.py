"""The versions of a block that is named by its id: an agent's or a loose one has the same history as a user's."""

import httpx2
from letta_client.types import AgentState

from ricordo.domain.ids import new_id
from tests.seams.http import ok, put, refused
from tests.seams.server import MODEL, StrictLetta


def test_a_blocks_history_is_read_by_its_id_compared_blamed_and_restored(
    client: StrictLetta, http: httpx2.Client, agent: AgentState
) -> None:
    block = client.agents.blocks.retrieve("human", agent_id=agent.id)
    client.agents.blocks.update("human", agent_id=agent.id, value="Her name is Ada.\nShe likes tea.")
    address = f"/v1/blocks/{block.id}"

    newest, first = ok(http.get(f"{address}/history"))
    assert (newest["parents"], first["label"], first["author_kind"]) != ([], "human", "agent")
    assert ok(http.get(f"{address}/history", params={"limit": 1, "before": newest["sha"]})) == [first]
    assert ok(http.get(f"{address}/versions/{first['sha'][:7]}"))["body"] == "Her name is Ada."
    seen = ok(http.get(f"{address}/compare"))
    assert (seen["from_version"], seen["to_version"]) == (first["sha"], newest["sha"])
    assert [one["version"]["sha"] for one in ok(http.get(f"{address}/blame"))] == [first["sha"], newest["sha"]]

    back = ok(http.post(f"{address}/restore", json={"sha": first["sha"], "message": "Back"}))
    assert ok(http.get(f"{address}/history"))[0]["message"] == "Back"
    assert (back["id"], back["value"]) == (block.id, "Her name is Ada.")
    assert client.blocks.retrieve(block.id).value == "Her name is Ada."
    assert len(ok(http.get(f"{address}/history"))) == 3
    ok(http.post(f"{address}/restore", json={"sha": first["sha"]}))
    assert len(ok(http.get(f"{address}/history"))) == 3


def test_a_text_that_is_too_long_by_now_is_not_restored(client: StrictLetta, http: httpx2.Client) -> None:
    block = client.blocks.create(label="note", value="A long text")
    (first,) = ok(http.get(f"/v1/blocks/{block.id}/history"))
    client.blocks.update(block.id, value="Short", limit=5)

    assert "limit" in refused(http.post(f"/v1/blocks/{block.id}/restore", json={"sha": first["sha"]}), 422)
    assert client.blocks.retrieve(block.id).value == "Short"


def test_a_version_of_another_block_or_of_none_is_not_found(client: StrictLetta, http: httpx2.Client) -> None:
    block = client.blocks.create(label="note", value="One")
    other = client.blocks.create(label="other", value="Other")
    (foreign,) = ok(http.get(f"/v1/blocks/{other.id}/history"))
    for sha in (foreign["sha"], "0" * 40, "short", "g" * 7):
        for address in (f"/v1/blocks/{block.id}", f"/v1/blocks/{new_id('block')}"):
            answer = http.post(f"{address}/restore", json={"sha": sha})
            assert answer.status_code == (422 if sha == "short" else 404), answer.text
            for path in ("history?before=", "versions/", "blame?at=", "compare?from=", "compare?to="):
                answer = http.get(f"{address}/{path}{sha}")
                assert answer.status_code == 404, (path, answer.text)
                assert "Other" not in answer.text


def test_a_policy_is_set_with_a_block_and_changed_with_it(client: StrictLetta, http: httpx2.Client) -> None:
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


def test_a_users_block_is_never_left_open_to_agents_by_the_older_flag(http: httpx2.Client) -> None:
    made = put(http, new_id("ada"), "student", "One", policy="read_only")

    changed = ok(http.patch(f"/v1/blocks/{made['id']}", json={"read_only": False}))

    assert changed["policy"] == "propose"


def test_an_agents_blocks_have_the_policies_they_were_made_with(client: StrictLetta, http: httpx2.Client) -> None:
    blocks = [{"label": "human", "value": "", "policy": "propose"}, {"label": "persona", "value": ""}]
    made = ok(http.post("/v1/agents/", json={"model": MODEL, "memory_blocks": blocks}))

    assert {one["label"]: one["policy"] for one in made["blocks"]} == {"human": "propose", "persona": "direct"}
