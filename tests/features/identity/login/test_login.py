"""People log in with their provider.

The tests go the whole way over HTTP, check what a session may do, and try every way to cheat.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx2
import pytest
from sqlalchemy import text

from ricordo.errors import DatabaseFailed, Invalid
from ricordo.settings import load_settings
from tests.features.identity.login.provider import CLIENT, SECRET, TestProvider, providing
from tests.seams.http import bearer, ok, refused
from tests.seams.server import ServerInThread, serving

OWN = {"sec-fetch-site": "same-origin"}
COOKIE, ATTEMPT = "ricordo_session", "ricordo_login"


@pytest.fixture(scope="module")
def running() -> Iterator[TestProvider]:
    with providing() as provider:
        yield provider


@pytest.fixture
def provider(running: TestProvider) -> TestProvider:
    """The provider, with correct data."""
    running.person, running.claims, running.document = {"sub": "42", "name": "Ada Lovelace"}, {}, {}
    running.algorithm, running.sign, running.error, running.is_broken, running.delay = (
        "RS256",
        None,
        "",
        False,
        0.0,
    )
    running.asked.clear()
    return running


@pytest.fixture(scope="module")
def server(
    running: TestProvider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerInThread]:
    with serving(tmp_path_factory.mktemp("login"), **set_up(running)) as server:
        yield server


@pytest.fixture
def browser(server: ServerInThread) -> Iterator[httpx2.Client]:
    with server.http(follow_redirects=True) as browser:
        yield browser


def set_up(provider: TestProvider, **more: Any) -> dict[str, Any]:
    return {
        "oidc_issuer": provider.issuer,
        "oidc_client_id": CLIENT,
        "oidc_client_secret": SECRET,
        **more,
    }


def log_in(browser: httpx2.Client, **query: str) -> httpx2.Response:
    return browser.get("/login", params=query)


def users(server: ServerInThread) -> list[tuple[Any, ...]]:
    statement = text(
        "SELECT identifier, name, email FROM users WHERE identifier IS NOT NULL ORDER BY seq"
    )
    return [tuple(row) for row in server.read(lambda tx: tx.all(statement))]


def callback(browser: httpx2.Client) -> str:
    """Begin a login; return the callback address without opening it."""
    there = browser.get("/login", follow_redirects=False).headers["location"]
    location: str = browser.get(there, follow_redirects=False).headers["location"]
    return location


def name_of(provider: TestProvider, subject: str = "42") -> str:
    return f"{urlsplit(provider.issuer).netloc}:realms:school|{subject}"


def test_a_login_opens_a_session_for_the_users_own_memory(
    provider: TestProvider, server: ServerInThread, browser: httpx2.Client
) -> None:
    assert refused(browser.get("/users/ada/blocks"), 401)
    answer = log_in(browser, next="/v1/agents/?limit=1")
    assert (answer.status_code, answer.url.path, answer.url.query) == (
        200,
        "/v1/agents/",
        b"limit=1",
    )
    (asked,) = provider.asked
    assert (
        asked["response_type"],
        asked["code_challenge_method"],
        len(asked["code_challenge"]),
    ) == (
        "code",
        "S256",
        43,
    )
    assert (name_of(provider), "Ada Lovelace", None) in users(server)
    mine = f"/users/{name_of(provider)}/blocks/notes"
    assert browser.put(mine, json={"body": "Mine."}, headers=OWN).status_code in (200, 201)
    assert ok(browser.get(mine))["body"] == "Mine."
    assert server.key("bea")
    refused(browser.get("/users/bea/blocks"), 404)
    refused(browser.get("/v1/keys/"), 403)
    statement = text(
        "SELECT role, expires_at - created_at AS life FROM api_keys WHERE kind = 'session'"
    )
    row = server.read(lambda tx: tx.first(statement))
    assert (row.role, round(row.life / 1_000_000)) == ("user", 12 * 3600)


def role_after_login(provider: TestProvider, server: ServerInThread, subject: str) -> str:
    provider.person["sub"] = subject
    with server.http(follow_redirects=True) as browser:
        assert log_in(browser, next="/health").status_code == 200
        answer = browser.get("/v1/guardian/students")
        assert browser.get("/v1/agents/").status_code == (403 if answer.is_success else 200)
    return "guardian" if answer.is_success else "user"


def test_a_guardian_who_logs_in_stays_a_guardian(
    provider: TestProvider, server: ServerInThread
) -> None:
    assert role_after_login(provider, server, "by-key") == "user"  # a new person
    server.key(name_of(provider, "by-key"), "guardian")
    assert role_after_login(provider, server, "by-key") == "guardian"
    assert role_after_login(provider, server, "by-key") == "guardian"  # a session gives no role
    server.key(name_of(provider, "by-key"), "user")
    assert role_after_login(provider, server, "by-key") == "user"
    server.key(name_of(provider, "boss"), "admin")
    assert role_after_login(provider, server, "boss") == "user"


@pytest.mark.parametrize("invited_as", ["guardian", "developer"])
def test_an_invited_guardian_may_log_in_without_the_invitation(
    provider: TestProvider, server: ServerInThread, invited_as: str
) -> None:
    subject = f"invited-{invited_as}"
    body = {"people": [{"user": name_of(provider, subject), "name": "Eva", "role": invited_as}]}
    with server.http(headers=bearer(server.key("boss", "admin"))) as http:
        ok(http.post("/v1/invitations", json=body))
    expected = "guardian" if invited_as == "guardian" else "user"
    assert role_after_login(provider, server, subject) == expected


def test_only_pages_of_this_server_may_write_with_a_session(
    provider: TestProvider, server: ServerInThread, browser: httpx2.Client
) -> None:
    log_in(browser)
    mine, block = f"/users/{name_of(provider)}/blocks/page", {"body": "Written."}
    for headers in (
        {},
        {"origin": "https://elsewhere.org"},
        {"sec-fetch-site": "cross-site", "origin": server.url},
    ):
        refused(browser.put(mine, json=block, headers=headers), 403)
        refused(browser.post("/logout", headers=headers), 403)
    assert browser.put(mine, json=block, headers={"origin": server.url}).status_code in (200, 201)


def test_a_logout_ends_the_session_also_for_a_copied_cookie(
    provider: TestProvider, server: ServerInThread, browser: httpx2.Client
) -> None:
    log_in(browser)
    kept = browser.cookies[COOKIE]
    mine = f"/users/{name_of(provider)}/blocks"
    ok(browser.get(mine))
    answer = browser.post("/logout", headers=OWN, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert COOKIE not in browser.cookies
    with server.http(cookies={COOKIE: kept}) as thief:
        refused(thief.get(mine), 401)
    # The next login leaves no row of the last one.
    log_in(browser)
    assert not server.read(
        lambda tx: tx.all(text("SELECT id FROM api_keys WHERE revoked_at > 1 AND kind = 'session'"))
    )


def test_an_api_key_cannot_be_logged_out(server: ServerInThread, browser: httpx2.Client) -> None:
    headers = bearer(server.key("carl"))
    refused(browser.post("/logout", headers=headers), 400)
    ok(browser.get("/users/carl/blocks", headers=headers))


def test_a_session_expires(
    provider: TestProvider, server: ServerInThread, browser: httpx2.Client
) -> None:
    log_in(browser)
    server.write(
        lambda tx: tx.run(text("UPDATE api_keys SET expires_at = 1 WHERE kind = 'session'"))
    )
    server.app.state.authentication.forget()
    refused(browser.get(f"/users/{name_of(provider)}/blocks"), 401)


def test_a_disabled_user_is_refused(
    provider: TestProvider, server: ServerInThread, browser: httpx2.Client
) -> None:
    provider.person = {"sub": "13"}
    log_in(browser)
    name = {"name": name_of(provider, "13")}
    server.write(
        lambda tx: tx.run(text("UPDATE users SET disabled_at = 1 WHERE identifier = :name"), name)
    )
    browser.cookies.clear()
    assert "disabled" in refused(log_in(browser), 403)
    assert COOKIE not in browser.cookies


@pytest.mark.parametrize("is_verified", [True, False, "true", None])
def test_an_email_address_is_stored_if_the_provider_verified_it(
    is_verified: Any, provider: TestProvider, server: ServerInThread, browser: httpx2.Client
) -> None:
    subject = f"mail-{is_verified}"
    person = {
        "sub": subject,
        "email": "ada@example.org",
        "email_verified": is_verified,
        "preferred_username": "ada",
    }
    provider.person = person
    log_in(browser)
    expected = "ada@example.org" if is_verified is True else None
    assert (name_of(provider, subject), "ada", expected) in users(server)


@pytest.mark.parametrize(
    "address", ["Ada <ada@example.org>", "ada", "a@b\0", "\ud800@b", "a" * 300]
)
def test_an_unfit_email_address_is_left_out(
    address: str, provider: TestProvider, server: ServerInThread, browser: httpx2.Client
) -> None:
    subject = f"unfit-{len(address)}"
    provider.person = {"sub": subject, "email": address, "email_verified": True}
    log_in(browser)
    name = name_of(provider, subject)
    assert (name, name, None) in users(server)
    assert browser.get(f"/users/{name}/blocks").status_code == 200


def test_a_token_signed_with_an_elliptic_curve_is_accepted(
    provider: TestProvider, browser: httpx2.Client
) -> None:
    provider.algorithm = "ES256"
    assert log_in(browser).status_code == 200
    assert COOKIE in browser.cookies


LIES: dict[str, tuple[dict[str, Any], str]] = {
    "another audience": ({"aud": "someone-else"}, "another client"),
    "several audiences": ({"aud": [CLIENT, "someone-else"]}, "issued to another client"),
    "asked by another": ({"azp": "someone-else"}, "issued to another client"),
    "expired": ({"exp": int(time.time()) - 3600}, "expired"),
    "no end": ({"exp": None}, "expired"),
    "not valid yet": ({"iat": int(time.time()) + 3600}, "not valid yet"),
    "another issuer": ({"iss": "https://elsewhere.org"}, "another issuer"),
    "another nonce": ({"nonce": "of another login"}, "another login"),
    "no nonce": ({"nonce": None}, "another login"),
    "no subject": ({"sub": None}, "no sub"),
    "a number as subject": ({"sub": 42}, "no sub"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_token_that_is_not_for_this_login_is_refused(
    lie: str, provider: TestProvider, server: ServerInThread, browser: httpx2.Client
) -> None:
    provider.claims, why = LIES[lie]
    before = server.rows()
    assert why in refused(log_in(browser), 403)
    assert COOKIE not in browser.cookies
    assert server.rows() == before


@pytest.mark.parametrize("algorithm", ["none", "HS256", "RS256", "ES256", "rs256"])
def test_a_token_without_the_providers_signature_is_refused(
    algorithm: str, provider: TestProvider, server: ServerInThread, browser: httpx2.Client
) -> None:
    """The token is unsigned, signed with the public key as a secret, or wrongly signed."""
    provider.algorithm = algorithm
    signs = {"none": lambda _: b"", "HS256": provider.sign_with_public_key}
    provider.sign = signs.get(algorithm, lambda _: b"x" * (64 if algorithm == "ES256" else 256))
    before = server.rows()
    assert "sign" in refused(log_in(browser), 403)
    assert COOKIE not in browser.cookies
    assert server.rows() == before


def test_a_login_works_once_and_only_in_the_same_browser(
    provider: TestProvider, server: ServerInThread, browser: httpx2.Client
) -> None:
    there = callback(browser)
    attempt = browser.cookies[ATTEMPT]
    with server.http() as other:
        # The victim's browser opens an attacker's link.
        assert "Start again" in refused(other.get(there), 400)
        callback(other)
        refused(other.get(there), 400)
    assert browser.get(there, follow_redirects=False).status_code == 303
    assert ATTEMPT not in browser.cookies
    refused(browser.get(there), 400)
    # The provider accepts each code once, so a stolen cookie is also useless.
    browser.cookies.set(ATTEMPT, attempt)
    assert "used already" in refused(browser.get(there), 403)
    assert refused(browser.get("/login/callback"), 400)
    page = browser.get("/login/callback", headers={"accept": "text/html"})
    assert (page.status_code, page.headers["content-type"]) == (400, "text/html; charset=utf-8")
    assert "Start again" in page.text
    assert "<a href='/login'>" in page.text


def test_a_forged_login_cookie_is_refused(
    provider: TestProvider, server: ServerInThread, browser: httpx2.Client
) -> None:
    there = callback(browser)
    body, _, signature = browser.cookies[ATTEMPT].partition(".")
    for forged in (f"{body}.", f"{body}A.{signature}", body, "", ".", "é", f"{body}.{'0' * 64}"):
        with server.http(headers={"cookie": f"{ATTEMPT}={forged}".encode()}) as other:
            refused(other.get(there), 400)


@pytest.mark.parametrize(
    "elsewhere",
    [
        "https://evil.org",
        "//evil.org",
        "/\\evil.org",
        "\\/evil.org",
        "evil",
        "",
        "/\t/evil.org",
        "/a\r\nx: y",
        "/\x00",
    ],
)
def test_a_login_redirects_only_within_this_server(
    elsewhere: str, provider: TestProvider, browser: httpx2.Client
) -> None:
    assert "path of this server" in refused(log_in(browser, next=elsewhere), 400)
    assert ATTEMPT not in browser.cookies


def test_an_error_of_the_login_provider_refuses_the_login(
    provider: TestProvider, browser: httpx2.Client
) -> None:
    provider.error = "access_denied"
    assert "access_denied" in refused(log_in(browser), 403)
    provider.error = "<script>alert(1)</script>"
    assert "script" not in refused(log_in(browser), 403)
    assert ATTEMPT not in browser.cookies


def test_a_failing_login_provider_is_reported_without_secrets(
    provider: TestProvider, server: ServerInThread, browser: httpx2.Client
) -> None:
    provider.is_broken = True
    before = server.rows()
    detail = refused(log_in(browser), 502)
    assert SECRET not in detail
    assert "500" in detail
    assert server.rows() == before


def test_a_database_failure_during_a_login_answers_503(
    provider: TestProvider,
    server: ServerInThread,
    browser: httpx2.Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise DatabaseFailed("/srv/ricordo.db: the disk is full.", "full")

    monkeypatch.setattr("ricordo.features.identity.login.routes.open_session", fail)
    refused(log_in(browser), 503)
    assert server.provoked()


def test_a_slow_login_provider_times_out(
    provider: TestProvider, browser: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ricordo.features.identity.login.service._TIMEOUT", 0.3)
    provider.delay = 1.0
    assert "cannot be reached" in refused(log_in(browser), 502)


def test_an_unreachable_or_wrong_login_provider_is_an_error(
    provider: TestProvider, tmp_path: Path
) -> None:
    gone = set_up(provider, oidc_issuer="http://127.0.0.1:9")
    with serving(tmp_path / "gone", **gone) as server, server.http() as browser:
        assert "cannot be reached" in refused(log_in(browser), 502)
    for lie in (
        {"issuer": "https://elsewhere.org"},
        {"token_endpoint": "file:///etc/passwd"},
        {"jwks_uri": None},
    ):
        provider.document = lie
        with (
            serving(tmp_path / next(iter(lie)), **set_up(provider)) as server,
            server.http() as browser,
        ):
            refused(log_in(browser), 502)


def test_with_a_login_provider_anonymous_requests_are_refused(
    provider: TestProvider, server: ServerInThread
) -> None:
    with server.http() as http:
        refused(http.get("/v1/agents/"), 401)
        assert http.get("/v1/health/").status_code == 200


def test_the_configured_claim_is_the_identifier_but_never_a_user_id(
    provider: TestProvider, tmp_path: Path
) -> None:
    with serving(tmp_path, **set_up(provider, oidc_claim="email")) as server:
        key = bearer(server.key("ada@example.org"))
        with server.http(follow_redirects=True) as browser:
            assert (
                browser.put(
                    "/users/ada@example.org/blocks/x", json={"body": "Hers."}, headers=key
                ).status_code
                < 300
            )
            provider.person = {"sub": "42", "email": "ada@example.org", "email_verified": False}
            assert "no email" in refused(log_in(browser), 403)
            provider.person["email_verified"] = True
            log_in(browser)
            assert ok(browser.get("/users/ada@example.org/blocks/x"))["body"] == "Hers."
            statement = text("SELECT id FROM users WHERE identifier = 'ada@example.org'")
            victim = server.read(lambda tx: tx.first(statement)).id
            browser.cookies.clear()
            provider.person["email"] = victim
            assert "looks like an id" in refused(log_in(browser), 403)


def test_login_cookies_are_restricted_and_secure_over_https(
    provider: TestProvider, browser: httpx2.Client
) -> None:
    begun = browser.get("/login", follow_redirects=False)
    assert (
        "httponly; max-age=600; path=/login/callback; samesite=lax"
        in begun.headers["set-cookie"].lower()
    )
    assert "secure" not in begun.headers["set-cookie"].lower()
    assert begun.headers["cache-control"] == "no-store"
    there = browser.get(begun.headers["location"], follow_redirects=False).headers["location"]
    session = browser.get(there, follow_redirects=False).headers.get_list("set-cookie")[0].lower()
    assert session.startswith(f"{COOKIE}=")
    assert session.endswith("httponly; max-age=43200; path=/; samesite=lax")
    begun = browser.get("/login", headers={"x-forwarded-proto": "https"}, follow_redirects=False)
    assert begun.headers["set-cookie"].lower().endswith("secure")
    sent = dict(parse_qsl(urlsplit(begun.headers["location"]).query))
    assert sent["redirect_uri"].startswith("https://127.0.0.1:")


def test_without_login_settings_the_login_routes_are_missing(tmp_path: Path) -> None:
    with serving(tmp_path) as server, server.http() as http:
        for method, path in (("GET", "/login"), ("GET", "/login/callback"), ("POST", "/logout")):
            assert "RICORDO_OIDC_ISSUER" in refused(http.request(method, path), 404)


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (
            {"oidc_issuer": "https://idp.org"},
            "Missing: RICORDO_OIDC_CLIENT_ID, RICORDO_OIDC_CLIENT_SECRET.",
        ),
        ({"oidc_claim": "email"}, "RICORDO_OIDC_ISSUER"),
        (
            {"oidc_issuer": "http://idp.org", "oidc_client_id": "x", "oidc_client_secret": "y"},
            "must be an https address",
        ),
    ],
)
def test_incomplete_login_settings_stop_the_start(given: dict[str, str], fault: str) -> None:
    with pytest.raises(Invalid, match=fault):
        load_settings(**given)


def test_subjects_that_differ_in_case_are_two_users(
    provider: TestProvider, server: ServerInThread, browser: httpx2.Client
) -> None:
    for subject in ("AbC", "aBc"):
        browser.cookies.clear()
        provider.person["sub"] = subject
        assert log_in(browser).status_code < 500
        assert browser.get(f"/users/{name_of(provider, subject)}/blocks").status_code == 200
    assert {name_of(provider, subject) for subject in ("AbC", "aBc")} <= {
        row[0] for row in users(server)
    }


def test_logins_and_logouts_are_in_the_audit_log_without_secrets(
    provider: TestProvider, server: ServerInThread, browser: httpx2.Client
) -> None:
    def recorded() -> list[tuple[Any, ...]]:
        headers = bearer(server.key("boss", "admin"))
        rows = ok(browser.get("/v1/audit-log", params={"limit": 4}, headers=headers))
        assert not any(secret in str(rows) for secret in secrets if secret)
        return [
            (row["action"], row["status"], row["user"], bool(row["key_id"]), bool(row["address"]))
            for row in rows
        ]

    provider.person = {"sub": "77", "name": "Audited"}
    name = name_of(provider, "77")
    coming = callback(browser)
    secrets = [value for _, value in parse_qsl(urlsplit(coming).query)]
    browser.get(coming, follow_redirects=False)
    secrets.append(browser.cookies[COOKIE])
    browser.post("/logout", headers=OWN, follow_redirects=False)
    disabled = text("UPDATE users SET disabled_at = 1 WHERE identifier = :name")
    server.write(lambda tx: tx.run(disabled, {"name": name}))
    refused(log_in(browser), 403)
    provider.error = "access_denied"
    refused(log_in(browser), 403)
    provider.error = ""
    assert recorded() == [
        ("GET /login/callback", 403, None, False, True),
        ("GET /login/callback", 403, name, False, True),
        ("POST /logout", 303, name, True, True),
        ("GET /login/callback", 303, name, True, True),
    ]
