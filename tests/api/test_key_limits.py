"""Limits of keys: requests a minute and the largest body, by key and for all keys."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from ricordo.api.authentication import RequestLimits
from ricordo.api.guard import COOKIE
from ricordo.domain.scope import Limits
from ricordo.settings import Settings
from tests.seams.http import ok, refused
from tests.seams.people import OPERATOR, People, bearer
from tests.seams.server import MODEL, serving
from tests.seams.stores import count_statements


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Iterator[People]:
    folder = tmp_path_factory.mktemp("limits")
    with (
        serving(
            folder, api_key=OPERATOR, key_requests_per_minute=3, key_max_body_bytes=2000
        ) as server,
        server.http() as http,
    ):
        yield People(server, http)


def new_key(people: People, **body: Any) -> dict[str, Any]:
    made: dict[str, Any] = people.ask(OPERATOR, "POST", "/v1/keys/", json={"user": "ada", **body})
    return made


def statuses(people: People, key: str, times: int, path: str = "/v1/agents/") -> list[int]:
    return [people.send(key, "GET", path).status_code for _ in range(times)]


def test_a_bucket_allows_a_minutes_requests_at_once_and_refills_steadily() -> None:
    limits = RequestLimits(Settings(key_requests_per_minute=4))
    ada = Limits("ada")
    assert [limits.count(ada, 100.0) for _ in range(5)] == [0, 0, 0, 0, 15]
    assert limits.count(ada, 110.0) == 5
    assert [limits.count(ada, 115.0), limits.count(ada, 115.0)] == [0, 15]
    # Unused requests can be saved up for at most one minute.
    assert [limits.count(ada, 1000.0) for _ in range(5)] == [0, 0, 0, 0, 15]
    assert [limits.count(Limits("bob", 1), 0.0) for _ in range(2)] == [0, 60]
    assert [limits.count(Limits("eve", 1_000_000), 0.0) for _ in range(100)] == [0] * 100
    for number in range(10_001):
        limits.count(Limits(f"key {number}"), 1000.0)
    assert len(limits._buckets) == 10_000


def test_without_a_limit_no_requests_are_counted() -> None:
    limits = RequestLimits(Settings())
    assert [limits.count(Limits("ada"), 0.0) for _ in range(10)] == [0] * 10
    assert not limits._buckets


def test_a_key_over_its_limit_is_told_when_to_retry(
    people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The result of a look-up is valid for less than a second, which a busy machine may need for one
    # request.
    monkeypatch.setattr("ricordo.api.authentication._FRESH", 600.0)
    key, other = people.key("ada"), people.key("ada")
    assert statuses(people, key, 3) == [200] * 3
    # Background work has statements too, above all right after the server's start.
    for _ in range(50):
        with count_statements(people.server.runtime.store) as counted:
            answer = people.send(key, "GET", "/v1/agents/")
        if not counted.statements:
            break
    assert counted.statements == []
    assert "was used too often" in refused(answer, 429)
    assert 1 <= int(answer.headers["retry-after"]) <= 20
    assert statuses(people, key, 5, "/v1/health/") == [200] * 5
    with people.server.http() as browser:
        browser.cookies.set(COOKIE, key)
        assert 429 not in [browser.get("/").status_code for _ in range(5)]
        assert browser.get("/v1/agents/").status_code == 429
    assert statuses(people, other, 1) == [200]
    assert statuses(people, OPERATOR, 5) == [200] * 5


def test_a_key_can_have_its_own_limits_which_are_listed(people: People) -> None:
    made = new_key(people, requests_per_minute=1, max_body_bytes=100)
    listed = people.ask(OPERATOR, "GET", f"/v1/keys/{made['id']}")
    assert (listed["requests_per_minute"], listed["max_body_bytes"]) == (1, 100)
    assert statuses(people, made["key"], 2) == [200, 429]
    many = new_key(people, requests_per_minute=500)
    assert statuses(people, many["key"], 10) == [200] * 10
    for wrong in ({"requests_per_minute": 0}, {"max_body_bytes": -1}):
        answer = people.send(OPERATOR, "POST", "/v1/keys/", json={"user": "ada", **wrong})
        assert answer.status_code == 422
    page = people.send(OPERATOR, "GET", "/ui/settings").text
    assert "1 a minute, 100 bytes" in page


def test_openais_clients_read_the_refusal(people: People) -> None:
    key = new_key(people, requests_per_minute=1)["key"]
    with (
        people.server.http() as http,
        openai.OpenAI(
            api_key=key, base_url=f"{people.server.url}/v1", max_retries=0, http_client=None
        ) as client,
    ):
        assert http.get("/v1/agents/", headers=bearer(key)).status_code == 200
        with pytest.raises(openai.RateLimitError, match="used too often") as error:
            client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "Hello."}]
            )
    assert error.value.type == "rate_limit_error"
    assert error.value.response.headers["retry-after"]


def test_a_body_longer_than_the_keys_limit_is_refused(people: People) -> None:
    def blocks(key: str, length: int, **given: Any) -> httpx2.Response:
        content = b'{"label": "x", "value": "' + b"a" * (length - 27) + b'"}'
        body: Any = iter([content[:10], content[10:]]) if given.pop("chunked", False) else content
        return people.send(
            key, "POST", "/v1/blocks/", content=body, headers={"content-type": "application/json"}
        )

    wide = ("agents:write", "agents:read")
    usual = new_key(people, role="admin", scopes=["admin", *wide])["key"]
    for chunked in (True, False):
        assert "2,000 bytes that this key may send" in refused(
            blocks(usual, 2001, chunked=chunked), 413
        )
    ok(blocks(usual, 2000))
    own = new_key(people, role="admin", scopes=["admin", *wide], max_body_bytes=5000)["key"]
    ok(blocks(own, 5000))
    refused(blocks(own, 5001), 413)
    ok(blocks(OPERATOR, 6000))


def test_openais_clients_read_that_a_body_is_too_long(people: People) -> None:
    key = people.key("ada")
    answer = people.send(key, "POST", "/v1/chat/completions", json={"messages": "x" * 3000})
    assert answer.status_code == 413
    assert "2,000 bytes" in answer.json()["error"]["message"]


def test_the_body_limit_applies_to_git_and_mcp_too(people: People) -> None:
    key = people.key("ada")
    sent = {
        "content": iter([b"x" * 1500] * 2),
        "headers": {"content-type": "application/x-git-receive-pack-request"},
    }
    assert "2,000 bytes" in refused(
        people.send(key, "POST", "/users/ada/memory.git/git-receive-pack", **sent), 413
    )
    sent = {
        "content": iter([b" " * 1500] * 2),
        "headers": {"content-type": "application/json", "accept": "*/*"},
    }
    assert people.send(key, "POST", "/mcp", **sent).status_code == 413


def test_a_page_request_is_counted_once_despite_its_internal_requests(people: People) -> None:
    key = people.key("ada")
    assert statuses(people, key, 4, "/ui/agents") == [200, 200, 200, 429]


def test_logins_and_access_tokens_share_the_limit_of_their_key(people: People) -> None:
    service = new_key(people, user=None, name="app", role="service", requests_per_minute=2)["key"]
    agent = people.ask(OPERATOR, "POST", "/v1/agents/", json={"model": MODEL})["id"]
    policy = [{"type": "agent", "id": agent, "access": ["read_agent"]}]
    body = {"hostname": "https://app.example.org", "policy": policy}
    token = people.ask(service, "POST", "/v1/client-side-access-tokens", json=body)["token"]
    path = f"/v1/agents/{agent}"
    assert [people.send(who, "GET", path).status_code for who in (token, token, service)] == [
        200,
        429,
        429,
    ]
    one, two = people.key("ben", kind="session"), people.key("ben", kind="session")
    assert [statuses(people, who, 2) for who in (one, two)] == [[200, 200], [200, 429]]


def test_a_limited_administrator_cannot_create_a_key_with_higher_limits(people: People) -> None:
    boss = new_key(people, role="admin", requests_per_minute=50, max_body_bytes=1000)["key"]
    answer = people.send(boss, "POST", "/v1/keys/", json={"user": "ada", "requests_per_minute": 51})
    assert "requests_per_minute 50" in refused(answer, 403)
    made = people.ask(boss, "POST", "/v1/keys/", json={"user": "ada", "requests_per_minute": 7})
    assert (made["requests_per_minute"], made["max_body_bytes"]) == (7, 1000)


def test_a_server_without_keys_has_no_limits(tmp_path: Path) -> None:
    with serving(tmp_path, key_requests_per_minute=1) as server, server.http() as http:
        assert [http.get("/v1/agents/").status_code for _ in range(3)] == [200] * 3
