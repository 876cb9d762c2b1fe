"""Proposals for blocks of agents.

Only people who manage the agents list them and decide on them.
"""

from contextlib import ExitStack
from typing import Any

import httpx2
import pytest

from ricordo.llm.scripted import call
from tests.api.conftest import Api
from tests.seams.http import bearer, ok, propose, put, refused
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
            return server.http(headers=bearer(key))

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


def test_users_see_proposals_for_a_shared_block_only_from_their_own_conversations(
    tmp_path: Any,
) -> None:
    with serving(tmp_path, api_key=KEY) as server:

        def client(key: str) -> httpx2.Client:
            return server.http(headers=bearer(key))

        everybody = {
            "operator": KEY,
            "ada": server.key("ada"),
            "bob": server.key("bob"),
            "developer": server.key("dev", "developer"),
        }
        with ExitStack() as stack:
            people = {name: stack.enter_context(client(key)) for name, key in everybody.items()}
            given = {
                "label": "plan",
                "value": "A.\nB.\nC.\nD.\nE.",
                "policy": "propose",
                "shared": True,
            }
            agent = ok(
                people["operator"].post(
                    "/v1/agents/", json={"model": MODEL, "memory_blocks": [given]}
                )
            )
            ids = {}
            for name, old in (("ada", "A."), ("bob", "C."), ("operator", "E.")):
                new = f"{name} is ill."
                server.says(
                    call("memory_replace", label="plan", old_string=old, new_string=new), "Ok."
                )
                said = {"messages": [{"role": "user", "content": "Go."}]}
                ok(people[name].post(f"/v1/agents/{agent['id']}/messages", json=said))
            path = f"/v1/blocks/{agent['memory']['blocks'][0]['id']}/diffs"
            for one in ok(people["operator"].get(path, params={"status": "all"})):
                ids[next(name for name in people if f"{name} is ill" in one["body"])] = one["id"]
            (rejected, approved) = (ids["ada"], ids["bob"])
            ok(people["operator"].post(f"{path}/{rejected}/reject", json={"reason": "Private."}))
            seen = {
                name: {
                    status: [one["id"] for one in ok(http.get(path, params={"status": status}))]
                    for status in ("waiting", "all")
                }
                for name, http in people.items()
            }
            everything = [ids["operator"], approved, rejected]
            assert seen["operator"]["all"] == everything
            assert seen["ada"] == {"waiting": [ids["operator"]], "all": [ids["operator"], rejected]}
            assert seen["bob"] == {
                "waiting": [ids["operator"], approved],
                "all": [ids["operator"], approved],
            }
            assert seen["developer"]["all"] == [ids["operator"]]
            for name, id in (("ada", approved), ("bob", rejected)):
                assert people[name].get(f"/ui/proposals/{id}").status_code == 404


def test_a_user_does_not_replace_the_proposal_from_another_users_conversation(
    tmp_path: Any,
) -> None:
    with serving(tmp_path, api_key=KEY) as server, ExitStack() as stack:
        http = {
            name: stack.enter_context(server.http(headers=bearer(key)))
            for name, key in (
                ("operator", KEY),
                ("ada", server.key("ada")),
                ("bob", server.key("bob")),
            )
        }
        given = {"label": "plan", "value": "Exam in May.", "policy": "propose", "shared": True}
        agent = ok(
            http["operator"].post("/v1/agents/", json={"model": MODEL, "memory_blocks": [given]})
        )
        for name, month in (("ada", "June"), ("bob", "July"), ("ada", "August"), ("bob", "July")):
            server.says(
                call("memory_replace", label="plan", old_string="May", new_string=month), "Ok."
            )
            said = {"messages": [{"role": "user", "content": "Go."}]}
            ok(http[name].post(f"/v1/agents/{agent['id']}/messages", json=said))
        path = f"/v1/blocks/{agent['memory']['blocks'][0]['id']}/diffs"
        listed = ok(http["operator"].get(path, params={"status": "all"}))
        assert [(one["body"], one["status"]) for one in listed] == [
            ("Exam in August.", "open"),
            ("Exam in July.", "open"),
            ("Exam in June.", "superseded"),
        ]
        ok(http["operator"].post(f"{path}/{listed[0]['id']}/approve"))
        conflict = refused(http["operator"].post(f"{path}/{listed[1]['id']}/approve"), 409)
        assert "same lines" in conflict


def test_proposals_stay_hidden_after_the_conversations_that_they_come_from_are_deleted(
    tmp_path: Any,
) -> None:
    with serving(tmp_path, api_key=KEY) as server, ExitStack() as stack:
        operator, ada, bob = (
            stack.enter_context(server.http(headers={"authorization": f"Bearer {key}"}))
            for key in (KEY, server.key("ada"), server.key("bob"))
        )
        given = {"label": "plan", "value": "Exam in May.", "policy": "propose", "shared": True}
        agent = ok(operator.post("/v1/agents/", json={"model": MODEL, "memory_blocks": [given]}))
        talk = ok(ada.post("/v1/conversations/", params={"agent_id": agent["id"]}, json={}))
        server.says(
            call("memory_replace", label="plan", old_string="May", new_string="June"), "Ok."
        )
        said = {"messages": [{"role": "user", "content": "Go."}], "streaming": False}
        ok(ada.post(f"/v1/conversations/{talk['id']}/messages", json=said))
        path = f"/v1/blocks/{agent['memory']['blocks'][0]['id']}/diffs"
        assert len(ok(operator.get(path))) == 1
        assert ok(bob.get(path)) == []
        ok(ada.delete(f"/v1/conversations/{talk['id']}"))
        assert len(ok(operator.get(path))) == 1
        assert ok(bob.get(path)) == []
