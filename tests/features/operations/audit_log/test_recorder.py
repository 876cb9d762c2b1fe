"""The audit log's rows for requests: their content, their organization, and their cost.

The tests use HTTP, on a server with keys.
"""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.seams.http import ok
from tests.seams.people import OPERATOR, People, bearer
from tests.seams.server import MODEL, serving
from tests.seams.stores import count_statements

SECRET = "vuqkzo"


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Iterator[People]:
    with (
        serving(tmp_path_factory.mktemp("audit"), api_key=OPERATOR) as server,
        server.http() as http,
    ):
        yield People(server, http)


def rows(people: People, **query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = people.ask(OPERATOR, "GET", "/v1/audit-log", params=query)
    return found


def newest(people: People, **query: Any) -> dict[str, Any]:
    return rows(people, limit=1, **query)[0]


def test_a_change_is_recorded_with_user_action_and_object_but_no_content(people: People) -> None:
    key = people.key("ada-of-changes", "admin")
    agent = people.ask(key, "POST", "/v1/agents/", json={"model": MODEL, "name": SECRET})["id"]
    made = newest(people)
    assert (made["action"], made["status"], made["objects"]) == (
        "POST /v1/agents/",
        200,
        {"id": agent},
    )
    assert (made["user"], made["role"], made["address"]) == ("ada-of-changes", "admin", "127.0.0.1")
    assert made["key_id"].startswith("key-")
    people.ask(key, "POST", f"/v1/agents/{agent}/messages", json={"input": SECRET})
    assert newest(people) == made, "a turn must not be recorded; its run names the caller"
    people.ask(key, "PUT", f"/users/ada-of-changes/blocks/{SECRET}", json={"body": SECRET})
    wrote = newest(people)
    assert wrote["action"] == "PUT /users/{user_id}/blocks/{label}"
    assert [id.split("-")[0] for id in wrote["objects"].values()] == ["block"]
    count = newest(people)["number"]
    people.ask(key, "GET", f"/v1/agents/{agent}")
    people.ask(key, "POST", "/v1/messages/search", json={"query": SECRET})
    people.send(key, "DELETE", "/v1/agents/agent-00000000-0000-4000-8000-000000000000")
    assert newest(people)["number"] == count, "reads and requests with 404 must not be recorded"
    with people.server.http() as http:
        everything = http.get("/v1/audit-log/export", headers=bearer(OPERATOR)).text
    assert "ada-of-changes" in everything
    assert SECRET not in everything


def test_refused_requests_are_recorded_and_floods_are_summed_up(people: People) -> None:
    user = people.key("bob-of-refusals")
    before = newest(people)["number"] if rows(people) else 0
    assert people.send(user, "GET", "/v1/keys/").status_code == 403
    refused = newest(people, refused=True)
    assert (refused["action"], refused["status"], refused["user"]) == (
        "GET /v1/keys/",
        403,
        "bob-of-refusals",
    )
    assert (
        people.send("ricordo_" + "x" * 43, "DELETE", "/users/somebody/blocks/human").status_code
        == 401
    )
    unknown = newest(people, refused=True)
    assert (unknown["action"], unknown["user_id"], unknown["address"]) == (
        "DELETE /users/…",
        None,
        "127.0.0.1",
    )
    for _ in range(200):
        assert people.send(user, "GET", "/v1/keys/").status_code == 403
    flood = rows(people, user_id="bob-of-refusals", limit=1000)
    assert sum(row["repeats"] for row in flood) == 32 + 32 + 64
    assert len(flood) == 34
    assert newest(people)["number"] - before == 35


def test_impersonated_requests_record_both_and_can_be_filtered(people: People) -> None:
    # This row is older than the rows of the test.
    people.ask(OPERATOR, "POST", "/v1/keys/", json={"name": "older", "role": "service"})
    service = people.key("pipe", "service")
    with people.server.http() as http:
        sent = {**bearer(service), "x-ricordo-user": "carla-of-pipe"}
        assert (
            http.put(
                "/users/carla-of-pipe/blocks/human", json={"body": "Hers."}, headers=sent
            ).status_code
            == 202
        )
    (row,) = rows(people, user_id="carla-of-pipe", action="put /users", **{"from": "2026-01-01"})
    assert (row["for_user"], row["role"], row["user"]) == ("carla-of-pipe", "service", None)
    assert rows(people, user_id="carla-of-pipe", to="2026-01-01") == []
    assert rows(people, user_id="carla-of-pipe", refused=True) == []
    pages = [newest(people)["id"]]
    assert rows(people, after=pages[0], limit=1)[0]["number"] == newest(people)["number"] - 1


def test_a_change_by_a_page_is_recorded_once(people: People) -> None:
    key = people.key("dora-of-pages", "admin")
    made = people.ask(key, "POST", "/v1/keys/", json={"name": "x", "role": "service"})
    before = newest(people)
    assert (before["action"], before["objects"]) == ("POST /v1/keys/", {"id": made["id"]})
    answer = people.send(key, "POST", f"/ui/settings/keys/{made['id']}/revoke")
    assert answer.status_code in (200, 303), answer.text
    after = newest(people)
    assert after["number"] == before["number"] + 1
    assert (after["action"], after["objects"]) == (
        "DELETE /v1/keys/{key_id}",
        {"key_id": made["id"]},
    )
    page = people.send(key, "GET", "/ui/audit-log?user_id=dora-of-pages&action=DELETE")
    assert made["id"] in page.text
    assert "POST /v1/keys/" not in page.text


def test_administrators_see_the_audit_log_of_their_organization_only(people: People) -> None:
    other = people.ask(OPERATOR, "POST", "/v1/organizations/", json={"name": "Other"})["id"]
    stranger = people.key("eve", "admin", organization=other)
    assert people.ask(stranger, "GET", "/v1/audit-log") == []
    people.ask(stranger, "POST", "/v1/agents/", json={"model": MODEL})
    (own,) = people.ask(stranger, "GET", "/v1/audit-log")
    assert (own["number"], own["organization_id"]) == (1, other)
    assert (
        people.send(
            stranger, "GET", "/v1/audit-log", params={"user_id": "ada-of-changes"}
        ).status_code
        == 404
    )
    for role in ("user", "developer", "service"):
        key = people.key(f"{role}-of-log", role)  # type: ignore[arg-type]
        assert people.send(key, "GET", "/v1/audit-log").status_code == 403
        assert people.send(key, "GET", "/v1/audit-log/export").status_code == 403
        assert people.send(key, "GET", "/ui/audit-log").status_code == 403
        assert "/ui/audit-log" not in people.send(key, "GET", "/ui/runs").text
    assert "/ui/audit-log" in people.send(OPERATOR, "GET", "/ui/runs").text


def test_simultaneous_requests_are_recorded_in_one_transaction(people: People) -> None:
    def change(number: int) -> None:
        with people.server.http() as http:
            ok(
                http.put(
                    f"/users/many-{number}/blocks/human",
                    json={"body": "Hers."},
                    headers=bearer(OPERATOR),
                )
            )

    agent = people.ask(
        OPERATOR, "POST", "/v1/agents/", json={"model": MODEL, "include_base_tools": False}
    )["id"]
    for _ in range(2):
        people.ask(OPERATOR, "PATCH", f"/v1/agents/{agent}", json={"description": "Known."})
    with count_statements(people.server.runtime.store) as counted:
        people.ask(OPERATOR, "PATCH", f"/v1/agents/{agent}", json={"description": "New."})
    assert len(counted.log_statements) == 3, counted.log_statements
    with count_statements(people.server.runtime.store) as counted:
        people.ask(OPERATOR, "POST", f"/v1/agents/{agent}/messages", json={"input": "Hello."})
    assert counted.log_statements == [], "a turn must write nothing to the audit log"
    before = newest(people)["number"]
    threads = [threading.Thread(target=change, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert newest(people)["number"] == before + 20


def test_a_server_without_api_keys_records_too(tmp_path: Path) -> None:
    with serving(tmp_path) as server, server.http() as http:
        made = ok(http.post("/v1/agents/", json={"model": MODEL}))
        (row,) = ok(http.get("/v1/audit-log"))
        assert row["objects"] == {"id": made["id"]}
        assert row["role"] == "admin"
