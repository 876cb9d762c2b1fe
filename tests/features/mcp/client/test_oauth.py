"""OAuth with MCP servers.

The official SDK's server asks for it, and others send wrong metadata.
"""

import html
import re
import secrets
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import orjson
import pytest
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    OAuthAuthorizationServerProvider,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from sqlalchemy import text

from ricordo.llm.scripted import call
from tests.api.conftest import Api
from tests.features.web.pages.test_shell import PAGE
from tests.seams.http import Wire, ok
from tests.seams.mcp import HttpThread, mcp_server, notes
from tests.seams.people import OPERATOR, People
from tests.seams.server import MODEL, serving


class Accounts(OAuthAuthorizationServerProvider[AuthorizationCode, RefreshToken, AccessToken]):
    """Consents to everything at once; its tokens last `seconds`."""

    def __init__(self) -> None:
        self.seconds = 3600
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.access: dict[str, AccessToken] = {}
        self.refresh: dict[str, RefreshToken] = {}
        self.refreshed = 0

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        assert client_info.client_id
        self.clients[client_info.client_id] = client_info

    async def authorize(
        self, client: OAuthClientInformationFull, params: AuthorizationParams
    ) -> str:
        code = AuthorizationCode(
            code=secrets.token_hex(16),
            client_id=client.client_id or "",
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            expires_at=time.time() + 60,
            scopes=params.scopes or [],
            code_challenge=params.code_challenge,
            resource=params.resource,
        )
        self.codes[code.code] = code
        return construct_redirect_uri(str(params.redirect_uri), code=code.code, state=params.state)

    async def load_authorization_code(
        self, client: Any, authorization_code: str
    ) -> AuthorizationCode | None:
        found = self.codes.get(authorization_code)
        return found if found and found.client_id == client.client_id else None

    def tokens(self, client_id: str, scopes: list[str]) -> OAuthToken:
        access, refresh = secrets.token_hex(16), secrets.token_hex(16)
        until = int(time.time()) + self.seconds
        self.access[access] = AccessToken(
            token=access, client_id=client_id, scopes=scopes, expires_at=until
        )
        self.refresh[refresh] = RefreshToken(token=refresh, client_id=client_id, scopes=scopes)
        return OAuthToken(
            access_token=access,
            refresh_token=refresh,
            token_type="Bearer",
            expires_in=self.seconds,
            scope=" ".join(scopes),
        )

    async def exchange_authorization_code(
        self, client: Any, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self.codes[authorization_code.code]
        return self.tokens(client.client_id, authorization_code.scopes)

    async def load_refresh_token(self, client: Any, refresh_token: str) -> RefreshToken | None:
        found = self.refresh.get(refresh_token)
        return found if found and found.client_id == client.client_id else None

    async def exchange_refresh_token(
        self, client: Any, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        del self.refresh[refresh_token.token]
        self.refreshed += 1
        return self.tokens(client.client_id, scopes or refresh_token.scopes)

    async def load_access_token(self, token: str) -> AccessToken | None:
        found = self.access.get(token)
        return found if found and (found.expires_at or 0) > time.time() else None

    async def revoke_token(self, token: Any) -> None:
        self.access.pop(token.token, None)


@pytest.fixture
def guarded() -> Iterator[tuple[str, Accounts]]:
    """Serve a server that needs OAuth; yield its address and its accounts."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    accounts, place = Accounts(), f"http://127.0.0.1:{port}"
    settings = AuthSettings(
        issuer_url=place,  # type: ignore[arg-type]
        resource_server_url=f"{place}/mcp",  # type: ignore[arg-type]
        client_registration_options=ClientRegistrationOptions(
            enabled=True, valid_scopes=["use"], default_scopes=["use"]
        ),
        required_scopes=["use"],
        validate_token_resource=False,
    )
    served = MCPServer("guarded", auth_server_provider=accounts, auth=settings)

    @served.tool()
    def greet(who: str) -> str:
        """Greet somebody."""
        return f"Hello, {who}."

    running = HttpThread(served.streamable_http_app(), port)
    try:
        yield f"{place}/mcp", accounts
    finally:
        running.stop()


def add(api: Api, url: str) -> Wire:
    config = {"mcp_server_type": "streamable_http", "server_url": url}
    made: Wire = ok(
        api.http.post(
            "/v1/mcp-servers/",
            json={"server_name": f"guarded{time.monotonic_ns()}", "config": config},
        )
    )
    return made


def consent(address: str) -> str:
    """Open the address as a browser does; return the address that it is redirected to."""
    answer = httpx2.get(address, trust_env=False)
    assert answer.status_code == 302, answer.text
    return str(answer.headers["location"])


def test_an_oauth_server_can_be_connected_used_and_refreshed(
    api: Api, guarded: tuple[str, Accounts]
) -> None:
    url, accounts = guarded
    made = add(api, url)
    assert (made["status"], made["is_connected"]) == ("failing", False)
    assert "connect to it by OAuth" in made["last_error"]
    place = f"/v1/mcp-servers/{made['id']}"
    back = consent(ok(api.http.post(f"{place}/connect"))["authorization_url"])
    assert urlsplit(back).path == "/v1/mcp-servers/oauth/callback"
    landed = api.http.get(back, follow_redirects=False)
    assert (landed.status_code, landed.headers["location"]) == (303, f"/ui/mcp/{made['id']}"), (
        landed.text
    )
    # The same redirect a second time does nothing.
    assert api.http.get(back, follow_redirects=False).status_code == 404
    connected = ok(api.http.patch(f"{place}/refresh")) and ok(api.http.get(place))
    assert (connected["status"], connected["is_connected"]) == ("working", True)
    (tool,) = ok(api.http.get(f"{place}/tools"))
    agent = api.client.agents.create(model=MODEL, tool_ids=[tool["id"]])
    # No token is in a response, or stored unencrypted.
    told = str([connected, tool, api.http.get(f"/ui/mcp/{made['id']}").text])
    stored = str(api.server.read(lambda tx: tx.all(text("SELECT * FROM mcp_servers"))))
    for token in (*accounts.access, *accounts.refresh):
        assert token not in told + stored

    def greeted() -> str:
        api.server.says(call(tool["name"], who="Ada"), "Done.")
        answer = api.client.agents.messages.create(agent.id, input="Go.")
        return next(
            one.tool_return for one in answer.messages if one.message_type == "tool_return_message"
        )

    assert greeted() == "Hello, Ada."
    # The token expires; the next one needs no person, also in new sessions.
    accounts.seconds = 1
    accounts.access.clear()
    ok(api.http.post(f"{place}/connect"))
    back = consent(ok(api.http.post(f"{place}/connect"))["authorization_url"])
    api.http.get(back, follow_redirects=False)
    assert greeted() == "Hello, Ada."
    accounts.seconds = 3600
    time.sleep(1.2)
    before = accounts.refreshed
    ok(api.http.patch(f"{place}/refresh"))
    assert accounts.refreshed > before
    assert greeted() == "Hello, Ada."
    # The server forgets the token early; the refresh token still works.
    before = accounts.refreshed
    accounts.access.clear()
    assert greeted() == "Hello, Ada."
    assert accounts.refreshed == before + 1
    # If the consent was withdrawn, the agent gets an error that says so, and its turn continues.
    accounts.access.clear()
    accounts.refresh.clear()
    api.http.patch(f"{place}/refresh")
    assert "connect to it by OAuth again" in greeted()
    assert ok(api.http.get(place))["status"] == "failing"
    api.http.delete(place)


def test_denied_and_forged_oauth_callbacks_connect_nothing(
    api: Api, guarded: tuple[str, Accounts]
) -> None:
    url, accounts = guarded
    made = add(api, url)
    place = f"/v1/mcp-servers/{made['id']}/connect"
    state = parse_qs(urlsplit(ok(api.http.post(place))["authorization_url"]).query)["state"][0]
    callback = "/v1/mcp-servers/oauth/callback"
    assert api.http.get(callback, params={"state": "guessed", "code": "x"}).status_code == 404
    assert api.http.get(callback).status_code == 404
    denied = api.http.get(callback, params={"state": state, "error": "access_denied"})
    assert (denied.status_code, "access_denied" in denied.text) == (400, True)
    state = parse_qs(urlsplit(ok(api.http.post(place))["authorization_url"]).query)["state"][0]
    wrong = api.http.get(callback, params={"state": state, "code": "not-a-code"})
    assert (wrong.status_code, "The connection by OAuth failed" in wrong.text) == (
        503,
        True,
    ), wrong.text
    assert api.server.provoked()  # a 503 that says why
    assert not ok(api.http.get(f"/v1/mcp-servers/{made['id']}"))["is_connected"]
    assert accounts.access == {}


def test_a_consent_that_another_person_began_is_confirmed_first(
    tmp_path: Path, guarded: tuple[str, Accounts]
) -> None:
    url, accounts = guarded
    settings: Any = {"api_key": OPERATOR, "allow_private_providers": True}
    with serving(tmp_path, **settings) as server, server.http() as http:
        people = People(server, http)
        config = {"mcp_server_type": "streamable_http", "server_url": url}
        body = {"server_name": "guarded", "config": config}
        mia = people.key("mia", "admin")
        place = f"/v1/mcp-servers/{people.ask(mia, 'POST', '/v1/mcp-servers/', json=body)['id']}"

        def came_back() -> str:
            return consent(people.ask(mia, "POST", f"{place}/connect")["authorization_url"])

        for key in (None, people.key("ada"), OPERATOR):
            back = came_back()
            with server.http() as browser:
                if key:
                    browser.post("/ui/login", data={"key": key}, headers=PAGE)
                page = browser.get(back)
                assert (page.status_code, "mia" in page.text) == (200, True)
                assert not people.ask(mia, "GET", place)["is_connected"]
                assert browser.get(f"{back}&confirmed=yes&path=x").status_code == 200
                assert accounts.access == {}
        (address,) = re.findall(r'href="([^"]*confirmed=[^"]*)"', page.text)
        assert http.get(html.unescape(address), follow_redirects=False).status_code == 303
        assert people.ask(mia, "GET", place)["is_connected"]
        accounts.access.clear()
        with server.http() as browser:
            browser.post("/ui/login", data={"key": mia}, headers=PAGE)
            assert browser.get(came_back(), follow_redirects=False).status_code == 303
        assert accounts.access


def test_more_than_twenty_waiting_consents_end_only_the_oldest(
    api: Api, guarded: tuple[str, Accounts]
) -> None:
    url, accounts = guarded
    made = add(api, url)
    place = f"/v1/mcp-servers/{made['id']}"
    addresses = [ok(api.http.post(f"{place}/connect"))["authorization_url"] for _ in range(21)]
    expired = api.http.get(consent(addresses[0]), follow_redirects=False)
    assert (expired.status_code, "has expired" in expired.text) == (404, True)
    for address in addresses[1:]:
        landed = api.http.get(consent(address), follow_redirects=False)
        assert landed.status_code == 303, landed.text
    assert accounts.access


class Liar:
    """A server that asks for OAuth, and sends the metadata that a test sets."""

    def __init__(self, metadata: dict[str, Any]) -> None:
        self.metadata = metadata
        self.port = 0

    async def __call__(self, scope: Any, _receive: Any, send: Any) -> None:

        if scope["type"] != "http":
            return
        here = f"http://127.0.0.1:{self.port}"
        path, status, body = scope["path"], 404, b"{}"
        if path == "/mcp":
            status = 401
        elif path.startswith("/.well-known/oauth-authorization-server"):
            known = {
                "issuer": here,
                "authorization_endpoint": f"{here}/authorize",
                "token_endpoint": f"{here}/token",
                "registration_endpoint": f"{here}/register",
                "response_types_supported": ["code"],
                "code_challenge_methods_supported": ["S256"],
            }
            status, body = 200, orjson.dumps(known | self.metadata)
        elif path == "/register":
            client = {
                "client_id": "x",
                "redirect_uris": ["http://127.0.0.1/v1/mcp-servers/oauth/callback"],
            }
            status, body = 201, orjson.dumps(client | self.metadata.get("client", {}))
        await send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(b"content-type", b"application/json")],
            }
        )
        await send({"type": "http.response.body", "body": body})


@pytest.mark.parametrize(
    "metadata",
    [
        {"authorization_endpoint": "javascript:alert(1)"},
        {"authorization_endpoint": "file:///etc/passwd"},
        {"issuer": "https://elsewhere.example"},
        {"registration_endpoint": "http://169.254.169.254/latest"},
        {"token_endpoint": 7},
        {"client": {"client_id": None}},
        {"client": {"client_id": "x" * 5_000_000}},
    ],
    ids=range(7),
)
def test_invalid_oauth_metadata_connects_nothing(api: Api, metadata: dict[str, Any]) -> None:
    liar = Liar(metadata)
    running = HttpThread(liar)
    liar.port = running.port
    try:
        made = add(api, f"http://127.0.0.1:{running.port}/mcp")
        answer = api.http.post(f"/v1/mcp-servers/{made['id']}/connect")
        # An address that is not a web address is replaced by the server's default address.
        is_usual = (
            answer.status_code == 200
            and f'url":"http://127.0.0.1:{running.port}/authorize?' in answer.text
        )
        assert is_usual or answer.status_code == 502, answer.text
        assert is_usual == bool(metadata.keys() & {"authorization_endpoint", "token_endpoint"})
        api.server.provoked()
        assert not ok(api.http.get(f"/v1/mcp-servers/{made['id']}"))["is_connected"]
    finally:
        running.stop()


def test_connecting_a_server_without_oauth_is_refused(api: Api) -> None:
    with mcp_server(notes()) as url:
        made = add(api, url)
        refused = api.http.post(f"/v1/mcp-servers/{made['id']}/connect")
        assert (refused.status_code, "needs no consent" in refused.text) == (409, True)


def test_the_server_page_links_to_the_oauth_consent(
    api: Api, guarded: tuple[str, Accounts]
) -> None:
    made = add(api, guarded[0])
    page = api.http.post(f"/ui/mcp/{made['id']}/connect").text
    assert f"Go on to {urlsplit(guarded[0]).netloc}" in page
    address = page.split('<a class="button primary" href="')[1].split('"')[0].replace("&amp;", "&")
    api.http.get(consent(address), follow_redirects=False)
    assert "Connect by OAuth again" in api.http.get(f"/ui/mcp/{made['id']}").text
