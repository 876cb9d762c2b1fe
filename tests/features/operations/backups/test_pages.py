"""Backups over HTTP and on their page.

A job creates them. Administrators check, download and delete them.
"""

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Browser, expect

from ricordo.domain.job import Job
from ricordo.domain.scope import LOCAL_ORGANIZATION
from ricordo.errors import Unavailable
from ricordo.features.operations.backups import service
from ricordo.features.operations.backups.jobs import make
from ricordo.features.operations.backups.service import restore
from ricordo.settings import Settings
from tests.seams.http import ok, refused
from tests.seams.server import LIMIT, MODEL, ServerInThread, serving
from tests.seams.waiting import wait_for
from tests.support.browser import visit

HOME = "/v1/backups"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerInThread]:
    with serving(tmp_path / "data") as running:
        yield running


@pytest.fixture
def http(server: ServerInThread) -> Iterator[httpx2.Client]:
    with server.http() as opened:
        yield opened


def silent(*_: Any) -> None:
    """Ignore the progress."""


def wait_for_backup(http: httpx2.Client, job: dict[str, Any]) -> dict[str, Any]:
    deadline = time.monotonic() + LIMIT
    while (now := ok(http.get(f"/v1/jobs/{job['id']}")))["status"] not in (
        "completed",
        "failed",
        "cancelled",
    ):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return dict(now)


def test_a_backup_can_be_created_checked_downloaded_and_deleted(
    server: ServerInThread, http: httpx2.Client, tmp_path: Path
) -> None:
    agent = ok(http.post("/v1/agents/", json={"model": MODEL, "name": "Kept"}))["id"]
    job = wait_for_backup(http, ok(http.post(HOME)))
    assert job["status"] == "completed"
    assert job["metadata"]["progress"]["done"] <= job["metadata"]["progress"]["total"]
    (one,) = ok(http.get(HOME))
    assert (one["name"], one["was_verified"]) == (job["metadata"]["payload"]["name"], True)
    assert "is whole" in ok(http.post(f"{HOME}/{one['name']}/check"))["message"]
    answer = http.get(f"{HOME}/{one['name']}")
    assert len(answer.content) == one["size"]
    copy = tmp_path / "copy.db"
    copy.write_bytes(answer.content)
    restore(copy, Settings(data_dir=tmp_path / "other"), silent)
    with closing(sqlite3.connect(tmp_path / "other" / "ricordo.db")) as database:
        assert database.execute("SELECT name FROM agents WHERE id = ?", [agent]).fetchall() == [
            ("Kept",)
        ]
    ok(http.delete(f"{HOME}/{one['name']}"))
    refused(http.delete(f"{HOME}/{one['name']}"), 404)
    assert ok(http.get(HOME)) == []


def test_only_listed_backup_names_are_accepted(
    server: ServerInThread, http: httpx2.Client, tmp_path: Path
) -> None:
    folder = tmp_path / "data" / "backups"
    folder.mkdir()
    (folder / "link.db").symlink_to(tmp_path / "data" / "ricordo.db")
    (folder / "half.db.unfinished").write_text("x")
    (folder / "sub.db").mkdir()
    (folder / "old-schema3-2026.db").write_text("no database")
    (folder / "old-schema3-2026.dump").write_text("PGDMP")
    listed = {one["name"]: one["was_verified"] for one in ok(http.get(HOME))}
    assert listed == {"old-schema3-2026.db": True, "old-schema3-2026.dump": False}
    for name in (
        "link.db",
        "half.db.unfinished",
        "sub.db",
        "..%2Fricordo.db",
        "..%2Fsecret.key",
        "%2Fetc%2Fpasswd",
        "a%00.db",
    ):
        for answer in (
            http.get(f"{HOME}/{name}"),
            http.delete(f"{HOME}/{name}"),
            http.post(f"{HOME}/{name}/check"),
        ):
            assert answer.status_code in (404, 405), (name, answer.text)
    assert "not a sound backup" in refused(http.post(f"{HOME}/old-schema3-2026.db/check"), 400)
    assert "pg_restore --list" in refused(http.post(f"{HOME}/old-schema3-2026.dump/check"), 400)
    assert (tmp_path / "data" / "ricordo.db").exists()


def test_a_folder_of_backups_that_cannot_be_read_is_reported(
    server: ServerInThread, http: httpx2.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data" / "backups"
    folder.mkdir()
    read = os.listdir

    def refuse(path: str | Path = ".") -> list[str]:
        if Path(path) == folder:
            raise PermissionError(13, "Permission denied", str(path))
        return read(path)

    monkeypatch.setattr(os, "listdir", refuse)
    sentence = f"The folder {folder} cannot be read: Permission denied."
    assert sentence in refused(http.get(HOME), 503)
    assert sentence in refused(http.get(f"{HOME}/a.db"), 503)
    assert len(server.provoked()) == 2


def test_an_interrupted_backup_leaves_no_file_and_a_finished_one_is_not_repeated(
    server: ServerInThread, http: httpx2.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ok(http.post("/v1/agents/", json={"model": MODEL}))
    begun, go, over = threading.Event(), threading.Event(), threading.Event()
    told: list[str] = []
    real = service.back_up

    def slowly(settings: Settings, target: Path, report: Any) -> Any:
        def tell(*given: Any) -> None:
            begun.set()
            go.wait(LIMIT)
            report(*given)

        try:
            return real(settings, target, tell)
        except Unavailable as error:
            told.append(str(error))
            raise
        finally:
            over.set()

    async def cut_off() -> None:
        work = asyncio.create_task(make(server.runtime, job, silent))
        assert await asyncio.to_thread(begun.wait, LIMIT)
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work
        go.set()
        assert await asyncio.to_thread(over.wait, LIMIT)

    job = Job("backups.make", LOCAL_ORGANIZATION, {"name": "twice.db"})
    with monkeypatch.context() as changed:
        changed.setattr(service, "back_up", slowly)
        server.run(cut_off())
    assert told == ["The backup was cancelled. Start another one."]
    assert list((tmp_path / "data" / "backups").iterdir()) == []
    for _ in range(2):
        server.run(make(server.runtime, job, silent))
    assert [one["name"] for one in ok(http.get(HOME))] == ["twice.db"]


def test_at_most_one_backup_runs_and_one_waits(
    server: ServerInThread, http: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go = threading.Event(), threading.Event()
    monkeypatch.setattr(service, "back_up", lambda *_: (begun.set(), go.wait(LIMIT)))
    try:
        first = ok(http.post(HOME))
        assert begun.wait(LIMIT)
        # The second backup has the messages since the first one began.
        assert ok(http.post(HOME))["id"] != first["id"]
        assert "already" in refused(http.post(HOME), 409)
    finally:
        go.set()


def test_with_several_organizations_only_the_operator_can_use_backups(
    tmp_path: Path,
) -> None:
    with serving(tmp_path, api_key="the-operators-own-key") as server, server.http() as http:
        operator = {"authorization": "Bearer the-operators-own-key"}
        made = ok(http.post("/v1/keys/", json={"user": "boss", "role": "admin"}, headers=operator))
        boss = {"authorization": f"Bearer {made['key']}"}
        name = ended_name(http, boss)
        ok(http.post("/v1/organizations/", json={"name": "other"}, headers=operator))
        for method, path in (
            ("GET", HOME),
            ("POST", HOME),
            ("GET", f"{HOME}/{name}"),
            ("DELETE", f"{HOME}/{name}"),
        ):
            assert "Only the operator" in refused(http.request(method, path, headers=boss), 403)
        assert http.get("/ui/backups", headers=boss).status_code == 403
        assert ok(http.get(HOME, headers=operator))[0]["name"] == name


def ended_name(http: httpx2.Client, headers: dict[str, str]) -> str:
    name = ok(http.post(HOME, headers=headers))["metadata"]["payload"]["name"]
    wait_for(lambda: ok(http.get(HOME, headers=headers)))
    return str(name)


def test_the_backups_page_polls_during_a_backup_and_shows_the_restore_command(
    server: ServerInThread, http: httpx2.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "There are no backups" in http.get("/ui/backups").text
    go, real = threading.Event(), service.back_up
    monkeypatch.setattr(service, "back_up", lambda *given: (go.wait(LIMIT), real(*given))[1])
    begun = http.post("/ui/backups/make", follow_redirects=True)
    assert "The backup has begun." in begun.text
    assert 'hx-get="/ui/backups" hx-trigger="every 2s"' in begun.text
    go.set()
    (job,) = ok(http.get("/v1/jobs/", params={"kind": "backups.make"}))
    wait_for_backup(http, job)
    page = http.get("/ui/backups").text
    (one,) = ok(http.get(HOME))
    assert "hx-get" not in page.partition("<main")[2]
    assert "verified" in page
    assert f"ricordo restore {tmp_path}/data/backups/{one['name']} --replace" in page
    at = f"/ui/backups/{one['name']}"
    assert "is whole" in http.post(f"{at}/check", follow_redirects=True).text
    deleted = http.post(f"{at}/delete", follow_redirects=True).text
    assert "The backup was deleted." in deleted
    assert ok(http.get(HOME)) == []


@pytest.mark.soak
def test_the_backups_page_works_in_a_browser(
    browser: Browser, server: ServerInThread, http: httpx2.Client, tmp_path: Path
) -> None:
    with visit(browser, server.url, width=390, dark=True) as visitor:
        page = visitor.see("/ui/backups")
        page.on("dialog", lambda dialog: dialog.accept())
        page.get_by_role("button", name="Back up now").click()
        expect(page.get_by_role("status")).to_contain_text("The backup has begun.")
        row = page.locator("tbody tr")  # The page reloads itself.
        expect(row).to_contain_text("verified")
        (one,) = ok(http.get(HOME))
        visitor.see("/ui/backups")
        expect(page.locator("pre")).to_have_text(
            f"ricordo restore {tmp_path}/data/backups/{one['name']} --replace"
        )
        assert (visitor.faults(), visitor.is_wider_than_the_screen()) == ([], False)
        with page.expect_download() as download:
            row.get_by_role("link").click()
        assert download.value.path().stat().st_size == one["size"]
        row.get_by_role("button", name="Check again").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("status")).to_contain_text("is whole")
        row.get_by_role("button", name="Delete").click()
        expect(page.get_by_role("status")).to_contain_text("The backup was deleted.")
        visitor.require_quiet()
        with visit(browser, server.url, java_script_enabled=False) as plain:
            expect(plain.see("/ui/backups").locator("main")).to_contain_text("There are no backups")
