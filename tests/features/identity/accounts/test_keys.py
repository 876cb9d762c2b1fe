"""Keys over HTTP: made once, checked, listed without the key, revoked at once."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from ricordo.domain.redaction import redact
from ricordo.domain.scope import ALL_SCOPES, ROLE_SCOPES
from ricordo.secret import Secret, is_operator_token, operator_token
from tests.seams.http import ok, refused
from tests.seams.server import ServerInThread, serving


def make_key(http: httpx2.Client, by: dict[str, Any] | None = None, **body: Any) -> dict[str, Any]:
    made: dict[str, Any] = ok(http.post("/v1/keys/", json=body, headers=bearer(by) if by else None))
    return made


def bearer(key: dict[str, Any]) -> dict[str, str]:
    return {"authorization": f"Bearer {key['key']}"}


def test_a_key_is_shown_once_and_stored_as_a_hash(
    locked: ServerInThread, http: httpx2.Client
) -> None:
    made = make_key(http, user="ada", name="Ada's laptop", expires_in=3600)
    key = made.pop("key")
    assert key.startswith("ricordo_")
    assert made["hint"] == key[:12]
    made.pop("is_first")
    listed = ok(http.get("/v1/keys/"))
    assert made in listed
    assert ok(http.get(f"/v1/keys/{made['id']}")) == made
    assert key[12:] not in http.get("/v1/keys/").text
    for file in locked.settings.data_dir.rglob("*"):
        assert not file.is_file() or key.encode() not in file.read_bytes(), file
    assert set(made["scopes"]) == ROLE_SCOPES["user"]
    assert ok(http.get("/v1/agents/", headers={"authorization": f"Bearer {key}"})) == []


def test_a_revoked_key_is_refused_at_once(http: httpx2.Client) -> None:
    made = make_key(http, user="ada")
    ok(http.get("/v1/agents/", headers=bearer(made)))
    revoked = ok(http.delete(f"/v1/keys/{made['id']}"))
    assert revoked["revoked_at"]
    assert "unknown, expired or revoked" in refused(
        http.get("/v1/agents/", headers=bearer(made)), 401
    )
    assert ok(http.delete(f"/v1/keys/{made['id']}")) == revoked


def test_a_keys_expiry_must_be_in_the_future_and_given_once(
    http: httpx2.Client,
) -> None:
    soon, past = datetime.now(UTC) + timedelta(days=1), datetime.now(UTC) - timedelta(days=1)
    assert make_key(http, user="ada", expires_at=soon.isoformat())["expires_at"].startswith(
        soon.date().isoformat()
    )
    said = refused(
        http.post("/v1/keys/", json={"user": "ada", "expires_at": past.isoformat()}), 400
    )
    assert "would expire at once" in said
    both = {"user": "ada", "expires_at": soon.isoformat(), "expires_in": 5}
    assert "Leave one out" in refused(http.post("/v1/keys/", json=both), 400)


def test_unknown_scopes_and_roles_are_refused_with_the_known_ones(http: httpx2.Client) -> None:
    said = refused(http.post("/v1/keys/", json={"user": "ada", "scopes": ["memory:raed"]}), 400)
    assert '"memory:raed"' in said
    assert all(scope in said for scope in ALL_SCOPES)
    assert "role admin" in refused(
        http.post("/v1/keys/", json={"user": "ada", "scopes": ["admin"]}), 400
    )
    assert "names a user" in refused(
        http.post("/v1/keys/", json={"user": "ada", "role": "service"}), 400
    )
    assert "name the user" in refused(http.post("/v1/keys/", json={"role": "admin"}), 400)
    assert http.post("/v1/keys/", json={"user": "ada", "role": "king"}).status_code == 422


def test_a_key_cannot_have_more_scopes_than_its_creator(http: httpx2.Client) -> None:
    boss = make_key(http, user="boss", role="admin")
    assert not {"memory:override", "users:impersonate"} & set(boss["scopes"])
    override = make_key(http, boss, user="boss", role="admin", scopes=["memory:override", "admin"])
    assert "memory:override" in override["scopes"]
    small = make_key(http, user="clerk", role="admin", scopes=["admin", "agents:read"])
    assert make_key(http, small, user="ada", scopes=["agents:read"])["scopes"] == ["agents:read"]
    for body in (
        {"user": "clerk", "role": "admin"},
        {"user": "ada"},
        {"role": "service", "name": "pipe"},
        {"user": "ada", "scopes": ["memory:override"]},
    ):
        assert "Your key lacks" in refused(
            http.post("/v1/keys/", json=body, headers=bearer(small)), 403
        )


@pytest.mark.parametrize("role", ["user", "developer", "service"])
def test_only_administrators_list_create_and_revoke_keys(http: httpx2.Client, role: str) -> None:
    who = {} if role == "service" else {"user": "bob"}
    bob = bearer(make_key(http, role=role, name="bob", **who))
    body = {"user": "bob", "role": "admin"}
    assert "lacks the scope admin" in refused(http.post("/v1/keys/", json=body, headers=bob), 403)
    assert "lacks the scope admin" in refused(http.get("/v1/keys/", headers=bob), 403)
    assert "lacks the scope admin" in refused(http.delete("/v1/keys/key-x", headers=bob), 403)


def test_after_the_first_key_every_request_needs_one(tmp_path: Path) -> None:
    with serving(tmp_path) as server, server.http() as http:
        first = make_key(http, user="ada", role="admin")
        assert first["is_first"]
        assert http.get("/v1/keys/").status_code == 401
        second = make_key(http, first, user="ada")
        assert not second["is_first"]
        assert http.get("/").status_code == 200


def test_a_server_stays_closed_after_all_key_users_were_erased(tmp_path: Path) -> None:
    with serving(tmp_path) as server, server.http() as http:
        key = make_key(http, user="ada", role="admin")
        gone = http.delete("/users/ada", headers=bearer(key))
        assert gone.status_code in (200, 202)
    with serving(tmp_path) as server, server.http() as http:
        assert http.get("/v1/agents/").status_code == 401


def test_the_operator_token_from_the_data_folder_works_only_locally(
    tmp_path: Path,
) -> None:
    with serving(tmp_path) as server, server.http() as http:
        make_key(http, user="ada", role="admin")
        token = operator_token(tmp_path)
        assert token
        assert len(ok(http.get("/v1/keys/", headers={"authorization": f"Bearer {token}"}))) == 1
        far = {"authorization": f"Bearer {token}", "x-forwarded-for": "192.0.2.7"}
        assert http.get("/v1/keys/", headers=far).status_code == 401
        until, signed = token.removeprefix("ricordo_operator_").split("_")
        later = f"ricordo_operator_{int(until) + 10}_{signed}"
        for forged in (
            later,
            f"{token}0",
            "ricordo_operator_",
            f"ricordo_operator_{until}_",
            "ricordo_operator_x_y",
        ):
            assert (
                http.get("/v1/keys/", headers={"authorization": f"Bearer {forged}"}).status_code
                == 401
            ), forged


def test_an_operator_token_expires_and_needs_the_servers_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert operator_token(tmp_path) is None
    one, other = Secret(tmp_path / "one"), Secret(tmp_path / "other")
    assert one.derive("x") != other.derive("x")
    token = operator_token(tmp_path / "one") or ""
    assert is_operator_token(one, token)
    assert not is_operator_token(other, token)
    import time

    now = time.time()
    monkeypatch.setattr("ricordo.secret.time.time", lambda: now + 61)
    assert not is_operator_token(one, token)


def test_the_keys_page_lists_every_scope_and_the_scopes_of_each_role() -> None:
    page = (Path(__file__).parents[4] / "docs" / "operate" / "keys.md").read_text()
    scopes, roles = (
        page.split("| scope | allows |")[1].split("## Users")[0],
        page.split("| scope | allows |")[0],
    )
    assert {
        *re.findall(r"`([a-z]+(?::[a-z]+)?)`", "\n".join(row.split("|")[1] for row in rows(scopes)))
    } == ALL_SCOPES
    named = {row.split("`")[1]: row.split("|")[4] for row in rows(roles)[1:]}
    assert named.keys() == ROLE_SCOPES.keys()
    assert {*re.findall(r"`([a-z:]+)`", named["user"])} == ROLE_SCOPES["user"]
    assert ALL_SCOPES - {*re.findall(r"`([a-z:]+)`", named["admin"])} == ROLE_SCOPES["admin"]
    assert ROLE_SCOPES["service"] == (ROLE_SCOPES["user"] - {"memory:approve"}) | {
        "users:impersonate"
    }
    families = ("agents", "messages", "archives", "tools")
    both = {f"{family}:{kind}" for family in families for kind in ("read", "write")}
    assert all(family in named["developer"] for family in families)
    assert ROLE_SCOPES["developer"] == both | {"providers:read"}


def rows(table: str) -> list[str]:
    return [
        line for line in table.splitlines() if line.startswith("| `") or line.startswith("| role")
    ]


def test_api_keys_in_texts_are_redacted(http: httpx2.Client) -> None:
    # Dashes and underscores divide the second key into pieces of which none looks like a key. Of
    # 3,000 random keys only this one was like that.
    for key in (
        make_key(http, user="ada")["key"],
        "ricordo_z_KJSYwAdH-P4fQh3YSw_lDYEkmpcqmYb_8BlLbEDOY",
    ):
        found = redact(f"My key: {key}, and that is all.")
        assert key not in found.text
        assert found.kinds == ("api key",)
