"""Memory blocks as notes: listed, read with their versions, and edited by their owner."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.seams.http import bearer, ok, refused
from tests.seams.server import ServerInThread, serving

HOME = "/api/you/notes"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerInThread]:
    with serving(tmp_path, api_key="the-operator") as running:
        yield running


@pytest.fixture
def ada(server: ServerInThread) -> Iterator[httpx2.Client]:
    with server.http(headers=bearer(server.key("ada"))) as opened:
        ok(
            opened.put(
                "/users/ada/blocks/notes",
                json={"body": "# Plan\n\nOne *step*.\n", "policy": "propose"},
            )
        )
        ok(opened.put("/users/ada/blocks/human", json={"body": "Ada.", "title": "Who I am"}))
        yield opened


def edit(http: httpx2.Client, note: dict[str, Any], md: str) -> dict[str, Any]:
    made: dict[str, Any] = ok(
        http.post(
            f"{HOME}/{note['id']}/update", json={"data": {"content": {"md": md, "html": "x"}}}
        )
    )
    return made


def test_blocks_are_notes_and_an_edit_is_a_version_by_the_owner(ada: httpx2.Client) -> None:
    notes = {note["title"]: note for note in ok(ada.get(f"{HOME}/"))}
    assert set(notes) == {"Who I am", "Notes"}
    note = notes["Notes"]
    assert note["data"]["content"] == {
        "json": None,
        "md": "# Plan\n\nOne *step*.\n",
        "html": "<h1>Plan</h1>\n<p>One <em>step</em>.</p>\n",
    }
    assert note["meta"]["label"] == "notes"
    assert note["write_access"] is True
    assert note["updated_at"] >= note["created_at"] > 1_700_000_000_000_000_000  # nanoseconds
    changed = edit(ada, note, "# Plan\n\nTwo steps.")
    assert changed["data"]["content"]["md"] == "# Plan\n\nTwo steps.\n"
    assert [one["md"] for one in changed["data"]["versions"]] == [
        "# Plan\n\nTwo steps.\n",
        "# Plan\n\nOne *step*.\n",
    ]
    assert ok(ada.get(f"{HOME}/{note['id']}")) == changed
    assert ok(ada.get("/users/ada/blocks/notes"))["body"] == "# Plan\n\nTwo steps.\n"
    same = edit(ada, note, "# Plan\n\nTwo steps.")  # An editor that saves an unchanged text.
    assert len(same["data"]["versions"]) == 2
    titled = ok(
        ada.post(
            f"{HOME}/{note['id']}/update", json={"title": "My plan", "data": None, "meta": {"x": 1}}
        )
    )
    assert (titled["title"], titled["data"]["content"]["md"]) == (
        "My plan",
        "# Plan\n\nTwo steps.\n",
    )


def test_updates_that_would_empty_a_note_are_refused(ada: httpx2.Client) -> None:
    note = ok(ada.get(f"{HOME}/"))[0]
    for empty in ("", "\n", "  "):
        words = refused(
            ada.post(f"{HOME}/{note['id']}/update", json={"data": {"content": {"md": empty}}}), 409
        )
        assert "would empty" in words
    assert ok(ada.get(f"{HOME}/{note['id']}"))["data"]["content"]["md"]


def test_users_see_only_their_own_notes(server: ServerInThread, ada: httpx2.Client) -> None:
    note = ok(ada.get(f"{HOME}/"))[0]
    bob = bearer(server.key("bob"))
    for method, path in (("GET", ""), ("POST", "/update")):
        body = {"data": {"content": {"md": "Mine."}}} if method == "POST" else None
        assert (
            ada.request(method, f"{HOME}/{note['id']}{path}", json=body, headers=bob).status_code
            == 404
        )
    operator = {"authorization": "Bearer the-operator"}
    assert "Send the key of a user" in refused(ada.get(f"{HOME}/", headers=operator), 400)
    acting = {**operator, "x-ricordo-user": "ada"}
    assert len(ok(ada.get(f"{HOME}/", headers=acting))) == 2
    refused(ada.get(f"{HOME}/no-note"), 404)


def test_scripts_and_images_in_memory_are_escaped_in_notes(ada: httpx2.Client) -> None:
    ok(
        ada.put(
            "/users/ada/blocks/notes", json={"body": "<script>x</script> ![p](http://127.0.0.1/p)"}
        )
    )
    note = next(one for one in ok(ada.get(f"{HOME}/")) if one["meta"]["label"] == "notes")
    assert "<script" not in note["data"]["content"]["html"]
    assert "<img" not in note["data"]["content"]["html"]
