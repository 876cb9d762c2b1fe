"""Users and organizations over HTTP: created, renamed, disabled, deleted.

An organization sees no data of another organization.
"""

from typing import Any

import httpx2
import pytest

from ricordo.domain.ids import new_id
from ricordo.domain.scope import LOCAL_USER
from tests.features.identity.accounts.test_keys import bearer, make_key
from tests.seams.http import ok, refused
from tests.seams.server import MODEL, ServerInThread


def make_user(http: httpx2.Client, name: str, **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = ok(http.post("/v1/users/", json={"name": name, **more}))
    return made


def test_a_renamed_user_keeps_memory_and_keys(http: httpx2.Client) -> None:
    ada = make_user(http, "ada", email="ada@example.org")
    key = make_key(http, user="ada")
    ok(http.put("/users/ada/blocks/human", json={"body": "Likes chess."}, headers=bearer(key)))
    renamed = ok(
        http.patch(
            f"/v1/users/{ada['id']}", json={"identifier": "lovelace", "name": "Ada Lovelace"}
        )
    )
    assert renamed == {**ada, "identifier": "lovelace", "name": "Ada Lovelace"}
    assert "chess" in ok(http.get("/users/lovelace/blocks/human", headers=bearer(key)))["body"]
    assert refused(http.get("/users/ada/blocks/human"), 404)
    assert ok(http.get("/v1/users/lovelace")) == renamed
    assert renamed in ok(http.get("/v1/users/"))
    assert ok(http.patch("/v1/users/lovelace", json={"email": ""}))["email"] is None


def test_a_user_without_another_name_is_shown_under_the_new_identifier(
    http: httpx2.Client,
) -> None:
    make_user(http, "sam")
    assert ok(http.patch("/v1/users/sam", json={"identifier": "kim"}))["name"] == "kim"
    # Another person who is called so now is not mistaken for the first.
    assert make_user(http, "sam")["name"] == "sam"
    ok(http.patch("/v1/users/kim", json={"name": "Kim Novak"}))
    assert ok(http.patch("/v1/users/kim", json={"identifier": "novak"}))["name"] == "Kim Novak"
    both = {"identifier": "k.novak", "name": "novak"}
    assert ok(http.patch("/v1/users/novak", json=both))["name"] == "novak"


def test_invalid_users_are_refused_with_a_reason(http: httpx2.Client) -> None:
    make_user(http, "one"), make_user(http, "two")
    assert 'A user "one" already exists' in refused(
        http.post("/v1/users/", json={"name": "one"}), 409
    )
    assert 'A user "one" already exists' in refused(
        http.patch("/v1/users/two", json={"identifier": "one"}), 409
    )
    two = ok(http.get("/v1/users/two"))
    for taken in (two["id"], new_id("user")):
        assert "No user can be named by the form of an id" in refused(
            http.patch("/v1/users/one", json={"identifier": taken}), 409
        )
    assert "cannot be called" in refused(http.post("/v1/users/", json={"name": "a/b"}), 400)
    assert "not an e-mail address" in refused(
        http.patch("/v1/users/one", json={"email": "nowhere"}), 400
    )
    assert "cannot be disabled" in refused(
        http.patch(f"/v1/users/{LOCAL_USER}", json={"disabled": True}), 409
    )


def test_a_disabled_user_is_refused_directly_and_by_impersonation(
    http: httpx2.Client,
) -> None:
    make_user(http, "dan")
    key = make_key(http, user="dan")
    tutor = make_key(http, role="service", name="tutor")
    acting = {**bearer(tutor), "x-ricordo-user": "dan"}
    for headers in (bearer(key), acting):
        ok(http.get("/v1/agents/", headers=headers))
    assert ok(http.patch("/v1/users/dan", json={"disabled": True}))["disabled_at"]
    assert refused(http.get("/v1/agents/", headers=bearer(key)), 401)
    assert "is disabled" in refused(http.get("/v1/agents/", headers=acting), 403)
    made = {"agent_id": "agent-x", "user_id": "dan"}
    assert "is disabled" in refused(http.post("/v1/conversations/", params=made, json={}), 403)
    assert "Enable the user first" in refused(http.post("/v1/keys/", json={"user": "dan"}), 400)
    assert ok(http.patch("/v1/users/dan", json={"disabled": False}))["disabled_at"] is None
    ok(http.get("/v1/agents/", headers=bearer(key)))


def test_deleting_a_user_erases_them(http: httpx2.Client) -> None:
    make_user(http, "eve")
    key = make_key(http, user="eve")
    assert http.delete("/v1/users/eve").status_code in (200, 202)
    assert refused(http.get("/v1/users/eve"), 404)
    assert refused(http.get("/v1/agents/", headers=bearer(key)), 401)


def test_a_users_own_key_cannot_change_create_or_delete_users(http: httpx2.Client) -> None:
    make_user(http, "fay"), make_user(http, "gil")
    key = make_key(http, user="fay", scopes=["users:read", "users:write"])
    (seen,) = ok(http.get("/v1/users/", headers=bearer(key)))
    assert seen["name"] == "fay"
    assert refused(http.get("/v1/users/gil", headers=bearer(key)), 404)
    assert refused(
        http.patch("/v1/users/fay", json={"email": "gil@example.org"}, headers=bearer(key)), 403
    )
    assert refused(http.post("/v1/users/", json={"name": "new"}, headers=bearer(key)), 403)
    assert refused(http.delete("/v1/users/fay", headers=bearer(key)), 403)


@pytest.fixture(scope="module")
def acme(http: httpx2.Client) -> dict[str, str]:
    made = ok(http.post("/v1/organizations/", json={"name": "acme"}))
    key = ok(
        http.post(
            "/v1/keys/", params={"organization": "acme"}, json={"user": "boss", "role": "admin"}
        )
    )
    assert key["organization_id"] == made["id"]
    return bearer(key)


def test_organizations_cannot_see_each_others_data(
    locked: ServerInThread, http: httpx2.Client, acme: dict[str, str]
) -> None:
    make_user(http, "vuqkz")
    agent = ok(
        http.post(
            "/v1/agents/", json={"model": MODEL, "memory_blocks": [{"label": "x", "value": "ours"}]}
        )
    )
    key = make_key(http, user="vuqkz")
    ours = {
        agent["id"],
        agent["memory"]["blocks"][0]["id"],
        key["id"],
        *(tool["id"] for tool in agent["tools"]),
    }
    for path in (
        "/v1/agents/",
        "/v1/blocks/",
        "/v1/keys/",
        "/v1/users/",
        "/v1/tools/",
        "/v1/runs/",
        "/v1/archives/",
    ):
        told = http.get(path, headers=acme)
        assert ok(told) is not None
        assert not [id for id in ours if id in told.text], path
        assert "vuqkz" not in told.text, path
    for path in (
        f"/v1/agents/{agent['id']}",
        f"/v1/keys/{key['id']}",
        "/v1/users/vuqkz",
        "/users/vuqkz/blocks/x",
    ):
        assert refused(http.get(path, headers=acme), 404)
    # The new organization has the built-in tools, with itself as their owner.
    theirs = ok(http.post("/v1/agents/", json={"model": MODEL}, headers=acme))
    assert theirs["tools"]
    assert theirs["id"] not in http.get("/v1/agents/").text
    assert {one["name"] for one in ok(http.get("/v1/users/", headers=acme))} == {"boss"}


def test_only_the_operator_creates_and_accesses_organizations(
    http: httpx2.Client, acme: dict[str, str]
) -> None:
    admin = bearer(make_key(http, user="admin", role="admin"))
    for headers in (acme, admin):
        assert "operator" in refused(
            http.post("/v1/organizations/", json={"name": "x"}, headers=headers), 403
        )
        assert "operator" in refused(http.get("/v1/organizations/", headers=headers), 403)
        assert refused(
            http.get("/v1/keys/", params={"organization": "local"}, headers=headers), 403
        )
    names = {one["name"] for one in ok(http.get("/v1/organizations/"))}
    assert names == {"local", "acme"}
    assert 'An organization "acme" already exists' in refused(
        http.post("/v1/organizations/", json={"name": "acme"}), 409
    )
    assert "No organization can be named by the form of an id" in refused(
        http.post("/v1/organizations/", json={"name": new_id("org")}), 409
    )
    assert refused(http.get("/v1/keys/", params={"organization": "nowhere"}), 404)
    (boss,) = ok(http.get("/v1/keys/", params={"organization": "acme"}))
    assert boss["role"] == "admin"


def test_names_that_differ_only_in_case_or_width_are_one_user(
    http: httpx2.Client,
) -> None:
    mary, umlaut = make_user(http, "Mary.Ann"), make_user(http, "Ärger")
    before = len(ok(http.get("/v1/users/", params={"limit": 1000})))
    for name, known in (
        ("mary.ann", mary),
        ("MARY.ANN", mary),
        ("ｍａｒｙ．ａｎｎ", mary),
        ("ärger", umlaut),
    ):
        sentence = f'There is a user "{known["identifier"]}", whose name looks the same'
        assert sentence in refused(http.post("/v1/users/", json={"name": name}), 409)
        assert sentence in refused(
            http.put(f"/users/{name}/blocks/human", json={"body": "Mine."}), 409
        )
        assert sentence in refused(http.post("/v1/keys/", json={"user": name}), 409)
        if name.isascii():
            acting = {"x-ricordo-user": name}
            assert sentence in refused(
                http.post("/v1/agents/", json={"model": MODEL}, headers=acting), 409
            )
    wide = make_user(http, "ｅｖｅ")
    assert wide["identifier"] in refused(http.post("/v1/users/", json={"name": "eve"}), 409)
    assert "looks the same" in refused(
        http.patch(f"/v1/users/{wide['id']}", json={"identifier": "mary.Ann"}), 409
    )
    # A new identifier may look like the user's own old one. Names of users may always look alike.
    assert (
        ok(http.patch(f"/v1/users/{wide['id']}", json={"identifier": "Eve"}))["identifier"] == "Eve"
    )
    assert ok(http.patch(f"/v1/users/{mary['id']}", json={"name": "Mary"}))["name"] == "Mary"
    assert len(ok(http.get("/v1/users/", params={"limit": 1000}))) == before + 1
