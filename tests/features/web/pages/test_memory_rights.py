"""Rights on the pages of memory.

Students see and change only their memory, and a teacher's edit waits for its owner.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.features.web.pages.test_home import visitor
from tests.seams.http import OPERATOR, bearer, ok


class School:
    """A server with keys; Ada is a student, and Tess an administrator of the school."""

    def __init__(self, browser: TestClient) -> None:
        self.browser = browser
        self.keys = {
            name: self._key(name, role)
            for name, role in (("ada", "user"), ("ben", "user"), ("tess", "admin"))
        }
        body = {"body": "Ada likes tea.", "policy": "propose"}
        self.block = ok(self.ask("ada", "PUT", "/users/ada/blocks/human", json=body))
        users = ok(self.ask("tess", "GET", "/v1/users/"))
        self.home = "/ui/people/" + next(one["id"] for one in users if one["identifier"] == "ada")

    def _key(self, name: str, role: str) -> str:
        body = {"user": name, "role": role}
        made = self.browser.post("/v1/keys/", json=body, headers=bearer(OPERATOR))
        return str(ok(made)["key"])

    def ask(self, name: str, method: str, path: str, **given: Any) -> Any:
        return self.browser.request(
            method, path, headers={"authorization": f"Bearer {self.keys[name]}"}, **given
        )


@pytest.fixture
def school(tmp_path: Path) -> Iterator[School]:
    with visitor(tmp_path, api_key=OPERATOR) as browser:
        yield School(browser)


def test_a_student_sees_only_their_own_page(school: School) -> None:
    assert school.ask("ada", "GET", "/ui/people").headers["location"] == school.home
    assert "Ada likes tea." in school.ask("ada", "GET", school.home).text
    for path in (
        "",
        "/blocks/human",
        "/blocks/human/history",
        "/audit",
        "/export",
        "/forget",
        "/new",
    ):
        page = school.ask("ben", "GET", school.home + path)
        assert page.status_code == 404
        assert "tea" not in page.text
    block = f"/ui/blocks/{school.block['id']}"
    assert school.ask("ben", "GET", block).status_code == 404
    assert (
        school.ask("ben", "POST", f"{school.home}/forget", data={"name": "ada"}).status_code == 404
    )


def test_a_teachers_edit_waits_for_the_owners_approval(school: School) -> None:
    page = f"{school.home}/blocks/human"
    shown = school.ask("tess", "GET", page, params={"edit": "1"}).text
    assert "What you write waits for ada’s approval." in shown
    assert ">Propose</button>" in shown
    saved = school.ask(
        "tess", "POST", page, data={"value": "Ada likes milk.", "reason": "She told me"}
    )
    assert saved.status_code == 303
    told = school.ask("tess", "GET", page).text
    assert "This waits for ada&#39;s approval." in told
    assert ">Undo</button>" not in told
    assert 'value="approve"' not in told, "only Ada may decide"
    assert "Save settings" not in told
    assert ok(school.ask("ada", "GET", "/users/ada/blocks/human"))["body"] == "Ada likes tea."
    school.browser.cookies.clear()
    waiting = school.ask("ada", "GET", page).text
    assert 'value="approve"' in waiting
    assert "She told me" in waiting
    new = school.ask("tess", "POST", f"{school.home}/new", data={"label": "goals", "value": "Win."})
    assert (
        "Waits for ada&#39;s approval." in school.ask("tess", "GET", new.headers["location"]).text
    )
    school.ask("tess", "POST", f"{school.home}/remove/human")
    assert "This waits for ada&#39;s approval." in school.ask("tess", "GET", page).text
    assert ok(school.ask("ada", "GET", "/users/ada/blocks/human"))["body"] == "Ada likes tea."
    deletion = next(
        one for one in ok(school.ask("ada", "GET", "/users/ada/diffs")) if one["body"] is None
    )
    assert (
        "It deletes this block." in school.ask("ada", "GET", f"/ui/proposals/{deletion['id']}").text
    )
    school.ask("ada", "POST", f"/ui/proposals/{deletion['id']}/approve")
    assert school.ask("ada", "GET", "/users/ada/blocks/human").status_code == 404


def test_a_teacher_cannot_edit_a_read_only_block(school: School) -> None:
    ok(school.ask("ada", "PATCH", "/users/ada/blocks/human", json={"policy": "read_only"}))
    page = f"{school.home}/blocks/human"
    assert ">Edit</a>" not in school.ask("tess", "GET", page).text
    assert school.ask("tess", "POST", page, data={"value": "Mine."}).status_code == 403
    assert (
        school.ask(
            "tess", "POST", f"{school.home}/settings/human", data={"policy": "direct"}
        ).status_code
        == 403
    )
    assert ">Edit</a>" in school.ask("ada", "GET", page).text


def test_a_student_can_erase_themself_which_ends_the_key(school: School) -> None:
    shown = school.ask("ada", "GET", f"{school.home}/forget").text
    assert "you are logged out" in shown
    done = school.ask("ada", "POST", f"{school.home}/forget", data={"name": "ada"})
    assert done.status_code == 200
    assert "Keep this number" in done.text
    assert school.ask("ada", "GET", school.home).status_code == 401
    assert school.ask("tess", "GET", school.home).status_code == 404
