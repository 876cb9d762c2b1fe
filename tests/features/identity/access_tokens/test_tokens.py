"""Access tokens as the official client makes them.

They are shown once, stored as a hash, and end with the key, user or agent that they depend on.
"""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from letta_client import (
    APIStatusError,
    AuthenticationError,
    BadRequestError,
    ConflictError,
    NotFoundError,
)
from letta_client import PermissionDeniedError as Denied
from sqlalchemy import select, update

from ricordo.api.guard import origin_of
from ricordo.domain.scope import Scope
from ricordo.features.identity.access_tokens import service
from ricordo.storage import access_tokens
from ricordo.storage.schema.core_tables import api_keys
from ricordo.storage.schema.core_tables import users as user_rows
from tests.seams.http import OPERATOR, bearer
from tests.seams.server import LIMIT, MODEL, ServerInThread, StrictLetta, serving

PAGES = "https://app.example.org"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    with serving(tmp_path_factory.mktemp("data"), api_key=OPERATOR) as running:
        yield running


@pytest.fixture
def boss(server: ServerInThread) -> StrictLetta:
    return server.client(api_key=OPERATOR)


@pytest.fixture
def agent(boss: StrictLetta) -> str:
    return boss.agents.create(model=MODEL).id


def policy(agent: str, *access: str) -> Any:
    return [{"type": "agent", "id": agent, "access": access or ("read_messages", "write_messages")}]


def wait_until_refused(server: ServerInThread, token: str, agent: str) -> None:
    """Wait until the server refuses the token."""
    client, end = server.client(api_key=token), time.monotonic() + LIMIT
    while time.monotonic() < end:
        try:
            client.agents.messages.list(agent)
        except AuthenticationError:
            return
        time.sleep(0.01)
    raise AssertionError("the token still works")


def test_a_token_lets_a_page_send_messages_to_its_agent(server: ServerInThread, agent: str) -> None:
    ada = server.client(api_key=server.key("ada"))
    made = ada.access_tokens.create(hostname="HTTPS://App.example.org:443/", policy=policy(agent))
    assert made.hostname == PAGES
    left = datetime.fromisoformat(made.expires_at) - datetime.now(UTC)
    assert timedelta(minutes=4) < left <= timedelta(minutes=5)
    assert [(one.id, sorted(one.access)) for one in made.policy.data] == [
        (agent, ["read_messages", "write_messages"])
    ]
    server.says("Hello, page.")
    page = server.client(api_key=made.token, default_headers={"Origin": PAGES})
    said = page.agents.messages.create(agent, input="Hello.")
    assert said.messages[-1].content == "Hello, page."  # type: ignore[union-attr]
    thread = page.conversations.create(agent_id=agent, summary="From the page")
    list(
        page.conversations.messages.create(thread.id, messages=[{"role": "user", "content": "Hi."}])
    )
    assert [one.id for one in ada.conversations.list(agent_id=agent)] == [thread.id]
    assert [one.id for one in page.conversations.list(agent_id=agent)] == [thread.id]
    for refused in (lambda: page.agents.retrieve(agent), page.access_tokens.list, page.agents.list):
        with pytest.raises(APIStatusError) as raised:
            refused()
        assert raised.value.status_code in (403, 404)
    # Nobody finds the token in the database.
    rows = server.read(lambda tx: tx.all(select(api_keys)))
    assert made.token not in str(rows)
    assert made.token[: len("ricordo_token_") + 5] not in str(rows)


def test_users_list_and_delete_their_own_tokens(
    server: ServerInThread, boss: StrictLetta, agent: str
) -> None:
    bea, eve = server.client(api_key=server.key("bea")), server.client(api_key=server.key("eve"))
    other = boss.agents.create(model=MODEL).id
    made = [
        bea.access_tokens.create(hostname=PAGES, policy=policy(one))
        for one in (agent, other, agent)
    ]
    page = bea.access_tokens.list(limit=2)
    assert (len(page.tokens), page.has_next_page) == (2, True)
    assert len(bea.access_tokens.list(limit=2, offset=2).tokens) == 1
    (listed,) = bea.access_tokens.list(agent_id=other).tokens
    assert listed.token.startswith("token-")
    assert eve.access_tokens.list().tokens == []
    assert listed.token in [one.token for one in boss.access_tokens.list(limit=1000).tokens]
    for id in (listed.token, made[0].token, "token-1"):
        with pytest.raises(NotFoundError):
            eve.access_tokens.delete(id)
    elsewhere = Scope("org-elsewhere")
    assert server.read(lambda tx: access_tokens.page(tx, elsewhere, None, 10, 0)) == []
    assert server.read(lambda tx: access_tokens.count(tx, elsewhere)) == 0
    assert not server.write(
        lambda tx: access_tokens.delete_one(tx, elsewhere, listed.token, "no hash")
    )
    bea.access_tokens.delete(listed.token)
    wait_until_refused(server, made[1].token, other)
    bea.access_tokens.delete(made[0].token)
    wait_until_refused(server, made[0].token, agent)
    assert server.client(api_key=made[2].token).agents.messages.list(agent).items


def test_a_token_ends_with_its_key_user_or_agent(
    server: ServerInThread, agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ricordo.api.authentication._FRESH", 0)
    # After twenty unknown keys from one address, each further one would wait for a second.
    monkeypatch.setattr("ricordo.api.authentication.DELAY", 0)

    def made(maker: str, **headers: str) -> str:
        client = server.client(api_key=maker, default_headers=headers)
        token = client.access_tokens.create(hostname=PAGES, policy=policy(agent)).token
        server.client(api_key=token).agents.messages.list(agent)
        return token

    def changed(table: Any, condition: Any, **values: Any) -> None:
        server.write(lambda tx: tx.run(update(table).where(condition).values(**values)))

    expired = made(server.key("fay"))
    changed(api_keys, (api_keys.c.kind == "token") & (api_keys.c.expires_at > 0), expires_at=1)
    wait_until_refused(server, expired, agent)
    revoked = made(server.key("gil"))
    changed(api_keys, api_keys.c.name == "gil's", revoked_at=1)
    wait_until_refused(server, revoked, agent)
    disabled = made(server.key("hal"))
    changed(user_rows, user_rows.c.identifier == "hal", disabled_at=1)
    wait_until_refused(server, disabled, agent)
    service_key = server.key(role="service")
    of_user = made(service_key, **{"x-ricordo-user": "ida"})
    changed(user_rows, user_rows.c.identifier == "ida", disabled_at=1)
    wait_until_refused(server, of_user, agent)
    of_service = made(service_key, **{"x-ricordo-user": "joe"})
    changed(api_keys, api_keys.c.role == "service", revoked_at=1)
    wait_until_refused(server, of_service, agent)
    forgotten = made(server.key("kim"))
    with server.http(headers=bearer(OPERATOR)) as http:
        http.delete("/users/kim")
    wait_until_refused(server, forgotten, agent)


def test_a_token_cannot_have_more_scopes_than_its_creator(
    server: ServerInThread, boss: StrictLetta, agent: str
) -> None:
    mia = server.client(api_key=server.key("mia"))
    with pytest.raises(Denied, match="agents:write"):
        mia.access_tokens.create(hostname=PAGES, policy=policy(agent, "write_agent"))
    with (
        server.runtime.sandbox.keys.issue(Scope(), "sneak") as key,
        pytest.raises(Denied, match="lacks the scope"),
    ):
        server.client(api_key=key).access_tokens.create(hostname=PAGES, policy=policy(agent))
    with pytest.raises(Denied, match="lacks the scope"):
        server.client(api_key=server.key("dev", "developer")).access_tokens.list()
    kept = boss.agents.create(model=MODEL).id
    body = {"name": "noa", "identifier_key": "noa", "identity_type": "user"}
    with server.http(headers=bearer(OPERATOR)) as http:
        identity = http.post("/v1/identities/", json=body).json()["id"]
        http.patch(f"/v1/agents/{kept}/identities/attach/{identity}").raise_for_status()
    for maker in (mia, boss):  # A token without a user does not belong to one of the agent's users.
        with pytest.raises(NotFoundError):
            maker.access_tokens.create(hostname=PAGES, policy=policy(kept))
    server.client(api_key=server.key("noa")).access_tokens.create(
        hostname=PAGES, policy=policy(kept)
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"hostname": "app.example.org"}, "hostname must be the address"),
        ({"hostname": "ftp://app.example.org"}, "hostname must be the address"),
        ({"hostname": "https://app.example.org/path"}, "hostname must be the address"),
        ({"hostname": "https://me:pass@app.example.org"}, "hostname must be the address"),
        ({"hostname": "https://"}, "hostname must be the address"),
        ({"hostname": "null"}, "hostname must be the address"),
        ({"hostname": "*"}, "hostname must be the address"),
        ({"expires_at": "2020-01-01T00:00:00Z"}, "in the future"),
        ({"expires_at": "2999-01-01T00:00:00Z"}, "30 days"),
        ({"expires_at": "soon"}, "datetime"),
        ({"policy": []}, "at least 1"),
        ({"policy": [{"type": "agent", "id": "*", "access": ["read_agent"]}]}, "pattern"),
        ({"policy": [{"type": "agent", "id": "{agent}", "access": []}]}, "at least 1"),
        ({"policy": [{"type": "agent", "id": "{agent}", "access": ["admin"]}]}, "read_agent"),
    ],
)
def test_invalid_token_requests_are_refused_with_a_reason(
    server: ServerInThread, agent: str, given: dict[str, Any], words: str
) -> None:
    body: dict[str, Any] = {"hostname": PAGES, "policy": policy(agent)} | given
    body["policy"] = [{**one, "id": one["id"].replace("{agent}", agent)} for one in body["policy"]]
    with server.http(headers=bearer(OPERATOR)) as http:
        answer = http.post("/v1/client-side-access-tokens", json=body)
    assert 400 <= answer.status_code < 500
    assert words in answer.text


def test_the_number_of_tokens_is_limited(
    server: ServerInThread, boss: StrictLetta, agent: str, monkeypatch: Any
) -> None:
    monkeypatch.setattr(service, "MOST", 0)
    with pytest.raises(ConflictError, match="not expired"):
        boss.access_tokens.create(hostname=PAGES, policy=policy(agent))
    with pytest.raises((NotFoundError, BadRequestError)):
        boss.access_tokens.create(
            hostname=PAGES, policy=policy("agent-00000000-0000-4000-8000-000000000000")
        )


def test_only_pages_of_the_tokens_origin_may_read_responses(
    server: ServerInThread, agent: str
) -> None:
    token = (
        server.client(api_key=server.key("pia"))
        .access_tokens.create(hostname=PAGES, policy=policy(agent))
        .token
    )
    path = f"/v1/agents/{agent}/messages"
    asks = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    with server.http() as http:
        before = http.options(path, headers={"origin": PAGES, **asks})
        assert before.status_code == 204
        assert before.headers["access-control-allow-headers"] == "authorization,content-type"
        for method, place in (
            ("POST", "/v1/keys/"),
            ("DELETE", f"/v1/agents/{agent}"),
            ("GET", "/users/ada/blocks"),
        ):
            asked = {"origin": PAGES, "access-control-request-method": method}
            assert http.options(place, headers=asked).status_code == 401
        token_header = bearer(token)
        found = http.get(path, headers={**token_header, "origin": PAGES})
        assert (found.status_code, found.headers["access-control-allow-origin"]) == (200, PAGES)
        assert found.headers["vary"] == "Origin"
        refused = http.get("/v1/agents/", headers={**token_header, "origin": PAGES})
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (403, PAGES)
        for origin in (
            "https://evil.example",
            "http://app.example.org",
            f"{PAGES}:444",
            f"{PAGES}.evil.example",
            "null",
            "",
        ):
            answer = http.get(path, headers={**token_header, "origin": origin})
            assert (answer.status_code, "access-control-allow-origin" in answer.headers) == (
                403,
                False,
            ), origin
        twice = [
            ("authorization", f"Bearer {token}"),
            ("origin", PAGES),
            ("origin", "https://evil.example"),
        ]
        assert http.get(path, headers=twice).status_code == 403
        # a request by the page's server, which sends no origin
        assert http.get(path, headers=token_header).status_code == 200
        # Pages of other origins cannot use other keys.
        for key in (OPERATOR, server.key("pia")):
            answer = http.get(path, headers={"authorization": f"Bearer {key}", "origin": PAGES})
            assert "access-control-allow-origin" not in answer.headers


def test_without_api_keys_a_token_is_restricted_too(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        local = server.client()
        agent, other = (local.agents.create(model=MODEL).id for _ in range(2))
        token = local.access_tokens.create(hostname=PAGES, policy=policy(agent)).token
        page = server.client(api_key=token)
        page.agents.messages.create(agent, input="Hello.")
        with pytest.raises(NotFoundError):
            page.agents.messages.create(other, input="Hello.")
        with pytest.raises(Denied):
            page.agents.delete(agent)
        with pytest.raises(AuthenticationError):
            server.client(api_key=f"{token}x").agents.list()
        assert local.agents.list().items  # no key was made, so none is needed


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://A.b", "https://a.b"),
        ("http://a.b:80/", "http://a.b"),
        ("http://a.b:443", "http://a.b:443"),
        ("http://[::1]:3000", "http://[::1]:3000"),
        ("https://a.b:x", ""),
        ("https://ada@a.b", ""),
        ("https://:secret@a.b", ""),
        ("ftp://a.b", ""),
        ("https://a.b:99999", ""),
        ("//a.b", ""),
        ("null", ""),
        ("http://[::1", ""),
    ],
)
def test_origins_are_normalized_as_browsers_do(url: str, origin: str) -> None:
    assert origin_of(url) == origin
