"""Login, and the common parts of all pages: sessions, forms, headers, errors, a path prefix."""

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, unquote

import httpx2
import pytest
from fastapi.testclient import TestClient
from starlette.applications import Starlette
from starlette.routing import Mount

import ricordo.features
from ricordo.app import create_app
from ricordo.pages.shell import HEADERS, environment
from ricordo.settings import ProviderSettings, Settings
from tests.features.identity.login.provider import providing
from tests.features.identity.login.test_login import set_up
from tests.seams.http import ok, refused
from tests.seams.people import OPERATOR, People, World, bearer, open_world
from tests.seams.routes import Cell, cells_of
from tests.seams.server import MODEL, serving

SESSION, TOLD = "ricordo_session", "ricordo_told"
OWN = {"sec-fetch-site": "same-origin"}
PAGE = {"accept": "text/html,application/xhtml+xml"}


@dataclass
class Site(People):
    """A server on which everybody needs a key; `http` is a browser that shows pages."""

    def log_in(self, key: str, next: str = "/", **headers: str) -> httpx2.Response:
        return self.http.post(
            "/ui/login", data={"key": key, "next": next}, headers={**OWN, **headers}
        )

    def is_in(self, cookie: str = "") -> bool:
        """Return whether this browser, or another with this cookie, may see the pages."""
        if not cookie:
            return self.http.get("/ui/agents").status_code == 200
        with self.server.http(headers={**PAGE, "cookie": f"{SESSION}={cookie}".encode()}) as other:
            return other.get("/ui/agents").status_code == 200


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with (
        serving(tmp_path_factory.mktemp("site"), api_key=OPERATOR) as server,
        server.http() as http,
    ):
        http.headers.update(PAGE)
        yield Site(server, http)


@pytest.fixture
def site(opened: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """The site, with a browser in which nobody is logged in."""
    opened.http.cookies.clear()
    opened.server.app.state.authentication._failures.clear()
    monkeypatch.setattr("ricordo.api.authentication.DELAY", 0)
    return opened


# Sessions.


def test_a_login_opens_a_session_that_does_not_contain_the_key(site: Site) -> None:
    key = site.key("ada")
    for given, name in ((key, "ada"), (OPERATOR, "administrator"), (f"  {key} ", "ada")):
        answer = site.log_in(given, "/ui/agents?q=x")
        assert (answer.status_code, answer.headers["location"]) == (303, "/ui/agents?q=x")
        cookie = answer.headers["set-cookie"]
        assert cookie.lower().endswith("; httponly; max-age=43200; path=/; samesite=lax")
        assert given.strip() not in unquote(cookie)
        assert f"{name} <small>" in site.http.get("/").text


def test_a_session_cookie_over_https_is_secure(site: Site) -> None:
    answer = site.log_in(OPERATOR, **{"x-forwarded-proto": "https"})
    assert answer.headers["set-cookie"].lower().endswith("; secure")


def test_a_wrong_key_opens_no_session(site: Site) -> None:
    for key in (
        "wrong",
        "",
        site.revoked("rita"),
        site.expired("emil"),
        site.disabled("dan"),
        "ricordo_operator_1_x",
    ):
        answer = site.log_in(key, "/ui/agents")
        assert answer.status_code == 401
        assert SESSION not in answer.headers.get("set-cookie", "")
        assert "unknown, expired or revoked" in answer.text
        assert 'name="next" value="/ui/agents"' in answer.text


def test_after_twenty_wrong_keys_only_wrong_ones_are_delayed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    right = site.key("ada")
    assert site.log_in(right).status_code == 303
    site.http.cookies.clear()
    monkeypatch.setattr(
        "ricordo.api.authentication.asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep})
    )
    for _ in range(20):
        site.log_in("wrong")
    assert waited == []
    site.log_in("wrong")
    assert len(waited) == 1
    for key in (right, OPERATOR):
        assert site.log_in(key).status_code == 303
        site.http.cookies.clear()
    assert len(waited) == 1


def test_a_session_ends_with_its_key_its_user_or_its_lifetime(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.log_in(OPERATOR)
    made = ok(site.send(OPERATOR, "POST", "/v1/keys/", json={"user": "eva", "role": "developer"}))
    site.log_in(made["key"])
    assert site.is_in()
    site.send(OPERATOR, "DELETE", f"/v1/keys/{made['id']}")
    assert not site.is_in()
    site.log_in(site.key("ute"))
    assert site.is_in()
    site.send(OPERATOR, "PATCH", f"/v1/users/{site.id_of('ute')}", json={"disabled": True})
    assert not site.is_in()
    site.log_in(site.key("max"))
    assert site.is_in()
    monkeypatch.setattr("ricordo.api.authentication.time.time", lambda: 4_000_000_000.0)
    assert not site.is_in()


def test_a_forged_session_is_refused(site: Site) -> None:
    session = site.log_in(site.key("ada")).cookies[SESSION]
    assert site.is_in(session)
    text, _, signature = session.rpartition("_")
    later = f"{text[:-1]}{(int(text[-1]) + 1) % 10}_{signature}"
    for forged in (
        later,
        session[:-1],
        f"{text}_",
        text,
        f"{text}_é",
        "ricordo_session_",
        f"{session}é",
    ):
        assert not site.is_in(quote(forged, safe="")), forged
        assert not site.is_in(forged), forged


def test_a_session_of_the_operators_key_ends_when_the_setting_changes(tmp_path: Path) -> None:
    with serving(tmp_path, api_key=OPERATOR) as server, server.http() as http:
        session = Site(server, http).log_in(OPERATOR).cookies[SESSION]
        assert Site(server, http).is_in(session)
    with serving(tmp_path, api_key="another-key-of-the-operator") as server, server.http() as http:
        assert not Site(server, http).is_in(session)


def test_a_new_login_replaces_the_session_and_logout_ends_it(site: Site) -> None:
    site.log_in(OPERATOR)
    site.log_in(site.key("ada"))
    assert "ada <small>(user)" in site.http.get("/").text
    assert site.http.get("/ui/settings").status_code == 403
    answer = site.http.post("/ui/logout", headers=OWN)
    assert answer.headers["location"] == "/ui/login"
    assert SESSION not in site.http.cookies
    assert "Log in" in site.http.get("/").text


def test_leaving_a_provider_session_also_ends_copied_cookies(site: Site) -> None:
    for leave in (lambda: site.http.post("/ui/logout", headers=OWN), lambda: site.log_in(OPERATOR)):
        kept = site.key("ada", kind="session")
        site.http.cookies.set(SESSION, kept)
        assert site.is_in(kept)
        leave()
        assert not site.is_in(kept)
        site.http.cookies.clear()


def test_an_ended_session_cookie_is_deleted(site: Site) -> None:
    key = site.revoked("rita")
    for path in ("/", "/ui/login"):
        site.http.cookies.set(SESSION, key, domain="127.0.0.1")
        assert site.http.get(path).status_code == 200
        assert SESSION not in site.http.cookies


def test_a_session_is_found_among_cookies_of_other_servers(site: Site) -> None:
    session = site.log_in(site.key("ada")).cookies[SESSION]
    site.http.cookies.clear()
    cookie = f'theirs={{"a": "b c", [d]}}; {SESSION}={session}; x'
    assert site.http.get("/ui/agents", headers={"cookie": cookie}).status_code == 200


# Login.

ELSEWHERE = (
    *(
        "https://evil.example",
        "//evil.example",
        "/\\evil.example",
        "\\/evil.example",
        "evil",
        "",
        "/\t/evil.example",
    ),
    *("/a\r\nx: y", "/\x00", "javascript:alert(1)", "/ä", "/" + "x" * 3000),
)


@pytest.mark.parametrize("next", ELSEWHERE)
def test_a_login_redirects_only_within_this_server(next: str, site: Site) -> None:
    assert site.log_in(OPERATOR, next).headers["location"] == "/"
    page = site.http.get("/ui/login", params={"next": next}).text
    assert 'name="next" value="/"' in page


def test_a_page_without_a_session_redirects_to_login_and_back(site: Site) -> None:
    for path in (
        "/ui/agents?q=a%20b&tag=%C3%A9",
        "/ui/people/ada/blocks/my%20notes%3F%C3%A9",
        "/openapi.json",
    ):
        answer = site.http.get(path)
        assert answer.status_code == 303
        login = answer.headers["location"]
        assert login == f"/ui/login?next={quote(path, safe='')}"
        next = (
            site.http.get(login)
            .text.split('name="next" value="')[1]
            .split('"')[0]
            .replace("&amp;", "&")
        )
        assert site.log_in(OPERATOR, next).headers["location"] == path
        site.http.cookies.clear()


def test_requests_after_the_first_key_need_a_key_at_once(tmp_path: Path) -> None:
    for folder, open_path in (("first", "/"), ("second", "/ui/login")):
        with (
            serving(tmp_path / folder) as server,
            httpx2.Client(base_url=server.url, headers=PAGE) as http,
        ):
            assert "Local user" in http.get("/").text
            ok(http.post("/v1/keys/", json={"user": "ada", "role": "admin"}))
            assert "Local user" not in http.get(open_path).text
        with (
            serving(tmp_path / folder) as server,
            httpx2.Client(base_url=server.url, headers=PAGE) as http,
        ):
            assert "Local user" not in http.get(open_path).text
            assert "Every other request needs a key" in http.get("/").text


def test_a_program_without_a_key_gets_a_json_error(site: Site) -> None:
    for headers in (
        {"accept": "*/*"},
        {"accept": "application/json"},
        {**PAGE, "sec-fetch-mode": "cors"},
    ):
        for path in ("/v1/agents/", "/ui/agents", "/ui/nothing"):
            assert "Bearer" in refused(site.http.get(path, headers=headers), 401)
    assert "Bearer" in refused(site.http.post("/ui/agents", headers={"accept": "*/*"}), 401)


def test_a_form_with_an_ended_session_redirects_to_login(site: Site) -> None:
    site.http.cookies.set(SESSION, site.revoked("rita"))
    answer = site.http.post("/ui/agents", data={"name": "x"}, headers=OWN)
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/login?next=%2F")


def test_the_login_page_has_a_button_for_a_configured_provider(site: Site, tmp_path: Path) -> None:
    assert "organization" not in site.http.get("/ui/login").text
    with (
        providing() as provider,
        serving(tmp_path, **set_up(provider)) as server,
        server.http() as http,
    ):
        page = http.get("/ui/login", params={"next": "/ui/agents?q=x"}).text
        there = page.split('<a class="button" href="')[1].split('"')[0]
        answer = http.get(there.replace("&amp;", "&"), follow_redirects=True, headers=PAGE)
        assert (answer.status_code, answer.url.path, answer.url.query) == (
            200,
            "/ui/agents",
            b"q=x",
        )
        assert "(user)</small>" in answer.text


# Forms of other pages.


def test_pages_of_other_origins_can_neither_write_nor_log_in(site: Site) -> None:
    site.log_in(OPERATOR)
    session, agents = site.http.cookies[SESSION], len(ok(site.send(OPERATOR, "GET", "/v1/agents/")))
    for headers in (
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site", "origin": site.server.url},
    ):
        site.http.cookies.set(SESSION, session)
        for path in ("/ui/agents", "/ui/logout", "/ui/login", "/ui/settings/keys"):
            refused(site.http.post(path, data={"name": "x", "key": OPERATOR}, headers=headers), 403)
        site.http.cookies.clear()
        refused(site.http.post("/ui/login", data={"key": OPERATOR}, headers=headers), 403)
    assert len(ok(site.send(OPERATOR, "GET", "/v1/agents/"))) == agents
    # Programs may log in, and so may a browser that only says where the request comes from.
    assert site.http.post("/ui/login", data={"key": OPERATOR}).status_code == 303
    site.http.cookies.clear()
    assert (
        site.http.post(
            "/ui/login", data={"key": OPERATOR}, headers={"origin": site.server.url}
        ).status_code
        == 303
    )
    assert (
        site.http.post(
            "/ui/agents", data={"name": "x"}, headers={"origin": site.server.url}
        ).status_code
        == 303
    )


def test_without_keys_pages_of_other_origins_cannot_write(tmp_path: Path) -> None:
    with serving(tmp_path) as server, server.http() as http:
        for origin in ("https://evil.example", "null", "http://localhost:1"):
            for path in ("/ui/agents", "/ui/first", "/ui/login", "/ui/settings/keys"):
                refused(
                    http.post(path, data={"name": "x", "user": "eve"}, headers={"origin": origin}),
                    403,
                )
        assert ok(http.get("/v1/agents/")) == []
        assert ok(http.get("/v1/keys/")) == []


# Notices on the next page.


def test_a_forms_notice_is_shown_once_and_cannot_be_forged(site: Site) -> None:
    site.log_in(OPERATOR)
    name = "日本語の長い名前" * 30
    answer = site.http.post("/ui/agents", data={"name": name, "model": MODEL}, headers=OWN)
    (cookie,) = answer.headers.get_list("set-cookie")
    assert len(cookie) < 4000
    assert "samesite=strict" in cookie.lower()
    told = site.http.cookies[TOLD]
    assert f"{name} is ready." in site.http.get("/ui/agents").text
    assert '<div class="toast"' not in site.http.get("/ui/agents").text
    text, _, signature = told.rpartition(".")
    for forged in (
        f"{text}x.{signature}",
        f"{text}.",
        f".{signature}",
        text,
        ".",
        "é",
        f"{text}.{'0' * 32}",
    ):
        page = site.http.get(
            "/ui/agents",
            headers={"cookie": f"{SESSION}={site.http.cookies[SESSION]}; {TOLD}={forged}".encode()},
        )
        assert '<div class="toast"' not in page.text


# Errors.


def test_forbidden_and_missing_pages_show_an_error_page(site: Site) -> None:
    site.log_in(site.key("ada"))
    missing = "agent-00000000-0000-4000-8000-000000000000"
    for path, status in (
        *(
            ("/ui/settings", 403),
            ("/ui/jobs", 200),
            ("/ui/nothing", 404),
            ("/ui/agents/x/y/z", 404),
        ),
        *(
            (f"/ui/agents/{missing}/settings", 404),
            ("/ui/settings/keys", 404),
            ("/ui/runs/run-1", 404),
        ),
    ):
        page = site.http.get(path)
        assert (page.status_code, page.headers["content-type"]) == (
            status,
            "text/html; charset=utf-8",
        ), path
        assert (status == 200) == ('role="alert"' not in page.text), path
        assert page.headers["x-frame-options"] == "DENY"
    for path, home in (
        ("/ui", "/ui/"),
        ("/ui/", "/"),
        ("/ui/agents/", "/ui/agents"),
        ("/ui//evil.example/", None),
    ):
        location = site.http.get(path).headers["location"].removeprefix(site.server.url)
        assert location == (home or "/ui//evil.example")


def test_a_refused_page_fragment_is_an_error_paragraph(site: Site) -> None:
    site.log_in(site.key("ada"))
    answer = site.http.post("/ui/proposals/diff-1/approve", headers={**OWN, "hx-request": "true"})
    assert answer.status_code == 404
    assert answer.text.startswith('<p class="error" role="alert">')


# All pages.


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with open_world(tmp_path_factory.mktemp("world")) as opened:
        yield opened


def pages_of(world: World) -> list[Cell]:
    found = [
        cell
        for cell in cells_of(world.server.app)
        if cell.path == "/" or cell.path.startswith("/ui")
    ]
    return [
        cell
        for cell in found
        if cell.method == "GET" and not cell.path.startswith(("/ui/static", "/ui/pdf-viewer"))
    ]


def test_every_page_forbids_frames_and_outside_sources(world: World) -> None:
    values, pages = {**world.shared, **world.own}, pages_of(world)
    assert len(pages) > 15
    # Open every page as the operator, who sees most of each page, and a third of the pages as a
    # user.
    for caller, share in ((bearer(OPERATOR), 1), (bearer(world.ada), 3)):
        for cell in pages[::share]:
            answer = cell.ask(world.http, values, {**caller, **PAGE})
            assert answer.status_code in (200, 303, 403, 404), (cell, answer.text[:300])
            for name, value in HEADERS.items():
                assert answer.headers.get(name) == value, (cell, name)
            if answer.status_code == 200 and "text/html" in answer.headers["content-type"]:
                require_strict(answer.text)
    policy = HEADERS["Content-Security-Policy"]
    assert "unsafe" not in policy
    for rule in (
        "default-src 'none'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "form-action 'self'",
    ):
        assert rule in policy


def require_strict(page: str) -> None:
    """Check that the page needs only what the policy allows and leads to no other server."""
    assert not re.search(r"<[^>]*\s(style|on[a-z]+)=", page)
    assert "<style" not in page
    assert all(" src=" in tag for tag in re.findall(r"<script[^>]*>", page))
    for address in addresses_of(page):
        assert re.match(r"/(?!/)|#|\?|data:,", address), address


def addresses_of(page: str) -> list[str]:
    return [
        address.replace("&amp;", "&")
        for address in re.findall(r"\s(?:href|src|action|hx-[a-z]+)=\"([/#?h][^\"]*)\"", page)
    ]


def test_a_restricted_agents_name_is_hidden_from_other_students(world: World) -> None:
    hidden = world.ask(
        OPERATOR, "POST", "/v1/agents/", json={"model": MODEL, "name": "Zorro the hidden"}
    )["id"]
    attached = (
        f"/v1/agents/{hidden}/identities/attach/{world.id_of('ada').replace('user-', 'identity-')}"
    )
    world.send(OPERATOR, "PATCH", attached)
    bea = world.key("bea")
    for path in (
        f"/ui/runs?agent={hidden}",
        f"/ui/search?q=x&agent={hidden}",
        f"/ui/agents/{hidden}/settings",
        "/ui/agents",
    ):
        for key, sees in ((OPERATOR, True), (bea, False)):
            assert ("Zorro" in world.send(key, "GET", path).text) == sees, (path, key)


# A server under a root path.


def walk(http: Any, base: str, starts: list[str], most: int) -> set[str]:
    """Open these pages and the pages that they link to; return their paths.

    Each address has to begin with the prefix.
    """
    seen, waiting = set[str](), [f"{base}{start}" for start in starts]
    while waiting and len(seen) < most:
        path = waiting.pop(0)
        if path in seen:
            continue
        seen.add(path)
        answer = http.get(path, headers=PAGE)
        assert answer.status_code in (200, 303), (path, answer.text[:300])
        if answer.status_code == 303:
            waiting.append(answer.headers["location"])
        page = answer.text if "text/html" in answer.headers.get("content-type", "") else ""
        for address in [
            *addresses_of(page),
            *([answer.headers["location"]] if "location" in answer.headers else []),
        ]:
            if address.startswith("#"):
                continue
            assert re.match(f"{base}/(?!{base[1:]}/)", address), (path, address)
        links = re.findall(r'<a [^>]*href="([^"#]*)"', page)
        waiting += [link.replace("&amp;", "&") for link in links]
    return seen


@pytest.fixture(scope="module")
def below(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with (
        serving(tmp_path_factory.mktemp("below"), api_key=OPERATOR, root_path="/ricordo") as server,
        server.http() as http,
    ):
        yield Site(server, http)


def test_under_a_root_path_every_address_starts_with_it(below: Site) -> None:
    http, base = below.http, "/ricordo"
    assert http.get(base, headers=PAGE).status_code in (200, 307)
    answer = http.get(f"{base}/ui/agents?q=x", headers=PAGE)
    assert answer.headers["location"] == f"{base}/ui/login?next=%2Fui%2Fagents%3Fq%3Dx"
    answer = http.post(
        f"{base}/ui/login", data={"key": OPERATOR, "next": "/ui/agents?q=x"}, headers=OWN
    )
    assert answer.headers["location"] == f"{base}/ui/agents?q=x"
    assert "; path=/ricordo/;" in answer.headers["set-cookie"].lower()
    made = http.post(f"{base}/ui/agents", data={"name": "Nina", "model": MODEL}, headers=OWN)
    agent = made.headers["location"].split("/")[4]
    assert made.headers["location"] == f"{base}/ui/agents/{agent}/chat"
    assert "; path=/ricordo/;" in made.headers["set-cookie"].lower()
    seen = walk(http, base, ["/", f"/ui/agents/{agent}/context"], 40)
    assert {
        f"{base}/ui/agents/{agent}/settings",
        f"{base}/ui/settings",
        f"{base}/openapi.json",
    } <= seen
    document = http.get(f"{base}/openapi.json").json()
    assert (document["servers"], "/v1/agents/" in document["paths"]) == ([{"url": base}], True)
    assert http.get(f"{base}/ui/agents", headers=PAGE).text.count('aria-current="page"') == 1
    answer = http.post(f"{base}/ui/logout", headers=OWN)
    assert "; path=/ricordo/;" in answer.headers["set-cookie"].lower()
    assert SESSION not in http.cookies


def test_a_mounted_server_prefixes_every_address(tmp_path: Path) -> None:
    """Like with `uvicorn --root-path`, the path contains the prefix, and `root_path` names it."""
    settings = Settings(data_dir=tmp_path, find_local_models=False, model=None, api_key=None)
    inner = create_app(settings, ProviderSettings.model_construct())
    outer = Starlette(
        routes=[Mount("/sub", inner)], lifespan=lambda _: inner.router.lifespan_context(inner)
    )
    with TestClient(
        outer, base_url="http://localhost:8283", client=("127.0.0.1", 1), follow_redirects=False
    ) as http:
        made = http.post("/sub/ui/first", data={"message": "My name is Ada."})
        agent = made.headers["location"].split("/")[4]
        seen = walk(http, "/sub", ["/"], 40)
        assert f"/sub/ui/agents/{agent}" in made.headers["location"].removesuffix("/chat")
        assert {"/sub/ui/runs", "/sub/ui/search", "/sub/ui/settings"} <= seen


def test_every_template_compiles() -> None:
    compiled = [environment().get_template(name).name for name in environment().list_templates()]
    assert {*compiled} == {
        path.name for path in Path(ricordo.features.__file__).parents[1].glob("**/templates/*.html")
    }
