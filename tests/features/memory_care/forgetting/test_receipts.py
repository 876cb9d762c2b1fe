"""Receipts are for the person they are about, and for administrators."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from ricordo.domain.scope import ROLE_SCOPES
from tests.seams.people import OPERATOR, People
from tests.seams.server import serving
from tests.seams.waiting import wait_for


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Iterator[People]:
    folder: Path = tmp_path_factory.mktemp("receipts")
    with serving(folder, api_key=OPERATOR) as server, server.http() as http:
        yield People(server, http)


def statuses(people: People, path: str, keys: dict[str, str]) -> dict[str, int]:
    return {name: people.send(key, "GET", path).status_code for name, key in keys.items()}


def until_done(people: People, path: str) -> None:
    wait_for(lambda: people.send(OPERATOR, "GET", path).status_code == 200)


def test_others_can_read_neither_a_receipt_nor_its_state(people: People) -> None:
    acme = people.ask(OPERATOR, "POST", "/v1/organizations/", json={"name": "acme"})["id"]
    reads: Any = (*ROLE_SCOPES["developer"], "memory:read")
    keys = {
        "ada": people.key("ada"),
        "eve": people.key("eve"),
        "teacher": people.key("tom", "developer", reads),
        "elsewhere": people.key("zoe", "admin", organization=acme),
    }
    for name in ("ada", "eve"):
        people.ask(keys[name], "PUT", f"/users/{name}/blocks/human", json={"body": "Likes tea."})
    asked = people.send(keys["ada"], "POST", "/users/ada/forget", json={"text": "tea", "all": True})
    path = f"/v1/receipts/{asked.json()['id']}"
    assert people.send(keys["eve"], "GET", path).status_code == 404  # the job may still be running
    until_done(people, path)
    expected = {"ada": 200, "eve": 404, "teacher": 404, "elsewhere": 404}
    assert statuses(people, path, keys) == expected

    gone = people.send(OPERATOR, "DELETE", "/users/ada").json()
    path = f"/v1/receipts/{gone['id']}"
    assert people.send(keys["eve"], "GET", path).status_code == 404
    until_done(people, path)
    del keys["ada"]
    assert statuses(people, path, keys) == {"eve": 404, "teacher": 404, "elsewhere": 404}
    # A user also cannot learn by name that another user was forgotten.
    assert people.send(keys["eve"], "DELETE", "/users/ada").status_code == 404
    assert people.send(OPERATOR, "DELETE", "/users/ada").json()["id"] == gone["id"]


def test_a_key_that_may_not_read_removes_a_text_and_reads_only_the_receipt(people: People) -> None:
    reads = ("memory:read", "messages:read")
    keys = {
        "fay": people.key("fay"),
        "clerk": people.key("cleo", "admin", ("users:write",)),
        "half": people.key("hal", "admin", ("users:write", reads[0])),
        "reader": people.key("rea", "admin", ("users:write", *reads)),
    }
    text = {"body": "Likes coffee."}
    people.ask(keys["fay"], "PUT", "/users/fay/blocks/human", json=text)
    lists = {
        name: people.send(key, "POST", "/users/fay/forget", json={"text": "coffee"})
        for name, key in keys.items()
    }
    listed = {name: answer.status_code for name, answer in lists.items()}
    assert listed == {"fay": 200, "clerk": 403, "half": 403, "reader": 200}
    assert "texts that it cannot read" in lists["clerk"].text
    for name in ("clerk", "half"):
        assert "Likes" not in lists[name].text
    choice = {"text": "coffee", "all": True}
    asked = people.send(keys["half"], "POST", "/users/fay/forget", json=choice)
    path = f"/v1/receipts/{asked.json()['id']}"
    until_done(people, path)
    expected = {"fay": 200, "clerk": 403, "half": 200, "reader": 404}
    assert statuses(people, path, keys) == expected


def test_receipts_and_running_states_follow_their_documented_schema(people: People) -> None:
    document = people.ask(OPERATOR, "GET", "/openapi.json")
    for name, method, path, asked in (
        ("kim", "POST", "/users/kim/forget", {"text": "tea", "all": True}),
        ("lea", "DELETE", "/users/lea", None),
        ("mia", "DELETE", "/v1/users/mia", None),
    ):
        people.ask(OPERATOR, "PUT", f"/users/{name}/blocks/human", json={"body": "Likes tea."})
        begun = people.send(OPERATOR, method, path, json=asked)
        receipt = f"/v1/receipts/{begun.json()['id']}"
        until_done(people, receipt)
        for answer in (begun, people.send(OPERATOR, "GET", receipt)):
            kind = "ReceiptResponse" if answer.status_code == 200 else "ErasureResponse"
            schema = {
                "$ref": f"#/components/schemas/{kind}",
                "components": document["components"],
            }
            jsonschema_rs.validate(schema, answer.json())


def test_a_receipt_gives_no_name_of_a_shared_block_that_says_the_text(people: People) -> None:
    block = people.ask(
        OPERATOR, "POST", "/v1/blocks/", json={"label": "gout-notes", "value": "She has gout."}
    )
    agent = people.ask(
        OPERATOR,
        "POST",
        "/v1/agents/",
        json={"model": "scripted/model", "block_ids": [block["id"]]},
    )
    for name in ("ida", "ole"):
        key = people.key(name)
        people.ask(key, "POST", "/v1/conversations/", params={"agent_id": agent["id"]}, json={})
    body = {"text": "gout", "all": True}
    asked = people.send(OPERATOR, "POST", "/users/ida/forget", json=body).json()
    path = f"/v1/receipts/{asked['id']}"
    until_done(people, path)
    receipt = people.ask(OPERATOR, "GET", path)
    assert any(block["id"] in sentence for sentence in receipt["elsewhere"])
    assert "gout" not in str(receipt).lower()
