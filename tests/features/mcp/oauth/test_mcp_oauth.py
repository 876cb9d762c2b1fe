"""OAuth for `/mcp`: the official client with a real consent, and every way to cheat."""

import asyncio
import re
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx2
import pytest
from mcp import Client
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthToken,
)
from pydantic import AnyUrl
from sqlalchemy import select, text, update

from ricordo.features.mcp.oauth import grants
from ricordo.storage.schema.core_tables import api_keys
from tests.seams.http import ok, refused
from tests.seams.people import OPERATOR, OTHER_ORGANIZATION, People, bearer
from tests.seams.server import LIMIT, serving
from tests.support import postgres

BACK = "http://127.0.0.1:33418/callback"
VERIFIER = "v" * 50
CHALLENGE = urlsafe_b64encode(sha256(VERIFIER.encode()).digest()).rstrip(b"=").decode()
OWN = {"sec-fetch-site": "same-origin"}
METADATA = "/.well-known/oauth-protected-resource/mcp"


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Iterator[People]:
    with (
        serving(tmp_path_factory.mktemp("oauth"), api_key=OPERATOR) as server,
        server.http() as http,
    ):
        insert = text("INSERT INTO organizations (id, name, created_at) VALUES (:id, 'other', 0)")
        server.write(lambda tx: tx.run(insert, {"id": OTHER_ORGANIZATION}))
        yield People(server, http)


@contextmanager
def browser_of(people: People, key: str) -> Iterator[httpx2.Client]:
    """Return a browser in which a person has logged in on the page."""
    with people.server.http(follow_redirects=False) as browser:
        assert browser.post("/ui/login", data={"key": key}, headers=OWN).status_code == 303
        yield browser


def register(
    people: People, name: str = "Claude", uris: Any = (BACK,), **more: Any
) -> httpx2.Response:
    body = {
        "client_name": name,
        "redirect_uris": list(uris),
        "token_endpoint_auth_method": "none",
        **more,
    }
    return people.http.post("/oauth/register", json=body)


def client_of(people: People, **given: Any) -> str:
    answer = register(people, **given)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["client_id"])


def question(browser: httpx2.Client, client_id: str, **more: Any) -> httpx2.Response:
    asked = {"client_id": client_id, "redirect_uri": BACK, "response_type": "code", "state": "s1"}
    asked |= {"code_challenge": CHALLENGE, "code_challenge_method": "S256", **more}
    return browser.get(
        "/oauth/authorize", params={name: value for name, value in asked.items() if value}
    )


def consent(
    browser: httpx2.Client, client_id: str, decision: str = "allow", **more: Any
) -> dict[str, str]:
    """Go through the pages, and return what the program receives."""
    page = browser.get(question(browser, client_id, **more).headers["location"])
    assert page.status_code == 200, page.text
    (hidden,) = re.findall(r'name="question" value="([^"]+)"', page.text)
    answer = browser.post(
        "/oauth/consent", data={"question": hidden, "decision": decision}, headers=OWN
    )
    assert answer.status_code == 303
    assert answer.headers["location"].startswith(BACK)
    return dict(parse_qsl(urlsplit(answer.headers["location"]).query))


def token(people: People, client_id: str, **given: Any) -> httpx2.Response:
    form = {"client_id": client_id, "grant_type": "authorization_code", "redirect_uri": BACK}
    form |= {"code_verifier": VERIFIER, **given}
    return people.http.post("/oauth/token", data=form)


def refresh(people: People, client_id: str, old: str, **more: str) -> httpx2.Response:
    form = {"client_id": client_id, "grant_type": "refresh_token", "refresh_token": old, **more}
    return people.http.post("/oauth/token", data=form)


@dataclass
class Connected:
    client_id: str
    access: str
    refresh: str
    scope: str


def connect(people: People, key: str, **more: Any) -> Connected:
    client_id = client_of(people)
    with browser_of(people, key) as browser:
        code = consent(browser, client_id, **more)["code"]
    made = ok(token(people, client_id, code=code))
    return Connected(client_id, made["access_token"], made["refresh_token"], made["scope"])


def read(people: People, access: str) -> str:
    """Return the result of the tool `read_memory` with this token, or the status of the refusal."""

    async def ask() -> str:
        async with (
            httpx2.AsyncClient(headers=bearer(access), timeout=LIMIT, trust_env=False) as http,
            Client(streamable_http_client(f"{people.server.url}/mcp", http_client=http)) as client,
        ):
            result = await client.call_tool("read_memory", {})
            return "".join(one.text for one in result.content if one.type == "text")

    return asyncio.run(ask())


def status(people: People, access: str) -> int:
    return people.send(
        access, "POST", "/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "ping"}
    ).status_code


def token_works(people: People, access: str) -> bool:
    people.server.app.state.authentication.forget()
    return status(people, access) not in (401, 403)


class Kept:
    """The storage of the official client."""

    tokens: OAuthToken | None = None
    client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


@pytest.mark.parametrize("method", ["none", "client_secret_post", "client_secret_basic"])
def test_the_official_mcp_client_connects_after_consent_and_refreshes_its_token(
    people: People, method: Any
) -> None:
    key = people.key("ada")
    ok(people.send(key, "PUT", "/users/ada/blocks/human", json={"body": "Ada flies planes."}))
    kept, back = Kept(), {}

    async def open_browser(address: str) -> None:
        with browser_of(people, key) as browser:
            page = browser.get(browser.get(address).headers["location"])
            (hidden,) = re.findall(r'name="question" value="([^"]+)"', page.text)
            answer = browser.post(
                "/oauth/consent", data={"question": hidden, "decision": "allow"}, headers=OWN
            )
            back.update(parse_qsl(urlsplit(answer.headers["location"]).query))

    async def come_back() -> AuthorizationCodeResult:
        return AuthorizationCodeResult(code=back["code"], state=back["state"])

    async def go() -> str:
        about = OAuthClientMetadata(
            client_name="A client", redirect_uris=[AnyUrl(BACK)], token_endpoint_auth_method=method
        )
        auth = OAuthClientProvider(f"{people.server.url}/mcp", about, kept, open_browser, come_back)
        async with (
            httpx2.AsyncClient(auth=auth, timeout=LIMIT, trust_env=False) as http,
            Client(streamable_http_client(f"{people.server.url}/mcp", http_client=http)) as client,
        ):
            first = await client.call_tool("read_memory", {})
            assert kept.tokens
            before = kept.tokens.access_token
            auth.context.token_expiry_time = 1.0
            second = await client.call_tool("read_memory", {})
            assert kept.tokens.access_token != before
            assert first.content == second.content
            return str(second.content)

    assert "Ada flies planes." in asyncio.run(go())


def test_a_request_without_a_token_gets_the_oauth_metadata_url(people: People) -> None:
    answer = people.http.post("/mcp", json={})
    refused(answer, 401)
    assert (
        answer.headers["www-authenticate"]
        == f'Bearer resource_metadata="{people.server.url}{METADATA}"'
    )
    assert "www-authenticate" not in people.http.get("/v1/agents/").headers
    about = ok(people.http.get(METADATA))
    assert about["resource"] == f"{people.server.url}/mcp"
    assert about["authorization_servers"] == [people.server.url]
    proxied = {"x-forwarded-proto": "https", "host": "ricordo.example.org"}
    for path in ("/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"):
        served = ok(people.http.get(path, headers=proxied))
        assert served["issuer"] == "https://ricordo.example.org"
        assert served["token_endpoint"] == "https://ricordo.example.org/oauth/token"
        assert served["code_challenge_methods_supported"] == ["S256"]
    answer = people.http.post("/mcp", json={}, headers=proxied)
    assert f'"https://ricordo.example.org{METADATA}"' in answer.headers["www-authenticate"]


def test_an_mcp_token_works_only_for_mcp_within_the_users_scopes(
    people: People,
) -> None:
    made = connect(
        people, people.key("bea", scopes=("memory:read", "agents:read", "memory:approve"))
    )
    assert set(made.scope.split()) == {"memory:read", "agents:read"}
    assert token_works(people, made.access)
    for method, path in (
        ("GET", "/v1/agents/"),
        ("GET", "/users/bea/blocks"),
        ("GET", "/ui/agents"),
        ("POST", "/logout"),
    ):
        assert "is only for /mcp" in refused(people.send(made.access, method, path), 403)
    for key in (made.access, made.refresh):
        assert people.http.post("/ui/login", data={"key": key}, headers=OWN).status_code == 401
    assert status(people, made.refresh) == 401
    narrow = connect(people, people.key("bea"), scope="memory:read")
    assert narrow.scope == "memory:read"


def test_each_person_and_organization_has_its_own_memory(people: People) -> None:
    for organization, body in (("", "Here."), (OTHER_ORGANIZATION, "There.")):
        more = {"organization": organization} if organization else {}
        key = people.key("eve", **more)
        ok(people.send(key, "PUT", "/users/eve/blocks/human", json={"body": body}))
        assert body in read(people, connect(people, key).access)
    assert "Nothing is remembered" in read(people, connect(people, people.key("fay")).access)


def test_tokens_are_not_stored_in_plain_text(people: People) -> None:
    made = connect(people, people.key("gil"))
    for file in people.server.settings.data_dir.rglob("*"):
        content = file.read_bytes() if file.is_file() else b""
        assert made.access.encode() not in content, file
        assert made.refresh.encode() not in content, file


def test_a_grant_is_listed_and_revoked_like_an_api_key(people: People) -> None:
    made = connect(people, people.key("hal"))
    (listed,) = [
        one for one in people.ask(OPERATOR, "GET", "/v1/keys/") if one["name"] == "Claude (MCP)"
    ][:1]
    assert (listed["role"], listed["user_id"]) == ("user", people.id_of("hal"))
    assert token_works(people, made.access)
    people.ask(OPERATOR, "DELETE", f"/v1/keys/{listed['id']}")
    assert not token_works(people, made.access)
    assert refresh(people, made.client_id, made.refresh).json()["error"] == "invalid_grant"


def test_a_program_can_revoke_only_its_own_grant(people: People) -> None:
    made, other = connect(people, people.key("ian")), client_of(people, name="Other")

    def revoke(client_id: str, token: str) -> int:
        form = {"client_id": client_id, "client_secret": "", "token": token}
        return people.http.post("/oauth/revoke", data=form).status_code

    for kind in (made.access, made.refresh):
        assert revoke(other, kind) == 200
        assert token_works(people, made.access)
    assert revoke(made.client_id, made.access) == 200
    assert not token_works(people, made.access)
    assert refresh(people, made.client_id, made.refresh).status_code == 400
    again = connect(people, people.key("ian"))
    assert revoke(again.client_id, again.refresh) == 200
    assert not token_works(people, again.access)


def test_reusing_a_refresh_token_revokes_the_whole_grant(people: People) -> None:
    made = connect(people, people.key("jon"))
    new = ok(refresh(people, made.client_id, made.refresh))
    assert not token_works(people, made.access)
    assert token_works(people, new["access_token"])
    assert refresh(people, made.client_id, made.refresh).json()["error"] == "invalid_grant"
    assert not token_works(people, new["access_token"])
    assert refresh(people, made.client_id, new["refresh_token"]).status_code == 400


def test_forged_refresh_tokens_do_not_revoke_a_grant(people: People) -> None:
    made = connect(people, people.key("jon"))
    start, own, signature = made.refresh.split(".")
    forged = [
        start,
        f"{start}.",
        f"{start}.x",
        f"{start}.{'A' * 43}",
        f"{start}.{own}x.{signature}",
    ]
    forged += [
        f"{start}.{'A' * 43}.{signature}",
        f"{start}.{own}.{signature[:-2]}",
        f"{start}.{own}.",
        f"{start}..\u00e9",
    ]
    other = client_of(people, name="Other")
    for token in forged:
        for client_id in (made.client_id, other):
            assert refresh(people, client_id, token).status_code == 400, token
            form = {"client_id": client_id, "client_secret": "", "token": token}
            assert people.http.post("/oauth/revoke", data=form).status_code == 200
    assert token_works(people, made.access)
    assert token_works(people, ok(refresh(people, made.client_id, made.refresh))["access_token"])


def test_a_refresh_token_used_by_another_program_is_refused(people: People) -> None:
    made, other = connect(people, people.key("kim")), client_of(people, name="Other")
    assert refresh(people, other, made.refresh).status_code == 400
    assert not token_works(people, made.access)  # it may be stolen
    for wrong in (
        "",
        "ricordo_refresh_",
        f"ricordo_refresh_key-{'0' * 8}.x",
        "\0",
        people.key("kim"),
    ):
        assert refresh(people, other, wrong).status_code == 400, wrong
    narrow = connect(people, people.key("kim"), scope="memory:read")
    more = refresh(people, narrow.client_id, narrow.refresh, scope="memory:read memory:write")
    assert more.json()["error"] == "invalid_scope"


def test_a_code_works_once_with_its_client_redirect_uri_and_verifier(people: People) -> None:
    client_id, other = client_of(people), client_of(people, name="Other")
    with browser_of(people, people.key("lea")) as browser:
        code = consent(browser, client_id)["code"]
        wrong = (
            (other, {}),
            (client_id, {"code_verifier": "w" * 50}),
            (client_id, {"redirect_uri": "http://127.0.0.1:33418/other"}),
            (client_id, {"redirect_uri": f"{BACK}/"}),
            (client_id, {"code": f"{code}x"}),
            (client_id, {"code": code.replace(".", "x.")}),
            (f"{client_id}x", {}),
        )
        for who, given in wrong:
            assert token(people, who, **{"code": code, **given}).status_code in (400, 401), given
        made = ok(token(people, client_id, code=code))
        assert token_works(people, made["access_token"])
        assert token(people, client_id, code=code).json()["error"] == "invalid_grant"
        # The code was used twice, so one of the two programs may have stolen it.
        assert not token_works(people, made["access_token"])


def test_expired_codes_questions_and_tokens_are_refused(
    people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    client_id = client_of(people)
    made = connect(people, people.key("max"))
    with browser_of(people, people.key("max")) as browser:
        monkeypatch.setattr("ricordo.features.mcp.oauth.routes.CODE_SECONDS", -1)
        late = consent(browser, client_id)["code"]
        assert "expired" in token(people, client_id, code=late).json()["error_description"]
        monkeypatch.setattr(grants, "QUESTION_SECONDS", -1)
        asked = question(browser, client_id).headers["location"]
        assert "This request has expired" in browser.get(asked).text
    past = update(api_keys).values(expires_at=1)
    people.server.write(lambda tx: tx.run(past.where(api_keys.c.kind == "access")))
    assert not token_works(people, made.access)
    people.server.write(lambda tx: tx.run(past.where(api_keys.c.name == "Claude (MCP)")))
    assert refresh(people, made.client_id, made.refresh).status_code == 400


def test_invalid_authorization_requests_are_not_redirected(people: People) -> None:
    client_id = client_of(people)
    cases: list[dict[str, Any]] = [
        {"redirect_uri": "https://evil.example/callback"},
        {"redirect_uri": f"{BACK}?x=1"},
        {"scope": "memory:approve"},
        {"scope": "admin"},
        {"resource": "https://evil.example/mcp"},
        {"code_challenge": None},
        {"code_challenge_method": "plain"},
        {"response_type": "token"},
        {"client_id": "x"},
        {"client_id": f"{client_id}x"},
    ]
    with browser_of(people, people.key("nia")) as browser:
        for case in cases:
            answer = question(browser, **{"client_id": client_id, **case})
            assert (answer.status_code, answer.headers.get("location")) == (400, None), case
        assert consent(browser, client_id, "deny") == {"error": "access_denied", "state": "s1"}


def test_only_https_loopback_and_app_redirect_uris_can_be_registered(people: People) -> None:
    fine = (
        "https://claude.ai/api/mcp/auth_callback",
        "http://localhost:3/x",
        "http://[::1]/x",
        "cursor://x/y",
        "com.app:/x",
    )
    for uri in fine:
        assert register(people, uris=[uri]).status_code == 201, uri
    wrong = (
        "http://evil.example/x",
        "javascript:alert(1)",
        "data:text/html,x",
        "https://a.example/x#y",
        "file:///etc/passwd",
    )
    for uri in (*wrong, "https://user@evil.example/", "https://evil.example;x/", "ricordo:x"):
        assert register(people, uris=[uri]).status_code == 400, uri
    assert register(people, uris=[]).status_code == 400
    assert register(people, uris=[BACK] * 6).status_code == 400
    assert register(people, uris=[f"https://a.example/{'x' * 3000}"]).status_code == 400
    assert register(people, name="x" * 20_000).status_code == 413


def test_client_registrations_add_no_rows(people: People) -> None:
    before = people.server.rows()
    assert len({client_of(people, name=f"Client {number}") for number in range(50)}) == 50
    assert people.server.rows() == before


def test_a_client_name_with_html_is_escaped_on_the_consent_page(people: People) -> None:
    client_id = client_of(people, name='<script>alert("x")</script>\x1b[1m\u202e')
    with browser_of(people, people.key("oda")) as browser:
        page = browser.get(question(browser, client_id).headers["location"])
    assert "<script>alert" not in page.text
    assert "&lt;script&gt;" in page.text
    assert "\u202e" not in page.text
    assert "form-action 'self' http://127.0.0.1:33418;" in page.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]


def test_consent_needs_a_login_and_a_form_of_this_server(people: People) -> None:
    client_id = client_of(people)
    with people.server.http(follow_redirects=False) as nobody:
        page = {"accept": "text/html", "sec-fetch-mode": "navigate"}
        there = nobody.get("/oauth/authorize", params={"client_id": client_id}, headers=page)
        assert there.headers["location"].startswith(
            "/ui/login?next=%2Foauth%2Fauthorize%3Fclient_id%3D"
        )
        assert nobody.post("/oauth/consent", data={"decision": "allow"}).status_code == 401
    with browser_of(people, people.key("pia")) as pia, browser_of(people, people.key("eve")) as eve:
        asked = dict(parse_qsl(urlsplit(question(pia, client_id).headers["location"]).query))[
            "question"
        ]
        form = {"question": asked, "decision": "allow"}
        for headers in ({}, {"sec-fetch-site": "cross-site"}, {"origin": "https://evil.example"}):
            assert pia.post("/oauth/consent", data=form, headers=headers).status_code == 403
        for browser, given in (
            (eve, form),
            (pia, {**form, "question": f"{asked}x"}),
            (pia, {"decision": "allow"}),
        ):
            answer = browser.post("/oauth/consent", data=given, headers=OWN)
            assert (answer.status_code, answer.headers.get("location")) == (400, None)
        # The id of the consent request is not a code.
        assert token(people, client_id, code=asked).status_code == 400
    service = people.key("pipe", "service")
    assert "Only a person" in people.send(service, "GET", "/oauth/authorize").text
    assert "Only a person" in people.send(OPERATOR, "GET", "/oauth/authorize").text


def test_grants_of_disabled_and_erased_users_stop_working(people: People) -> None:
    made = connect(people, people.key("quin"))
    people.ask(OPERATOR, "PATCH", "/v1/users/quin", json={"disabled": True})
    assert not token_works(people, made.access)
    assert refresh(people, made.client_id, made.refresh).status_code == 400
    made = connect(people, people.key("ray"))
    client_id = client_of(people)
    with browser_of(people, people.key("ray")) as browser:
        code = consent(browser, client_id)["code"]
    id = people.id_of("ray")
    assert people.send(OPERATOR, "DELETE", "/users/ray").status_code in (200, 202)
    assert not token_works(people, made.access)
    assert token(people, client_id, code=code).status_code == 400
    left, until = select(api_keys.c.id).where(api_keys.c.user_id == id), time.monotonic() + LIMIT
    while people.server.read(lambda tx: tx.all(left)):
        assert time.monotonic() < until
        time.sleep(0.05)
    assert refresh(people, made.client_id, made.refresh).status_code == 400


def test_token_requests_are_in_the_audit_log_without_tokens(people: People) -> None:
    made = connect(people, people.key("sam"))
    new = ok(refresh(people, made.client_id, made.refresh))
    refresh(people, made.client_id, made.refresh)
    rows = people.ask(
        OPERATOR, "GET", "/v1/audit-log", params={"user_id": "sam", "action": "/oauth/"}
    )
    assert [(row["action"], row["status"], row["user"]) for row in rows] == [
        ("POST /oauth/token", 400, "sam"),
        ("POST /oauth/token", 200, "sam"),
        ("POST /oauth/token", 200, "sam"),
        ("POST /oauth/consent", 303, "sam"),
    ]
    assert made.refresh not in str(rows)
    assert new["access_token"] not in str(rows)


def test_a_server_without_api_keys_needs_no_consent(tmp_path: Any) -> None:
    with serving(tmp_path) as server, server.http() as http:
        headers = {"accept": "application/json, text/event-stream"}
        assert (
            http.post(
                "/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "ping"}, headers=headers
            ).status_code
            == 200
        )
        assert "needs no key" in http.get("/oauth/authorize").text


def test_codes_and_refresh_tokens_work_once_across_two_servers(
    tmp_path: Any,
) -> None:
    url = postgres.server().new_database()
    try:
        given = {"api_key": OPERATOR, "database_url": url}
        with (
            serving(tmp_path, **given) as one,
            serving(tmp_path, **given) as two,
            one.http() as http,
            two.http() as other,
        ):
            here, there = People(one, http), People(two, other)
            client_id = client_of(here)
            with browser_of(here, here.key("ada")) as browser:
                code = consent(browser, client_id)["code"]
            made = ok(token(there, client_id, code=code))
            new = ok(refresh(here, client_id, made["refresh_token"]))
            assert token_works(there, new["access_token"])
            assert refresh(there, client_id, made["refresh_token"]).status_code == 400
            assert not token_works(here, new["access_token"])
            assert token(here, client_id, code=code).status_code == 400
    finally:
        postgres.server().drop(url)
