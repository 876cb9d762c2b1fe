"""The archive that a user takes along: whole, in portions, and as it was when the export began."""

import io
import json
import zipfile
from pathlib import PurePosixPath, PureWindowsPath

import httpx2
import pytest

from ricordo.domain.ids import new_id
from ricordo.features.formats import routes as exporting
from tests.seams.http import get, ok, post, propose, put


def archive_of(http: httpx2.Client, user: str) -> zipfile.ZipFile:
    """The user's archive, read to its end and found whole."""
    answer = http.get(f"/users/{user}/export")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/zip")
    assert 'filename="memory.zip"' in answer.headers["content-disposition"]
    archive = zipfile.ZipFile(io.BytesIO(answer.content))
    assert archive.testzip() is None
    return archive


def test_everything_is_in_the_archive_in_many_portions(http: httpx2.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "_PORTION", 2)
    ada = new_id("ada")
    for number in range(5):
        put(http, ada, "courses/maths", f"Übung {number}\r\n", title="Maths")
    put(http, ada, "gone", "Secret")
    ok(http.delete(f"/users/{ada}/blocks/gone"))
    put(http, ada, "empty", "")
    made = [propose(http, ada, "courses/maths", "4", str(number), agent_id=f"agent {number}") for number in range(5, 8)]
    post(http, ada, f"courses/maths/diffs/{made[0]}/reject", reason="No.")

    archive = archive_of(http, ada)

    names = ["blocks/courses/maths.md", "blocks/empty.md", "blocks.jsonl", "history.jsonl", "proposals.jsonl"]
    assert archive.namelist() == names
    assert archive.read(names[0]).decode() == "Übung 4\r\n"
    assert archive.read(names[1]) == b""
    settings = [json.loads(line) for line in archive.read("blocks.jsonl").splitlines()]
    assert [(one["label"], one["title"], "body" in one) for one in settings] == [
        ("courses/maths", "Maths", False),
        ("empty", None, False),
    ]
    history = [json.loads(line) for line in archive.read("history.jsonl").splitlines()]
    assert [one["number"] for one in history] == list(range(8, 0, -1))
    assert [one["body"] for one in history][:3] == ["", None, "Secret"]
    of_maths = [one for one in history if one["label"] == "courses/maths"]
    assert [one["sha"] for one in of_maths] == [one["sha"] for one in get(http, ada, "courses/maths/history")]
    proposals = [json.loads(line) for line in archive.read("proposals.jsonl").splitlines()]
    assert [(one["id"], one["note"]) for one in proposals] == [(made[2], None), (made[1], None), (made[0], "No.")]


def test_the_archive_comes_in_pieces(http: httpx2.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "_PORTION", 1)
    ada = new_id("ada")
    for number in range(4):
        put(http, ada, "student", "".join(chr(97 + (place * number * 7919) % 26) for place in range(40_000)))
    with http.stream("GET", f"/users/{ada}/export") as answer:
        pieces = [len(piece) for piece in answer.iter_raw()]

    assert len(pieces) >= 4
    assert "content-length" not in answer.headers


def test_no_name_in_the_archive_leads_out_of_it_and_an_empty_memory_has_an_archive_too(http: httpx2.Client) -> None:
    ada = new_id("ada")
    ok(http.post("/v1/agents/", json={"model": "scripted/model", "user_id": ada}))
    empty = archive_of(http, ada)
    assert {name: empty.read(name) for name in empty.namelist()} == dict.fromkeys(
        ("blocks.jsonl", "history.jsonl", "proposals.jsonl"), b""
    )
    for label in ("a/...", "C:/x", "~/x"):
        assert http.put(f"/users/{ada}/blocks/{label}", json={"body": "x"}).status_code == 200

    for name in archive_of(http, ada).namelist():
        for path in (PurePosixPath(name), PureWindowsPath(name)):
            assert ".." not in path.parts
            assert not path.anchor
