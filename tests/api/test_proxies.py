"""A server behind a proxy that ends TLS and may remove a path prefix."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from ricordo.settings import load_settings
from tests.features.identity.login.provider import CLIENT, SECRET, providing
from tests.seams.http import bearer
from tests.seams.server import MODEL, ServerInThread, serving

KEY, BASE = "a-long-secret-of-twenty", "/ricordo"
# Headers of a proxy for https://example.org/ricordo/.
PROXY = {"host": "example.org", "x-forwarded-proto": "https", "x-forwarded-for": "203.0.113.9"}


@pytest.fixture(scope="module")
def below(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    with (
        serving(tmp_path_factory.mktemp("below"), api_key=KEY, root_path=BASE) as server,
        server.http(headers=PROXY) as http,
    ):
        yield http


def test_every_link_and_redirect_of_a_page_keeps_the_root_path(below: httpx2.Client) -> None:
    asked = below.get("/ui/agents", headers={"accept": "text/html"})
    assert (asked.status_code, asked.headers["location"]) == (
        303,
        f"{BASE}/ui/login?next=%2Fui%2Fagents",
    )
    logged_in = below.post(
        "/ui/login",
        data={"key": KEY, "next": "/ui/agents"},
        headers={"origin": "https://example.org"},
    )
    assert (logged_in.status_code, logged_in.headers["location"]) == (303, f"{BASE}/ui/agents")
    cookie = logged_in.headers["set-cookie"]
    assert f"Path={BASE}/;" in cookie
    assert "Secure" in cookie
    session = {"cookie": cookie.partition(";")[0]}
    for path in ("/", "/ui/agents", "/ui/search", "/ui/settings", "/ui/models"):
        page = below.get(path, headers=session)
        assert page.status_code == 200, path
        links = [
            part.partition('"')[0]
            for name in ("href", "src", "action")
            for part in page.text.split(f' {name}="')[1:]
        ]
        assert [
            link for link in links if link.startswith("/") and not link.startswith(f"{BASE}/")
        ] == [], path
        assert links


def test_the_api_answers_below_the_root_path(below: httpx2.Client) -> None:
    below_key = bearer(KEY)
    assert below.get("/v1/health/").status_code == 200
    assert below.get("/v1/health").status_code == 200
    made = below.post("/v1/agents/", headers=below_key, json={"model": MODEL})
    assert made.status_code == 200
    assert below.get(f"/v1/agents/{made.json()['id']}", headers=below_key).status_code == 200
    assert below.get("/ui/static/ui.css").status_code == 200
    assert below.get("/v1/agents/").status_code == 401


def test_a_login_at_a_provider_comes_back_below_the_path(tmp_path: Path) -> None:
    with providing() as provider:
        login = {
            "oidc_issuer": provider.issuer,
            "oidc_client_id": CLIENT,
            "oidc_client_secret": SECRET,
        }
        with (
            serving(tmp_path, root_path=BASE, **login) as server,
            server.http(headers=PROXY) as http,
        ):
            begun = http.get("/login", params={"next": "/users/ada"})
            assert (
                "redirect_uri=https%3A%2F%2Fexample.org%2Fricordo%2Flogin%2Fcallback"
                in begun.headers["location"]
            )
            assert f"Path={BASE}/login/callback;" in begun.headers["set-cookie"]
            with httpx2.Client(trust_env=False) as elsewhere:
                back = elsewhere.get(begun.headers["location"]).headers["location"]
            path = back.removeprefix(f"https://example.org{BASE}")
            done = http.get(path, headers={"cookie": begun.headers["set-cookie"].partition(";")[0]})
            assert (done.status_code, done.headers["location"]) == (303, f"{BASE}/users/ada"), (
                done.text
            )
            assert f"Path={BASE}/;" in str(done.headers.get_list("set-cookie"))


def test_a_proxy_may_keep_the_root_path_also_for_git_and_redirects(below: httpx2.Client) -> None:
    headers = bearer(KEY)
    for path in ("/v1/agents/", f"{BASE}/v1/agents/"):
        assert below.get(path, headers=headers).status_code == 200
    moved = below.get("/v1/agents", headers=headers)
    assert (moved.status_code, moved.headers["location"]) == (
        307,
        f"https://example.org{BASE}/v1/agents/",
    )
    assert below.get(f"{BASE}/v1/health/").status_code == 200
    for path in ("/users/ada/memory.git/info/refs", f"{BASE}/users/ada/memory.git/info/refs"):
        asked = below.get(path, params={"service": "git-upload-pack"})
        assert (asked.status_code, asked.headers["www-authenticate"][:5]) == (401, "Basic")


def test_a_server_without_a_key_refuses_requests_forwarded_from_other_machines(
    server: ServerInThread, http: httpx2.Client
) -> None:
    """Nginx sends the host name 127.0.0.1 by default.

    So everybody on the internet was once the local administrator.
    """
    rows = server.rows()
    told = (
        "This request came through a proxy from another machine, and this server has no key. Set "
        "RICORDO_API_KEY."
    )
    for said in ("203.0.113.9", "127.0.0.1, 203.0.113.9", "203.0.113.9, 127.0.0.1", "unknown"):
        for method, body in (("GET", None), ("POST", {"model": MODEL})):
            answer = http.request(
                method, "/v1/agents/", headers={"x-forwarded-for": said}, json=body
            )
            assert (answer.status_code, answer.json()["detail"]) == (403, told), said
    twice = [("x-forwarded-for", "127.0.0.1"), ("x-forwarded-for", "203.0.113.9")]
    assert http.get("/v1/agents/", headers=twice).status_code == 403
    assert server.rows() == rows
    assert http.get("/v1/agents/", headers={"x-forwarded-for": "127.0.0.1"}).status_code == 200


ELSEWHERE = ("203.0.113.9", "2001:db8::7", "unknown", "_hidden", "127.0.0.1, 203.0.113.9")


def test_every_header_that_names_another_machine_is_refused_without_a_key(
    http: httpx2.Client,
) -> None:
    names = ("x-forwarded-for", "x-real-ip", "cf-connecting-ip", "true-client-ip")
    passed_on = [{name: address} for name in names for address in ELSEWHERE]
    for address in ("203.0.113.9", '"[2001:db8::7]:4711"', "unknown", '"203.0.113.9:80"'):
        passed_on += [
            {"forwarded": f"for={address}"},
            {"forwarded": f"by=127.0.0.1;FOR = {address};proto=https"},
        ]
        passed_on += [{"forwarded": f"for=127.0.0.1, for={address}"}]
    passed_on += [
        {"via": "1.1 proxy"},
        {"forwarded": "proto=https"},
        {"via": "1.1 a", "x-real-ip": "203.0.113.9"},
    ]
    for headers in passed_on:
        answer = http.get("/v1/agents/", headers=headers)
        assert answer.status_code == 403, headers
        assert "RICORDO_API_KEY" in answer.json()["detail"]
    own = [
        {name: address}
        for name in names
        for address in ("127.0.0.1", "::1", "127.0.0.1:4711", "[::1]:4711")
    ]
    own += [
        {"forwarded": 'for="[::1]:4711";proto=http'},
        {"via": "1.1 proxy", "x-forwarded-for": "127.0.0.1"},
    ]
    for headers in own:
        assert http.get("/v1/agents/", headers=headers).status_code == 200, headers


def test_every_response_forbids_sniffing_and_caching(
    http: httpx2.Client,
) -> None:
    agent = http.post("/v1/agents/", json={"model": MODEL}).json()["id"]
    streamed = http.post(f"/v1/agents/{agent}/messages/stream", json={"input": "Hello."})
    asked = (
        "/v1/agents/",
        f"/v1/agents/{agent}/export",
        "/v1/agents/agent-0",
        "/v1/health/",
        "/nowhere",
    )
    for answer in (streamed, *(http.get(path) for path in asked)):
        assert answer.headers["x-content-type-options"] == "nosniff", answer.url
        assert (
            "no-store" in answer.headers["cache-control"]
            or "no-cache" in answer.headers["cache-control"]
        ), answer.url
    page = http.get("/ui/agents")
    assert page.headers.get_list("x-content-type-options") == ["nosniff"]
    assert page.headers.get_list("cache-control") == ["no-store"]


@pytest.mark.parametrize("path", ["ricordo", "/ricordo/", "/", "/a b", "//x", "https://x/y"])
def test_an_invalid_root_path_is_refused_by_name(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RICORDO_ROOT_PATH", path)
    with pytest.raises(Exception, match="RICORDO_ROOT_PATH"):
        load_settings()


@pytest.mark.parametrize("path", ["", "/ricordo", "/tools/ricordo-2", "/v12"])
def test_a_root_path_may_have_several_segments(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RICORDO_ROOT_PATH", path)
    settings: Any = load_settings()[0]
    assert settings.root_path == path
