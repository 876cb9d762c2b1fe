"""Remotes over HTTP: added, listed without their passwords, brought up to date, taken away."""

from pathlib import Path

import httpx2
import pytest

from ricordo.domain.ids import new_id
from tests.api.memory import ok, put, refused


@pytest.mark.parametrize("kind", ["git", "dolt"])
def test_a_remote_is_added_listed_and_taken_away(http: httpx2.Client, tmp_path: Path, kind: str) -> None:
    user = new_id("ada")
    put(http, user, "human", "Ada")
    address = f"doltlite://{tmp_path / 'memory.db'}" if kind == "dolt" else str(tmp_path / "memory.git")
    made = ok(http.put(f"/users/{user}/remotes", json={"kind": kind, "address": address}))
    assert (made["kind"], made["address"]) == (kind, address)
    assert [one["id"] for one in ok(http.get(f"/users/{user}/remotes"))] == [made["id"]]
    assert "already" in refused(http.put(f"/users/{user}/remotes", json={"kind": kind, "address": address}), 409)
    ok(http.post(f"/users/{user}/remotes/{made['id']}/follow"))
    other = new_id("bob")
    put(http, other, "human", "Bob")
    refused(http.delete(f"/users/{other}/remotes/{made['id']}"), 404)
    ok(http.delete(f"/users/{user}/remotes/{made['id']}"))
    assert ok(http.get(f"/users/{user}/remotes")) == []


def test_a_password_is_never_shown(http: httpx2.Client) -> None:
    user = new_id("ada")
    body = {"kind": "dolt", "address": "mysql://ada:s3cret@127.0.0.1:9/memory"}
    answer = http.put(f"/users/{user}/remotes", json=body)
    assert ok(answer)["address"] == "mysql://ada@127.0.0.1:9/memory"
    assert "s3cret" not in answer.text + http.get(f"/users/{user}/remotes").text


def test_an_address_that_cannot_be_used_makes_nobody(http: httpx2.Client) -> None:
    user = new_id("ada")
    refused(http.put(f"/users/{user}/remotes", json={"kind": "dolt", "address": "mysql://10.0.0.7/memory"}), 400)
    refused(http.get(f"/users/{user}/remotes"), 404)
