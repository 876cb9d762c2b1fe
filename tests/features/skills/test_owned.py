"""Skills are their owner's memory: zip files, archives, erasure, egress, clones and pages."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from ricordo.features.skills.skill import make_skill
from ricordo.features.skills.zips import from_zip, to_zip
from tests.features.skills.conftest import Skills, opening, proposing, running, skill_md
from tests.features.skills.test_proposed import waiting
from tests.seams.http import erase, ok, refused
from tests.support.browser import visit
from tests.support.git import git

FILES = {"scripts/hi.py": "print('hi')\n", "references/a.md": "# A\n"}


def upload(skills: Skills, path: str, content: bytes) -> Any:
    return skills.http.post(path, files={"file": ("hi.zip", content)})


def test_an_uploaded_zip_file_is_downloaded_unchanged(skills: Skills) -> None:
    content = to_zip(make_skill(skill_md("hi"), FILES))
    for path in (skills.path("ada"), f"/v1/agents/{skills.agent}/skills", "/v1/skills"):
        stored = ok(upload(skills, path, content))["skill"]
        assert stored["files"] == FILES
        answer = skills.http.get(f"{path}/hi/archive")
        assert answer.headers["content-type"] == "application/zip"
        assert answer.content == content
        ok(upload(skills, path, content))
        assert len(skills.get(f"{path}/hi/history")) == 1
        assert refused(upload(skills, path, b"PK no zip"), 400)
    ok(skills.http.delete("/v1/skills/hi"))


def test_a_users_archive_contains_and_restores_skills(skills: Skills) -> None:
    path = skills.path("bea")
    skills.put(path, "hi", files=FILES)
    skills.say("bea", proposing("hi", files={"b.md": "Beaqq."}))
    skills.say("bea", proposing("new", instructions=skill_md("new", "Newqq.")))
    archive = skills.http.get("/users/bea/export").content
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        assert b"=== file: scripts/hi.py ===" in opened.read("blocks/skills/hi/SKILL.md")
        content = json.loads(opened.read("manifest.json"))["content"]
    erase(skills.http, "bea")
    assert refused(skills.http.get(path), 404)
    restored = ok(skills.http.post("/v1/imports/memory", files={"file": ("memory.zip", archive)}))
    assert (restored["content"], restored["blocks"], restored["proposals"]) == (content, 1, 2)
    assert skills.get(f"{path}/hi")["files"] == FILES
    again = skills.http.get("/users/bea/export").content
    with zipfile.ZipFile(io.BytesIO(again)) as opened:
        assert json.loads(opened.read("manifest.json"))["content"] == content
    (proposal,) = waiting(skills, path, "new")
    ok(skills.http.post(f"{path}/new/proposals/{proposal['id']}/approve"))
    assert "- new: Newqq." in skills.prompt("bea")


def test_erasure_removes_a_users_skills(skills: Skills) -> None:
    skills.put(skills.path("cleo"), "hi", skill_md("hi", "Cleoqq."), files=FILES)
    skills.say("cleo", opening("hi"), proposing("hi", files={"b": "Cleoqqfile."}))
    receipt = erase(skills.http, "cleo")
    assert receipt["removed"]["blocks"] >= 1
    assert receipt["removed"]["proposals"] >= 1
    assert "Cleoqq" not in skills.prompt("cleo")


def test_a_withheld_skill_is_mentioned_but_not_sent(skills: Skills) -> None:
    path = skills.path("dan")
    block = skills.put(path, "hi", skill_md("hi", "Danqq.", "Bodyqq."), files=FILES)["skill"]
    policy = f"/v1/blocks/{block['block_id']}/egress"
    ok(skills.http.put(policy, json={"allowed": []}))
    prompt = skills.prompt("dan")
    assert "- hi: [1 line withheld from" in prompt
    assert "qq" not in prompt
    opened, ran, changed = skills.say(
        "dan",
        opening("hi"),
        running("hi", "scripts/hi.py"),
        proposing("hi", files={"b": "x"}),
    )
    for refusal in (opened, ran, changed):
        assert "egress policy" in refusal
        assert "qq" not in refusal


def test_skills_can_be_cloned_and_changed_by_a_push(skills: Skills, tmp_path: Path) -> None:
    path = skills.path("eva")
    skills.put(path, "hi", files=FILES)
    git(tmp_path, "clone", "-q", f"{skills.server.url}/users/eva/memory.git", "mine")
    clone = tmp_path / "mine"
    file = clone / "skills/hi/SKILL.md"
    assert "=== file: scripts/hi.py ===" in file.read_text()
    file.write_text(file.read_text().replace("print('hi')", "print('pushed')"))
    new = clone / "skills/new/SKILL.md"
    new.parent.mkdir()
    new.write_text(skill_md("new", "Pushed."))
    git(clone, "add", "-A")
    git(clone, "-c", "user.name=Eva", "-c", "user.email=e@x", "commit", "-qm", "Change skills")
    git(clone, "push", "-q", "origin", "HEAD")
    assert skills.get(f"{path}/hi")["files"]["scripts/hi.py"] == "print('pushed')\n"
    assert "- new: Pushed." in skills.prompt("eva")


@pytest.mark.parametrize("width", [1440, 390])
def test_the_pages_work_in_a_browser(browser: Browser, skills: Skills, width: int) -> None:
    user = f"fay{width}"
    skills.put(skills.path(user), "hi", files=FILES)
    skills.say(user, proposing("hi", files={"scripts/hi.py": "print('better')\n"}))
    skills.say(user, proposing("proposed", instructions=skill_md("proposed")))
    archive = {"name": "b.zip", "mimeType": "application/zip"}
    archive |= {"buffer": to_zip(make_skill(skill_md("zipped"), {}))}  # type: ignore[dict-item]
    with visit(browser, skills.server.url, width=width) as visitor:
        page = visitor.see(f"/ui/people/{user}/skills")
        new = page.get_by_role("region", name="New skills that wait for a decision")
        expect(new.get_by_role("link")).to_have_text("proposed")
        expect(page.get_by_role("heading", level=1)).to_have_text(f"Skills of {user}")
        assert (visitor.faults(), visitor.is_wider_than_the_screen()) == ([], False)
        page.get_by_role("link", name="hi", exact=True).click()
        waits = page.get_by_role("region", name="Waiting for a decision")
        expect(waits).to_contain_text("It went well.")
        assert (visitor.faults(), visitor.is_wider_than_the_screen()) == ([], False)
        waits.get_by_role("button", name="Approve").click()
        expect(page.get_by_role("status")).to_contain_text("Approved.")
        expect(page.locator("details").last).to_contain_text("print('better')")
        page.get_by_role("link", name="Edit").click()
        assert (visitor.faults(), visitor.is_wider_than_the_screen()) == ([], False)
        editor = page.get_by_label("Text of the skill")
        editor.fill(editor.input_value().replace("Makes lists.", "Makes long lists."))
        page.get_by_role("button", name="Save").first.click()
        expect(page.get_by_text("Makes long lists.").first).to_be_visible()
        page.get_by_role("button", name="Restore").last.click()
        expect(page.get_by_role("status")).to_contain_text("Saved.")
        expect(page.locator("details").last).to_contain_text("print('hi')")
        page.get_by_label("What agents may do").select_option("read_only")
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_label("What agents may do")).to_have_value("read_only")
        visitor.see(f"/ui/people/{user}/skills")
        page.get_by_label("Text of SKILL.md").fill(skill_md("fresh"))
        page.get_by_role("button", name="Make the skill").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("fresh")
        visitor.see(f"/ui/people/{user}/skills")
        page.get_by_label("A zip file").set_input_files([archive])  # type: ignore[list-item]
        page.get_by_role("button", name="Bring it in").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("zipped")
        page.on("dialog", lambda dialog: dialog.accept())
        page.get_by_role("button", name="Delete").click()
        expect(page.get_by_role("status")).to_contain_text("Deleted.")
        for other in ("/ui/skills", "/ui/skills/organization", f"/ui/agents/{skills.agent}/skills"):
            visitor.see(other)
            expect(page.get_by_role("heading", level=1)).to_contain_text("Skills")
            assert (visitor.faults(), visitor.is_wider_than_the_screen()) == ([], False)
        visitor.require_quiet()
    names = [skill["name"] for skill in skills.get(skills.path(user))]
    assert names == ["fresh", "hi"]


def test_the_skill_archive_contains_its_files(skills: Skills) -> None:
    skills.put(skills.path("gus"), "hi", files=FILES)
    content = skills.http.get(f"{skills.path('gus')}/hi/archive").content
    assert from_zip(content).files == FILES
