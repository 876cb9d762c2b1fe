from collections.abc import Iterator
from typing import Any

import httpx2
import letta_client
import pytest

from ricordo.domain.scope import Scope
from tests.seams.http import bearer
from tests.seams.server import MODEL, ServerInThread, serving

KEY = "a-long-secret"
ROUTES = ["/openapi.json", "/v1/agents/", "/v1/models/", "/v1/nothing"]


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    with serving(tmp_path_factory.mktemp("locked"), api_key=KEY) as server:
        yield server


@pytest.fixture(scope="module")
def locked_http(locked: ServerInThread) -> Iterator[httpx2.Client]:
    with locked.http() as opened:
        yield opened


WRONG = (
    "",
    "Bearer wrong",
    f"Bearer {KEY}x",
    f"Bearer {KEY[:-1]}",
    f"Basic {KEY}",
    b"Bearer \xff\xfe",
)
WITHOUT_THE_KEY: list[dict[str, Any]] = [
    {},
    {"x-api-key": KEY},
    *({"authorization": key} for key in WRONG),
]


def test_without_the_key_every_route_is_refused(
    locked: ServerInThread, locked_http: httpx2.Client
) -> None:
    rows = locked.rows()
    told = "Send this server's key as `Authorization: Bearer …`; letta-client takes it as api_key."
    for path in ROUTES:
        for headers in WITHOUT_THE_KEY:
            answer = locked_http.get(path, headers=headers)
            is_wrong = "Bearer" in str(headers)
            why = "This key is unknown, expired or revoked. " if is_wrong else ""
            where = (path, headers)
            assert (answer.status_code, answer.json()["detail"]) == (401, why + told), where
            assert answer.headers["content-type"] == "application/json"
    assert locked_http.post("/v1/agents/", json={"model": MODEL}).status_code == 401
    assert locked.rows() == rows


def test_the_key_opens_every_route(locked: ServerInThread, locked_http: httpx2.Client) -> None:
    for path in ROUTES[:-1]:
        for more in ({}, {"origin": "https://app.example", "host": "ricordo.example"}):
            assert (
                locked_http.get(
                    path, headers={"authorization": f"Bearer {KEY}", **more}
                ).status_code
                == 200
            )
    with locked.client(api_key=KEY) as client:
        assert client.agents.create(model=MODEL).model == MODEL
        with pytest.raises(letta_client.AuthenticationError):
            client.with_options(api_key="wrong").agents.list()


def test_a_program_with_a_key_may_write_although_it_sends_an_old_cookie(
    locked: ServerInThread, locked_http: httpx2.Client
) -> None:
    headers = {"authorization": f"Bearer {KEY}", "cookie": "ricordo_session=old"}
    assert (
        locked_http.post("/v1/agents/", json={"model": MODEL}, headers=headers).status_code == 200
    )
    # A wrong key is not replaced by a cookie.
    with locked.http(headers=bearer(KEY)) as http:
        http.cookies.set("ricordo_session", KEY)
        assert http.get("/v1/agents/").status_code == 200
        wrong = {"authorization": "Bearer wrong"}
        assert http.get("/v1/agents/", headers=wrong).status_code == 401


def test_health_needs_no_key(locked_http: httpx2.Client) -> None:
    for path in ("/v1/health", "/v1/health/"):
        assert locked_http.get(path).json()["status"] == "ok"
        assert locked_http.get(path, headers={"host": "elsewhere.example"}).status_code == 200


FOREIGN_HOSTS = (
    *(
        "evil.example",
        "evil.example:8283",
        "127.0.0.1.evil.example",
        "192.168.0.7:8283",
        "[::1",
        "",
        "[fe80::1]",
    ),
)
FOREIGN_ORIGINS = (
    *(
        "https://evil.example",
        "null",
        "http://localhost:3000",
        "http://127.0.0.1",
        "file://",
        "http://[::1",
        "x",
    ),
)


def test_without_a_key_a_foreign_host_or_origin_is_refused(
    http: httpx2.Client, server: ServerInThread
) -> None:
    rows = server.rows()
    for host in FOREIGN_HOSTS:
        for answer in (
            http.get("/v1/agents/", headers={"host": host}),
            http.get("/v1/health/", headers={"host": host}),
            http.post("/v1/agents/", headers={"host": host}, json={"model": MODEL}),
        ):
            assert answer.status_code == 403, host
            assert answer.json()["detail"].startswith("This server is not known as ")
    for origin in FOREIGN_ORIGINS:
        answer = http.post("/v1/agents/", headers={"origin": origin}, json={"model": MODEL})
        told = f"Pages of {origin} may not use this server. Only its own pages and programs may."
        assert (answer.status_code, answer.json()) == (403, {"detail": told})
    assert server.rows() == rows


def test_without_a_key_every_name_of_this_machine_is_accepted(
    http: httpx2.Client, server: ServerInThread
) -> None:
    assert http.get("/v1/agents/", headers={"origin": server.url}).status_code == 200
    for host in ("localhost", "localhost:1", "127.0.0.1:80", "[::1]:8283", "LOCALHOST"):
        assert http.get("/v1/agents/", headers={"host": host}).status_code == 200, host


def test_the_start_page_needs_no_key_and_counts_no_agents(
    locked: ServerInThread, locked_http: httpx2.Client
) -> None:
    with locked.client(api_key=KEY) as client:
        client.agents.create(model=MODEL)

    page = locked_http.get("/")

    assert page.status_code == 200
    assert "Every other request needs a key." in page.text
    assert "Agents" not in page.text


def test_the_key_of_a_tool_call_ends_with_the_call_and_has_fewer_rights(
    server: ServerInThread,
    http: httpx2.Client,
    locked: ServerInThread,
    locked_http: httpx2.Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # After many unknown keys from one address, each further one would wait for a second.
    monkeypatch.setattr("ricordo.api.authentication.DELAY", 0)

    def answers(http: httpx2.Client, key: str) -> list[int]:
        headers = bearer(key)
        return [
            http.get(path, headers=headers).status_code
            for path in ("/v1/agents/", "/v1/keys/", "/v1/users/")
        ]

    for one, its in ((server, http), (locked, locked_http)):
        with one.runtime.sandbox.keys.issue(Scope(), "roll_d20") as key:
            assert answers(its, key) == [200, 403, 403]
            made = its.post("/v1/agents/", json={"model": MODEL}, headers=bearer(key))
            assert made.status_code == 200
        assert answers(its, key) == [401, 401, 401]
    with server.runtime.sandbox.keys.issue(Scope(), "roll_d20") as key:
        assert answers(locked_http, key) == [401, 401, 401]  # the key of another server


def test_on_an_open_server_a_tools_key_still_has_only_its_callers_scopes(
    server: ServerInThread, http: httpx2.Client
) -> None:
    with server.runtime.sandbox.keys.issue(
        Scope(scopes=frozenset(("agents:read",))), "peek"
    ) as key:
        headers = bearer(key)
        assert (
            http.get("/v1/agents/", headers=headers | {"x-ricordo-user": "ada"}).status_code == 403
        )
        assert http.get("/v1/agents/", headers=headers).status_code == 200
        assert http.post("/v1/agents/", json={"model": MODEL}, headers=headers).status_code == 403
