"""Teachers see their students, pending work and the blocks whose policy allows it, nothing else."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Browser, expect
from sqlalchemy import insert, update

from ricordo.domain.clock import SECOND
from ricordo.features.tutor.tasks.queries import task_runs, tasks
from ricordo.llm.scripted import call
from ricordo.pages.inside import Api
from ricordo.storage.schema.core_tables import organizations
from tests.seams.http import OPERATOR, refused
from tests.seams.people import OTHER_ORGANIZATION, People, all_text, bearer
from tests.seams.server import MODEL, serving
from tests.seams.waiting import wait_for
from tests.support.browser import visit

SEEN, HIDDEN, SAID, WAITS, OWN = "journeyqq", "studentqq", "messageqq", "proposalqq", "diaryqq"
CANARIES = (HIDDEN, SAID, WAITS, OWN)
COURSE = f"""
title = "Essays"
[[agent]]
name = "coach"
model = "{MODEL}"
instructions = "Coach them."
workspace = "isolated"
[[block]]
label = "student"
policy = "direct"
[block.fields.name]
required = true
[[block]]
label = "journey"
policy = "direct"
teachers_see = true
value = "Begin."
[[task]]
name = "weekly"
cron = "0 5 * * 1"
instructions = "Look at it."
"""
COURSE_PAGE = "/ui/courses/essay"
HOME = "/v1/courses/essay/students"


class School(People):
    """A course with two students and keys; Ada has a text in each kind of data."""

    def fill(self) -> "School":
        other = {"id": OTHER_ORGANIZATION, "name": "Other", "created_at": 1}
        self.server.write(lambda tx: tx.run(insert(organizations), other))
        self.teacher = self.key("tess", "developer")
        self.ada, self.bea = self.key("ada"), self.key("bea")
        made = self.ask(OPERATOR, "PUT", "/v1/courses/essay", json={"source": COURSE})
        self.agent = made["agents"]["coach"]
        self.server.says(
            call("memory_insert", label="student", new_string=HIDDEN, insert_line=1),
            call("memory_replace", label="journey", old_string="Begin.", new_string=SEEN),
            f"Noted {SAID}.",
        )
        self.say(self.ada, f"I say {SAID}.")
        self.say(self.bea, "Hello")
        self.ask(self.ada, "PUT", "/users/ada/blocks/diary", json={"body": OWN})
        for label in ("student", "journey"):
            self.ask(self.ada, "PATCH", f"/users/ada/blocks/{label}", json={"policy": "propose"})
        self.server.says(
            call("memory_insert", label="journey", new_string=WAITS, insert_line=1), "Noted."
        )
        self.say(self.ada, "And more.")
        return self

    def say(self, key: str, text: str) -> None:
        self.ask(key, "POST", f"/v1/agents/{self.agent}/messages", json={"input": text})

    def course(self, source: str) -> None:
        self.ask(OPERATOR, "PUT", "/v1/courses/essay", json={"source": source})

    def of_ada(self) -> str:
        return f"{HOME}/{self.id_of('ada')}"


@contextmanager
def open_school(folder: Path) -> Iterator[School]:
    with serving(folder, api_key=OPERATOR) as server, server.http() as http:
        yield School(server, http).fill()


@pytest.fixture(scope="module")
def school(tmp_path_factory: pytest.TempPathFactory) -> Iterator[School]:
    """Open the school for tests that change nothing in it."""
    with open_school(tmp_path_factory.mktemp("school")) as opened:
        yield opened


@pytest.fixture
def own_school(tmp_path: Path) -> Iterator[School]:
    with open_school(tmp_path) as opened:
        yield opened


def require_quiet(answer: httpx2.Response, *others: str) -> None:
    told = all_text(answer)
    assert [word for word in (*CANARIES, *others) if word in told] == [], told


def test_a_teacher_sees_student_counts_and_permitted_blocks(
    school: School,
) -> None:
    listed = school.ask(school.teacher, "GET", HOME)
    assert [(one["name"], one["open_proposals"], one["failed_tasks"]) for one in listed] == [
        ("bea", 0, 0),
        ("ada", 1, 0),
    ]
    assert all(one["last_active_at"] for one in listed)
    (older,) = school.ask(
        school.teacher, "GET", HOME, params={"limit": 1, "after": listed[0]["user_id"]}
    )
    assert older["name"] == "ada"
    one = school.ask(school.teacher, "GET", school.of_ada())
    assert [(block["label"], block["value"]) for block in one["blocks"]] == [("journey", SEEN)]
    assert one["hidden"] == ["student"]
    assert school.ask(school.teacher, "GET", f"{HOME}/bea")["blocks"] == []


def test_a_teacher_sees_no_other_data_of_a_student(school: School) -> None:
    ada = school.id_of("ada")
    for path in (
        HOME,
        school.of_ada(),
        f"{COURSE_PAGE}/students",
        f"{COURSE_PAGE}/students/{ada}",
        COURSE_PAGE,
    ):
        answer = school.send(school.teacher, "GET", path)
        assert answer.status_code == 200, answer.text
        require_quiet(answer)
    for path in (
        f"/ui/people/{ada}", "/users/ada/blocks", "/users/ada/blocks/journey", "/users/ada/diffs", "/v1/conversations/",
        f"/v1/agents/{school.agent}/messages", f"/ui/agents/{school.agent}/chat", "/v1/blocks/", "/", "/ui/runs",
    ):  # fmt: skip
        require_quiet(school.send(school.teacher, "GET", path), SEEN)


def test_only_teachers_can_list_students(school: School) -> None:
    scopes = ("agents:read", "agents:write", "memory:read", "messages:read")
    with_all = school.key("cleo", scopes=scopes)
    service = school.key("pipe", "service", (*scopes, "users:impersonate"))
    boss = school.key("boss", "admin", organization=OTHER_ORGANIZATION)
    less = school.key("dora", "developer", ("agents:read",))
    callers: list[tuple[str, dict[str, str]]] = [
        (key, {}) for key in (school.ada, with_all, service, less)
    ]
    for key, header in (*callers, (service, {"x-ricordo-user": "bea"})):
        for path in (HOME, school.of_ada(), f"{COURSE_PAGE}/students"):
            answer = school.send(key, "GET", path, headers=header)
            assert answer.status_code in (403, 404), (path, answer.text)
            require_quiet(answer, SEEN)
    for key, statuses in ((boss, (404,)), ("wrong", (401,)), (OPERATOR, (200,))):
        assert school.send(key, "GET", school.of_ada()).status_code in statuses
    # When the operator acts for Bea, the operator sees what Bea sees.
    as_bea = school.send(OPERATOR, "GET", school.of_ada(), headers={"x-ricordo-user": "bea"})
    assert as_bea.status_code == 403


def test_a_user_without_messages_to_the_course_is_no_student(school: School) -> None:
    school.ask(school.key("dan"), "PUT", "/users/dan/blocks/journey", json={"body": OWN})
    words = refused(school.send(school.teacher, "GET", f"{HOME}/dan"), 404)
    assert "There is no user" in words
    assert words == refused(school.send(school.teacher, "GET", f"{HOME}/zoe"), 404).replace(
        "zoe", "dan"
    )


def test_a_block_created_hidden_stays_hidden_from_teachers(own_school: School) -> None:
    every = COURSE.replace('label = "student"', 'label = "student"\nteachers_see = true')
    own_school.course(every)
    assert [
        one["label"]
        for one in own_school.ask(own_school.teacher, "GET", own_school.of_ada())["blocks"]
    ] == ["journey"]
    own_school.course(every.replace("teachers_see = true", "teachers_see = false"))
    one = own_school.ask(own_school.teacher, "GET", own_school.of_ada())
    assert (one["blocks"], one["hidden"]) == ([], ["journey", "student"])


def test_a_block_is_visible_only_to_teachers_of_its_first_course(own_school: School) -> None:
    made = own_school.ask(OPERATOR, "PUT", "/v1/courses/art", json={"source": COURSE})
    own_school.ask(
        own_school.ada,
        "POST",
        f"/v1/agents/{made['agents']['coach']}/messages",
        json={"input": "Hello"},
    )
    assert own_school.ask(own_school.teacher, "GET", "/v1/courses/art/students/ada")["blocks"] == []


def test_a_student_is_told_that_teachers_see_a_block_and_can_hide_it(own_school: School) -> None:
    page = f"/ui/people/{own_school.id_of('ada')}/blocks/journey"
    assert (
        "Teachers of the course essay see this block."
        in own_school.send(own_school.ada, "GET", page).text
    )
    sent = {"data": {"hide": "teachers"}, "headers": {"origin": own_school.server.url}}
    assert (
        own_school.send(
            own_school.ada, "POST", page.replace("/blocks/", "/settings/"), **sent
        ).status_code
        == 303
    )
    assert "see this block" not in own_school.send(own_school.ada, "GET", page).text
    assert own_school.ask(own_school.teacher, "GET", own_school.of_ada())["blocks"] == []
    assert own_school.ask(own_school.ada, "GET", "/users/ada/blocks/journey")["body"] == SEEN


def test_hiding_the_block_keeps_what_others_change_meanwhile(
    own_school: School, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = f"/ui/people/{own_school.id_of('ada')}/settings/journey"
    patched: list[str] = []
    change = Api.ask

    async def change_after_others(api: Api, method: str, path: str, *args: Any, **more: Any) -> Any:
        if method == "PATCH" and path.startswith("/v1/blocks/"):
            patched.append(path)
            monkeypatch.setattr(Api, "ask", change)
            metadata = (await api.get(path))["metadata"] | {"mark": "kept"}
            await api.ask("PATCH", path, {"metadata": metadata})
        return await change(api, method, path, *args, **more)

    monkeypatch.setattr(Api, "ask", change_after_others)
    sent = {"data": {"hide": "teachers"}, "headers": {"origin": own_school.server.url}}
    refusal = own_school.send(own_school.ada, "POST", page, **sent)
    assert refusal.status_code == 412
    assert "changed since you read it" in refusal.text
    assert own_school.send(own_school.ada, "POST", page, **sent).status_code == 303
    stored = own_school.ask(own_school.ada, "GET", patched[0])
    assert stored["metadata"]["mark"] == "kept"
    assert "teachers_see" not in stored["metadata"]


def test_failed_tasks_are_counted_and_erased_students_disappear(own_school: School) -> None:
    run = own_school.ask(
        OPERATOR, "POST", "/background/tasks/essay.weekly/run", json={"user_id": "ada"}
    )["runs"][0]
    wait_for(lambda: own_school.ask(OPERATOR, "GET", f"/background/runs/{run['id']}")["ended_at"])
    bad = (
        update(task_runs).where(task_runs.c.id == run["id"]).values(status="failed", problem=WAITS)
    )
    own_school.server.write(lambda tx: tx.run(bad))
    assert own_school.ask(own_school.teacher, "GET", own_school.of_ada())["failed_tasks"] == 1
    # Neither failures in other courses nor old ones are counted.
    of_other_course = update(tasks).where(tasks.c.id == run["task_id"]).values(course="other")
    own_school.server.write(lambda tx: tx.run(of_other_course))
    assert own_school.ask(own_school.teacher, "GET", own_school.of_ada())["failed_tasks"] == 0
    own_school.server.write(lambda tx: tx.run(update(tasks).values(course="essay")))
    assert own_school.ask(own_school.teacher, "GET", own_school.of_ada())["failed_tasks"] == 1
    own_school.server.write(
        lambda tx: tx.run(
            update(task_runs).values(created_at=tx.clock.now() - 31 * 86_400 * SECOND)
        )
    )
    assert own_school.ask(own_school.teacher, "GET", own_school.of_ada())["failed_tasks"] == 0
    ada = own_school.of_ada()
    assert own_school.send(OPERATOR, "DELETE", "/users/ada").status_code == 202
    refused(own_school.send(own_school.teacher, "GET", ada), 404)
    assert [one["name"] for one in own_school.ask(own_school.teacher, "GET", HOME)] == ["bea"]


def test_the_courses_page_shows_faults_with_line_and_reapplies_files(
    own_school: School, tmp_path: Path
) -> None:
    path = tmp_path / "courses" / "essay" / "agents.toml"
    path.write_text(COURSE.replace("workspace", "<b>workspaces"), "utf-8")
    answer = own_school.send(own_school.teacher, "POST", "/ui/courses/apply", follow_redirects=True)
    assert "1 of 1 courses cannot be used" in answer.text
    (tmp_path / "courses" / "bad").mkdir()
    (tmp_path / "courses" / "bad" / "agents.toml").write_text("[[agent]]\nname = 3\n", "utf-8")
    own_school.send(own_school.teacher, "POST", "/ui/courses/apply")
    page = own_school.send(own_school.teacher, "GET", "/ui/courses").text
    assert "<code>essay/agents.toml: Line 7</code>" in page
    assert "<code>bad/agents.toml: Line 2</code>" in page
    assert "<b>workspaces" not in page
    shown = own_school.send(own_school.teacher, "GET", COURSE_PAGE).text
    for words in (
        "What was applied before stays in use",
        "Coach them.",
        "CLAUDE.md",
        "required",
        "memory_insert",
        "0 5 * * 1",
    ):
        assert words in shown, words
    assert (
        "nothing of it is in use"
        in own_school.send(own_school.teacher, "GET", "/ui/courses/bad").text
    )
    assert own_school.send(own_school.teacher, "GET", "/ui/courses/none").status_code == 404


@pytest.mark.soak
@pytest.mark.parametrize("scripts", [True, False], ids=["with scripts", "without"])
def test_the_pages_work_in_a_browser(browser: Browser, school: School, scripts: bool) -> None:
    given = {"extra_http_headers": bearer(school.teacher), "java_script_enabled": scripts}
    with visit(browser, school.server.url, width=390, dark=scripts, **given) as visitor:
        page = visitor.see("/ui/courses")
        page.get_by_role("button", name="Read the files again").click()
        expect(page.get_by_role("status")).to_contain_text("All courses are in use.")
        if scripts:
            # The response to the form may not have loaded its scripts yet.
            visitor.see("/ui/courses")
            page.keyboard.press("j")
            page.keyboard.press("Enter")
        else:
            page.locator("tbody a").first.click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Essays")
        page.get_by_role("link", name="Students").click()
        page.get_by_role("link", name="ada").click()
        expect(page.get_by_role("article")).to_have_text(SEEN)
        if scripts:
            for path in (
                "/ui/courses",
                COURSE_PAGE,
                f"{COURSE_PAGE}/students",
                f"{COURSE_PAGE}/students/ada",
            ):
                visitor.see(path)
                within = None if path == COURSE_PAGE else "main"
                assert (visitor.faults(within), visitor.is_wider_than_the_screen()) == (
                    [],
                    False,
                ), path
        visitor.require_quiet()
