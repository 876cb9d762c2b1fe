"""Identities, as older clients call users, and agents that only some users may use."""

from typing import Any

import httpx2

from ricordo.domain.ids import new_id
from tests.features.identity.accounts.conftest import OPERATOR
from tests.features.identity.accounts.test_keys import bearer, make_key
from tests.seams.http import ok, refused
from tests.seams.server import MODEL, ServerInThread

ADA = {"identifier_key": "ada", "name": "Ada", "identity_type": "user"}


def identity(http: httpx2.Client, **body: Any) -> dict[str, Any]:
    made: dict[str, Any] = ok(
        http.put("/v1/identities/", json={"identity_type": "user", "name": "x", **body})
    )
    return made


def test_an_identity_and_its_user_are_the_same_person(http: httpx2.Client) -> None:
    property = {"key": "level", "value": 7, "type": "number"}
    made = ok(http.post("/v1/identities/", json={**ADA, "properties": [property]}))
    assert made["id"].startswith("identity-")
    assert made["properties"] == [property]
    user = ok(http.get("/v1/users/ada"))
    assert user["id"].removeprefix("user-") == made["id"].removeprefix("identity-")
    assert refused(http.post("/v1/identities/", json=ADA), 409)
    assert ok(http.get(f"/v1/identities/{made['id']}")) == made
    assert ok(http.get("/v1/identities/", params={"identifier_key": "ada"})) == [made]
    assert ok(http.get("/v1/identities/", params={"identifier_key": "none"})) == []
    assert ok(http.get("/v1/identities/count")) == len(ok(http.get("/v1/identities/")))
    upserted = ok(http.put("/v1/identities/", json={**ADA, "name": "Ada L."}))
    assert upserted == {**made, "name": "Ada L."}
    path = f"/v1/identities/{made['id']}"
    more = {"key": "town", "value": "London", "type": "string"}
    assert ok(http.put(f"{path}/properties", json=[more]))["properties"] == [property, more]
    assert ok(http.patch(path, json={"identifier_key": "ada-2"}))["identifier_key"] == "ada-2"
    assert ok(http.get("/v1/users/ada-2"))["id"] == user["id"]
    assert "forgotten" in ok(http.delete(path))["message"]
    assert refused(http.get(path), 404)


def test_an_agent_can_be_restricted_to_users(locked: ServerInThread, http: httpx2.Client) -> None:
    agent = ok(http.post("/v1/agents/", json={"model": MODEL, "name": "Tutor"}))["id"]
    bea = identity(http, identifier_key="bea")
    keys = {name: bearer(make_key(http, user=name)) for name in ("bea", "eve")}
    tutor = bearer(make_key(http, role="service", name="tutor"))
    developer = bearer(make_key(http, user="dora", role="developer"))
    said = {"messages": [{"role": "user", "content": "Hello."}]}
    talk = ok(
        http.post("/v1/conversations/", params={"agent_id": agent}, json={}, headers=keys["eve"])
    )["id"]
    with locked.client(api_key=OPERATOR) as client:
        client.agents.identities.attach(identity_id=bea["id"], agent_id=agent)
        assert ok(http.get(f"/v1/identities/{bea['id']}"))["agent_ids"] == [agent]
        assert [one["id"] for one in ok(http.get(f"/v1/identities/{bea['id']}/agents"))] == [agent]
        for headers, sees in (
            (keys["bea"], True),
            (keys["eve"], False),
            (tutor, False),
            ({**tutor, "x-ricordo-user": "bea"}, True),
            ({**tutor, "x-ricordo-user": "eve"}, False),
            (developer, True),
            ({}, True),
        ):
            listed = [one["id"] for one in ok(http.get("/v1/agents/", headers=headers))]
            assert (agent in listed) == sees, headers
            assert ok(http.get("/v1/agents/count", headers=headers)) == len(listed)
            for path in ("", "/core-memory/blocks", "/tools", "/context", "/messages"):
                answer = http.get(f"/v1/agents/{agent}{path}", headers=headers)
                assert (answer.status_code == 200) == sees, (path, headers, answer.text)
        for path in (f"/v1/agents/{agent}/messages", f"/v1/conversations/{talk}/messages"):
            locked.model.requests.clear()
            assert refused(
                http.post(path, json={**said, "streaming": False}, headers=keys["eve"]), 404
            )
            assert not locked.model.requests
        ok(http.post(f"/v1/agents/{agent}/messages", json=said, headers=keys["bea"]))
        client.agents.identities.detach(identity_id=bea["id"], agent_id=agent)
    ok(http.get(f"/v1/agents/{agent}", headers=keys["eve"]))


def test_an_agent_stays_restricted_after_its_only_user_was_erased(http: httpx2.Client) -> None:
    agent = ok(http.post("/v1/agents/", json={"model": MODEL}))["id"]
    gus = identity(http, identifier_key="gus", agent_ids=[agent])
    eve = bearer(make_key(http, user="eve"))
    ok(http.delete(f"/v1/identities/{gus['id']}"))
    for _ in range(100):
        if http.delete("/users/gus").json()["status"] == "done":
            break
    else:
        raise AssertionError("the erasure did not end")
    assert refused(http.get(f"/v1/agents/{agent}", headers=eve), 404)
    ok(http.get(f"/v1/agents/{agent}"))


def test_agents_are_listed_by_identity(http: httpx2.Client) -> None:
    agent = ok(http.post("/v1/agents/", json={"model": MODEL}))["id"]
    ok(http.post("/v1/agents/", json={"model": MODEL}))
    cyd = identity(http, identifier_key="cyd", agent_ids=[agent])

    def listed(**query: Any) -> list[str]:
        return [one["id"] for one in ok(http.get("/v1/agents/", params=query))]

    assert listed(identity_id=cyd["id"]) == listed(identifier_keys=["nobody", "cyd"]) == [agent]
    assert listed(identifier_keys=["nobody"]) == []
    assert ok(http.patch(f"/v1/identities/{cyd['id']}", json={"agent_ids": []}))["agent_ids"] == []


def test_blocks_are_attached_to_identities(http: httpx2.Client) -> None:
    block = ok(http.post("/v1/blocks/", json={"label": "rules", "value": "Be kind."}))["id"]
    dee = identity(http, identifier_key="dee")["id"]
    for _ in range(2):
        ok(http.patch(f"/v1/blocks/{block}/identities/attach/{dee}"))
    assert ok(http.get(f"/v1/identities/{dee}"))["block_ids"] == [block]
    assert [one["id"] for one in ok(http.get(f"/v1/identities/{dee}/blocks"))] == [block]
    others = [
        ok(http.post("/v1/blocks/", json={"label": "rules", "value": "Be brief."}))["id"]
        for _ in range(2)
    ]
    ok(http.patch(f"/v1/identities/{dee}", json={"block_ids": [block, *others]}))

    def listed(**query: Any) -> list[str]:
        return [one["id"] for one in ok(http.get(f"/v1/identities/{dee}/blocks", params=query))]

    assert listed() == [*reversed(others), block]
    assert listed(order="asc", limit=2) == [block, others[0]]
    assert listed(order="asc", after=others[0]) == [others[1]]
    ok(http.patch(f"/v1/identities/{dee}", json={"block_ids": [block]}))
    ok(http.patch(f"/v1/blocks/{block}/identities/detach/{dee}"))
    assert ok(http.get(f"/v1/identities/{dee}"))["block_ids"] == []
    assert refused(http.patch(f"/v1/blocks/{block}/identities/attach/{new_id('identity')}"), 404)


def test_attaching_an_identity_needs_agents_write_and_properties_are_bounded(
    http: httpx2.Client, locked: ServerInThread
) -> None:
    made = identity(http, identifier_key="kim")
    agent = ok(http.post("/v1/agents/", json={"model": MODEL}))
    few = bearer({"key": locked.key("clerk", "admin", scopes=("users:read", "users:write"))})
    attach = f"/v1/agents/{agent['id']}/identities/attach/{made['id']}"
    refused(http.patch(attach, headers=few), 403)
    body = {
        "identifier_key": "kim",
        "name": "Kim",
        "identity_type": "user",
        "agent_ids": [agent["id"]],
    }
    refused(http.put("/v1/identities/", json=body, headers=few), 403)
    many = [{"key": f"key {n}", "value": n, "type": "number"} for n in range(101)]
    refused(http.put(f"/v1/identities/{made['id']}/properties", json=many), 422)
    assert ok(http.get(f"/v1/identities/{made['id']}")) == made


def test_lists_of_agents_and_archives_omit_agents_restricted_to_others(
    http: httpx2.Client, locked: ServerInThread
) -> None:
    kept = identity(http, identifier_key="lea")
    agents = [ok(http.post("/v1/agents/", json={"model": MODEL})) for _ in range(2)]
    archive = ok(http.post("/v1/archives/", json={"name": "Library"}))
    for agent in agents:
        assert (
            http.patch(f"/v1/agents/{agent['id']}/archives/attach/{archive['id']}").status_code
            == 200
        )
    ok(http.patch(f"/v1/agents/{agents[0]['id']}/identities/attach/{kept['id']}"))
    other = bearer({"key": locked.key("max")})
    seen = ok(http.get(f"/v1/archives/{archive['id']}/agents", headers=other))
    assert [one["id"] for one in seen] == [agents[1]["id"]]
    listed = [
        ok(http.get("/v1/archives/", params={"agent_id": one["id"]}, headers=other))
        for one in agents
    ]
    assert [len(one) for one in listed] == [0, 1]


def test_identities_can_be_set_when_creating_or_updating_an_agent(
    locked: ServerInThread, http: httpx2.Client
) -> None:
    cai, dan = (identity(http, identifier_key=name)["id"] for name in ("cai", "dan"))
    key = bearer(make_key(http, user="cai"))
    other = bearer(make_key(http, user="fay"))
    made = ok(
        http.post("/v1/agents/", json={"model": MODEL, "name": "Kept", "identity_ids": [cai, dan]})
    )
    path = f"/v1/agents/{made['id']}"
    assert made["identity_ids"] == sorted([cai, dan])
    refused(http.get(path, headers=other), 404)
    # Users may not see which other users may use the agent.
    assert ok(http.get(path, headers=key))["identity_ids"] == [cai]
    assert [one["id"] for one in ok(http.get(f"/v1/identities/{dan}/agents"))] == [made["id"]]
    changed = ok(http.patch(path, json={"identity_ids": [dan]}))
    assert changed["identity_ids"] == [dan]
    refused(http.get(path, headers=key), 404)
    assert ok(http.patch(path, json={"name": "Still kept"}))["identity_ids"] == [dan]
    assert ok(http.patch(path, json={"identity_ids": []}))["identity_ids"] == []
    assert ok(http.get(path, headers=other))["name"] == "Still kept"
    unknown = new_id("identity")
    before = locked.rows()
    refused(http.post("/v1/agents/", json={"model": MODEL, "identity_ids": [unknown]}), 404)
    assert locked.rows() == before
