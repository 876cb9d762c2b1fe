"""Proposals for blocks of agents.

Only people who manage the agents list them and decide on them.
"""

from typing import Any

import httpx2
import pytest

from ricordo.llm.scripted import call
from tests.api.conftest import Api
from tests.seams.http import ok, propose, put, refused
from tests.seams.server import MODEL, serving

KEY = "an-operator-key-of-some-length"


@pytest.fixture
def block(api: Api) -> dict[str, Any]:
    """A block with two waiting edits. Its agent has no users."""
    given = {"label": "plan", "value": "Read.\nRest.", "policy": "propose"}
    agent = ok(api.http.post("/v1/agents/", json={"model": MODEL, "memory_blocks": [given]}))
    for edit in (
        {"old_string": "Read.", "new_string": "Write."},
        {"old_string": "Rest.", "new_string": "Sing."},
    ):
        api.server.says(call("memory_replace", label="plan", **edit), "It waits.")
        ok(
            api.http.post(
                f"/v1/agents/{agent['id']}/messages",
                json={"messages": [{"role": "user", "content": "Go."}]},
            )
        )
    (made,) = agent["memory"]["blocks"]
    return dict(made)


def test_proposals_for_an_agents_block_can_be_listed_approved_and_rejected(
    api: Api, block: dict[str, Any]
) -> None:
    path = f"/v1/blocks/{block['id']}"
    second, first = ok(api.http.get(f"{path}/diffs"))
    assert ([one["status"] for one in (first, second)], first["label"]) == (
        ["open", "open"],
        "plan",
    )
    assert "+Write." in first["diff"]
    done = ok(api.http.post(f"{path}/diffs/{first['id']}/approve"))
    assert (done["status"], done["block"]["pending"]) == ("approved", 1)
    assert ok(api.http.get(path))["value"] == "Write.\nRest."
    ok(api.http.patch(path, json={"value": "Write.\nSleep."}))
    stuck = api.http.post(f"{path}/diffs/{second['id']}/approve")
    assert (stuck.status_code, stuck.json()["conflict"]["ours"]) == (409, "Write.\nSleep.")
    rejected = ok(api.http.post(f"{path}/diffs/{second['id']}/reject", json={"reason": "No."}))
    assert (rejected["status"], rejected["proposal"]["note"]) == ("rejected", "No.")
    assert "is rejected already" in refused(
        api.http.post(f"{path}/diffs/{second['id']}/approve"), 409
    )
    assert ok(api.http.get(f"{path}/diffs")) == []
    assert [
        one["id"] for one in ok(api.http.get(f"{path}/diffs", params={"status": "approved"}))
    ] == [first["id"]]
    other = ok(api.http.post("/v1/blocks/", json={"label": "other", "value": "x"}))["id"]
    assert "not found" in refused(
        api.http.post(f"/v1/blocks/{other}/diffs/{first['id']}/reject"), 404
    )


def test_only_an_agents_managers_decide_and_for_a_users_block_only_the_user(
    tmp_path: Any,
) -> None:
    with serving(tmp_path, api_key=KEY) as server:

        def client(key: str) -> httpx2.Client:
            return server.http(headers={"authorization": f"Bearer {key}"})

        keys = [KEY, server.key("ada"), server.key("dev", "developer"), server.key("eve", "admin")]
        with (
            client(keys[0]) as operator,
            client(keys[1]) as ada,
            client(keys[2]) as developer,
            client(keys[3]) as eve,
        ):
            given = {"label": "plan", "value": "Read.", "policy": "propose"}
            agent = ok(
                operator.post("/v1/agents/", json={"model": MODEL, "memory_blocks": [given]})
            )
            server.says(
                call("memory_replace", label="plan", old_string="Read.", new_string="Write."),
                "It waits.",
            )
            said = {"messages": [{"role": "user", "content": "Go."}]}
            ok(operator.post(f"/v1/agents/{agent['id']}/messages", json=said))
            path = f"/v1/blocks/{agent['memory']['blocks'][0]['id']}/diffs"
            (waiting,) = ok(operator.get(path))
            for decision in ("approve", "reject"):
                assert "not found" in refused(ada.post(f"{path}/{waiting['id']}/{decision}"), 404)
                assert "memory:approve" in refused(
                    developer.post(f"{path}/{waiting['id']}/{decision}"), 403
                )
            assert ok(eve.post(f"{path}/{waiting['id']}/approve"))["status"] == "approved"

            hers = f"/v1/blocks/{put(operator, 'ada', 'diary', 'Tea.')['id']}/diffs"
            id = propose(operator, "ada", "diary", "Tea.", "Rum.", agent_id="tutor")
            for decision in ("approve", "reject"):
                assert "Ask its owner" in refused(eve.post(f"{hers}/{id}/{decision}"), 403)
            assert ok(ada.get(hers))[0]["id"] == id
            assert ok(ada.post(f"{hers}/{id}/approve"))["block"]["body"] == "Rum."
