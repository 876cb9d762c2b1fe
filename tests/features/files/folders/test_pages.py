"""The pages of folders: creating, filling, giving to an agent, and deleting in the browser."""

import time
from pathlib import Path

import pytest

from ricordo.features.files.folders import folder_pages
from tests.features.web.pages.test_home import visitor


def test_a_folder_can_be_created_filled_attached_and_deleted_on_its_page(tmp_path: Path) -> None:
    with visitor(tmp_path) as browser:
        assert "There are no folders yet" in browser.get("/ui/files").text
        sent = {"name": "<b>Shelf</b>", "description": "Our <i>texts</i>.", "instructions": ""}
        home = browser.post("/ui/files", data=sent).headers["location"]
        again = browser.post("/ui/files", data=sent)
        assert again.status_code == 409
        assert "A folder named &#34;&lt;b&gt;Shelf&lt;/b&gt;&#34; already exists" in again.text
        assert "It is empty." in browser.get(home).text
        for name, data in (("<x>.md", b"# Bees\n"), ("bad.pdf", b"no")):
            assert browser.post(f"{home}/upload", files={"file": (name, data)}).status_code == 303
        refused = browser.post(f"{home}/upload", files={"file": ("x.png", bytes(range(256)) * 40)})
        assert (refused.status_code, "cannot be read" in refused.text) == (415, True)
        end = time.monotonic() + 20
        while "every 2s" in (page := browser.get(home).text) and time.monotonic() < end:
            time.sleep(0.05)
        for words in (
            "&lt;b&gt;Shelf&lt;/b&gt;",
            "&lt;x&gt;.md",
            "read",
            "failed",
            "cannot be read as pdf",
            "1 passage<",
        ):
            assert words in page
        agent = browser.post(
            "/v1/agents/", json={"name": "<Nina>", "model": "ricordo/librarian"}
        ).json()["id"]
        browser.post(f"{home}/agents", data={"agent": agent})
        page = browser.get(home).text
        assert "&lt;Nina&gt;" in page
        assert "Take away" in page
        browser.post(f"{home}/agents", data={"agent": agent, "do": "detach"})
        assert "No agent reads these files yet." in browser.get(home).text
        folder = home.rsplit("/", 1)[1]
        file = browser.get(f"/v1/folders/{folder}/files").json()[0]["id"]
        browser.post(f"{home}/files/{file}/delete")
        assert len(browser.get(f"/v1/folders/{folder}/files").json()) == 1
        assert browser.post(f"{home}/delete").headers["location"] == "/ui/files"
        assert browser.get(home).status_code == 404


def test_the_page_of_a_folder_names_its_agents_however_many_newer_agents_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_pages, "_PAGE_SIZE", 2)
    with visitor(tmp_path) as browser:
        home = browser.post("/ui/files", data={"name": "Shelf"}).headers["location"]
        agents = [
            browser.post("/v1/agents/", json={"name": name, "model": "ricordo/librarian"}).json()
            for name in ("Reader", "Nina", "Otto")
        ]
        browser.post(f"{home}/agents", data={"agent": agents[0]["id"]})
        page = browser.get(home).text
        assert "No agent reads these files yet." not in page
        assert f'/ui/agents/{agents[0]["id"]}">Reader</a>' in page
