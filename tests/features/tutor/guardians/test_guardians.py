"""Guardians on a running server: links, and only what students and courses allow."""

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect
from sqlalchemy import insert, select, update

from ricordo.api.routing import GuardedRoute
from ricordo.domain.scope import LOCAL_USER, ROLE_SCOPES
from ricordo.features.tutor.courses.applying import applied_course
from ricordo.features.tutor.guardians.queries import guardianships
from ricordo.features.tutor.guardians.service import MOST_GUARDIANS
from ricordo.features.tutor.learning import service as learning
from ricordo.features.tutor.tasks import service as task_service
from ricordo.llm.scripted import call
from ricordo.storage.schema.core_tables import jobs as job_rows
from ricordo.storage.schema.core_tables import organizations
from tests.cli.conftest import environment, run_here
from tests.features.tutor.learning.test_served import BROWSER, COURSE, OPERATOR, Course, note
from tests.seams.http import erase, ok, refused
from tests.seams.people import OTHER_ORGANIZATION, People, bearer
from tests.seams.server import ServerInThread, serving
from tests.support.browser import visit

STUDENTS = "/v1/guardian/students"
# The student's message, the tutor's note of it, and the student's comment on a level.
SAID, NOTED, REASON, DISPUTED = "saidqq", "notedqq", "reasonqq", "disputedqq"
MISTAKE = "adds the denominators"
EVERY_WORD = (SAID, NOTED, REASON, DISPUTED, MISTAKE)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    patch = pytest.MonkeyPatch()
    patch.setattr(task_service, "wake", lambda _tx: None)
    with serving(tmp_path_factory.mktemp("guardians"), api_key=OPERATOR) as running:
        running.write(lambda tx: tx.run(update(job_rows).values(status="cancelled")))
        yield running
    patch.undo()


@pytest.fixture
def course(server: ServerInThread) -> Iterator[Course]:
    server.forget()
    with server.http(headers=bearer(OPERATOR)) as http:
        yield Course(server, http)


class Family:
    """A student with skills, the student's guardian, and keys of both."""

    def __init__(self, course: Course, people: People, name: str) -> None:
        self.course = course
        self.http = course.http
        self.student, self.guardian = name, f"{name}-mother"
        self.students_key = people.key(self.student)
        self.guardians_key = people.key(self.guardian, "guardian")
        level = call("propose_mastery", skill="fractions", level="practised", reason=REASON)
        noted = note(f"{SAID} 5/6", observation=NOTED, result="hard", misconception=MISTAKE)
        course.say(name, f"{SAID} 5/6", noted, level)
        ok(self.as_student("POST", "/learning/numbers/skills/fractions/dispute", words=DISPUTED))
        self.student_id = ok(self.as_student("GET", "/learning/numbers"))["user_id"]

    @property
    def pair(self) -> str:
        return f"/v1/users/{self.student}/guardians/{self.guardian}"

    def as_student(self, method: str, path: str, **body: Any) -> Any:
        return self.http.request(
            method,
            f"/v1/users/{self.student}{path}",
            json=body or None,
            headers=bearer(self.students_key),
        )

    def link(self) -> None:
        ok(self.http.put(self.pair))

    def allow(self, sees: str) -> None:
        ok(self.as_student("PATCH", f"/guardians/{self.guardian}", sees=sees))

    def watch(self, path: str = "") -> Any:
        return self.http.get(f"{STUDENTS}{path}", headers=bearer(self.guardians_key))

    def courses(self) -> Any:
        return ok(self.watch(f"/{self.student_id}"))["courses"]

    def skills(self) -> Any:
        return self.watch(f"/{self.student_id}/courses/numbers")


@pytest.fixture
def people(course: Course) -> People:
    return People(course.server, course.http)


def test_a_new_guardian_sees_only_the_students_name(course: Course, people: People) -> None:
    family = Family(course, people, "ada")
    assert ok(family.watch()) == []
    refused(family.skills(), 404)
    family.link()
    family.link()  # called twice
    (student,) = ok(family.watch())
    assert student == {"user_id": family.student_id, "name": "ada"}
    assert family.courses() == []
    refused(family.skills(), 404)
    (guardian,) = ok(family.as_student("GET", "/guardians"))
    assert (guardian["name"], guardian["sees"]) == (family.guardian, "nothing")


@pytest.mark.parametrize(
    ("sees", "course_allows", "is_off"),
    list(itertools.product(("nothing", "levels", "words"), (False, True), (False, True))),
)
def test_a_guardian_sees_what_the_student_or_course_allows(
    course: Course, people: People, sees: str, course_allows: bool, is_off: bool
) -> None:
    family = Family(course, people, f"bo-{sees}-{course_allows}-{is_off}".lower())
    family.link()
    family.allow(sees)
    source = f"guardians_see = {str(course_allows).lower()}\n{COURSE}"
    ok(course.http.put("/v1/courses/numbers", json={"source": source}))
    ok(family.as_student("PATCH", "/learning/numbers", is_off=is_off))
    allowed = "levels" if sees == "nothing" and course_allows else sees
    if is_off or allowed == "nothing":
        assert family.courses() == []
        refused(family.skills(), 404)
        return
    (shown,) = family.courses()
    assert (shown["name"], shown["sees"], shown["levels"]) == ("numbers", allowed, 1)
    answer = family.skills()
    skill = next(one for one in ok(answer)["skills"] if one["name"] == "fractions")
    assert skill["level"]["value"] == "practised"
    assert skill["dispute"] is not None
    assert skill["waiting"] == []
    assert [noted["result"] for noted in skill["observations"]] == [
        "hard" if allowed == "words" else None
    ]
    assert "message_id" not in answer.text
    found = [word for word in EVERY_WORD if word in answer.text]
    assert found == ([*EVERY_WORD] if allowed == "words" else [])
    # No link leads to the student's conversations.
    assert '"conv-' not in answer.text


def test_reading_one_course_parses_no_other_course(
    course: Course, people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = Family(course, people, "gil")
    family.link()
    family.allow("levels")
    ok(course.http.put("/v1/courses/shapes", json={"source": COURSE}))
    read: list[str] = []

    def applied(source: str | None, name: str) -> Any:
        read.append(name)
        return applied_course(source, name)

    monkeypatch.setattr(learning, "applied_course", applied)
    assert ok(family.skills())["course"] == "numbers"
    assert read == ["numbers"]
    refused(family.watch(f"/{family.student_id}/courses/shapes"), 404)
    refused(family.watch(f"/{family.student_id}/courses/unknown"), 404)
    ok(course.http.delete("/v1/courses/shapes"))


def test_other_users_see_nothing_and_guardians_decide_nothing(
    course: Course, people: People
) -> None:
    family, other = Family(course, people, "cleo"), Family(course, people, "dan")
    family.link()
    other.link()
    family.allow("words")
    path = f"/{family.student_id}/courses/numbers"
    refused(other.watch(path), 404)  # a guardian of another student
    refused(other.watch(f"/{family.student_id}"), 404)
    wrong_keys = (family.students_key, people.key("dora", "developer"), OPERATOR)
    for key in wrong_keys:
        refused(course.http.get(f"{STUDENTS}{path}", headers=bearer(key)), 403)
    # A guardian decides on nothing, and invites nobody.
    guardian = bearer(family.guardians_key)
    refused(course.http.patch(family.pair, json={"sees": "levels"}, headers=guardian), 403)
    refused(course.http.put(other.pair, headers=guardian), 403)
    student = bearer(family.students_key)
    refused(course.http.put(family.pair, headers=student), 403)
    refused(course.http.delete(family.pair, headers=student), 403)
    refused(course.http.patch(other.pair, json={"sees": "words"}, headers=student), 404)
    # A key with a guardian's scope but without a user, or of another school, reads nothing either.
    other_school = {"id": OTHER_ORGANIZATION, "name": "Other", "created_at": 1}
    course.server.write(lambda tx: tx.run(insert(organizations), other_school))
    for role, organization in (("service", None), ("guardian", OTHER_ORGANIZATION)):
        given = {"organization": organization} if organization else {}
        key = people.key(family.guardian, role, ("students:read",), **given)  # type: ignore[arg-type]
        answer = course.http.get(f"{STUDENTS}{path}", headers=bearer(key))
        assert answer.status_code in (403, 404)


def test_the_guardian_role_opens_only_its_own_routes(server: ServerInThread) -> None:
    assert ROLE_SCOPES["guardian"] == {"students:read"}
    routes = [route for route in server.app.routes if isinstance(route, GuardedRoute)]
    opened = {route.path for route in routes if "students:read" in (route.scopes or ())}
    assert opened == {
        STUDENTS,
        f"{STUDENTS}/{{student_id}}",
        f"{STUDENTS}/{{student_id}}/courses/{{course_name}}",
        "/ui/guardian",
        "/ui/guardian/{student_id}/{course_name}",
    }


def test_invalid_guardian_links_are_refused(course: Course, people: People) -> None:
    family = Family(course, people, "eva")
    users = f"/v1/users/{family.student}/guardians"
    assert "their own guardian" in refused(course.http.put(f"{users}/eva"), 400)
    refused(course.http.put(f"{users}/unknown"), 404)
    refused(course.http.put("/v1/users/unknown/guardians/eva-mother"), 404)
    refused(course.http.delete(family.pair), 404)
    refused(family.as_student("PATCH", f"/guardians/{family.guardian}", sees="words"), 404)
    family.link()
    refused(family.as_student("PATCH", f"/guardians/{family.guardian}", sees="all"), 422)
    for number in range(MOST_GUARDIANS - 1):
        people.key(f"aunt{number}", "guardian")
        ok(course.http.put(f"{users}/aunt{number}"))
    people.key("aunt", "guardian")
    assert "at most" in refused(course.http.put(f"{users}/aunt"), 400)
    ok(course.http.put(f"{users}/aunt0"))  # linked already
    ok(course.http.delete(family.pair))
    assert len(ok(course.http.get(users))) == MOST_GUARDIANS - 1


def test_only_the_student_allows_and_only_the_school_links(course: Course, people: People) -> None:
    family, other = Family(course, people, "fay"), Family(course, people, "gus")
    family.link()
    as_students_agent = bearer(
        people.key("tutor-bot", "service", ("users:write", "users:impersonate"))
    )
    for_student = {**as_students_agent, "x-ricordo-user": "fay"}
    refused(course.http.put(other.pair, headers=for_student), 403)
    refused(course.http.delete(family.pair, headers=for_student), 403)
    allowing = f"/v1/users/fay/guardians/{family.guardian}"
    admin = bearer(people.key("head", "admin", ("memory:approve", "users:write")))
    refused(course.http.patch(allowing, json={"sees": "words"}, headers=admin), 403)
    (guardian,) = ok(course.http.get("/v1/users/fay/guardians"))
    assert guardian["sees"] == "nothing"
    local = f"/v1/users/{LOCAL_USER}/guardians/{family.guardian}"
    assert "runs the server" in refused(course.http.put(local), 400)
    local = f"/v1/users/fay/guardians/{LOCAL_USER}"
    assert "runs the server" in refused(course.http.put(local), 400)


def test_a_disabled_student_is_shown_to_no_guardian(course: Course, people: People) -> None:
    family = Family(course, people, "jon")
    family.link()
    family.allow("words")
    ok(course.http.patch("/v1/users/jon", json={"disabled": True}))
    assert ok(family.watch()) == []
    refused(family.watch(f"/{family.student_id}"), 404)
    refused(family.skills(), 404)
    ok(course.http.patch("/v1/users/jon", json={"disabled": False}))
    assert ok(family.skills())["sees"] == "words"


def test_a_guardianship_ends_when_either_person_is_erased(course: Course, people: People) -> None:
    first, second = Family(course, people, "fay"), Family(course, people, "gus")
    for family in (first, second):
        family.link()
        family.allow("words")

    def rows() -> set[str]:
        return course.server.read(
            lambda tx: {row.user_id for row in tx.all(select(guardianships.c.user_id))}
        )

    assert {first.student_id, second.student_id} <= rows()
    for name in (first.student, second.guardian):
        erase(course.http, name)
    assert rows().isdisjoint({first.student_id, second.student_id})
    assert ok(first.watch()) == []


def test_guardians_see_must_be_a_boolean(course: Course) -> None:
    answer = course.http.put(
        "/v1/courses/numbers", json={"source": f'guardians_see = "levels"\n{COURSE}'}
    )
    assert "guardians_see" in refused(answer, 400)


def test_the_command_links_many_pairs_and_reports_each_failure(
    course: Course, people: People, tmp_path: Path
) -> None:
    for name in ("hal", "ina"):
        people.key(name)
        people.key(f"{name}-mother", "guardian")
    list_of_pairs = tmp_path / "pairs.csv"
    list_of_pairs.write_bytes(
        "\ufeffStudent;Guardian\r\nhal;hal-mother\r\n;\r\nina;nobody\r\nina;ina-mother\r\n".encode()
    )

    def guardian(*arguments: str) -> Any:
        server = ("--server", course.server.url)
        variables = environment(tmp_path / "data", RICORDO_API_KEY=OPERATOR)
        return run_here(("guardian", *arguments, *server), tmp_path, variables)

    added = guardian("add", "--csv", str(list_of_pairs))
    assert added.returncode == 1
    assert "ina, nobody:" in added.stderr
    assert added.stdout.count("is a guardian of") == 2
    assert guardian("list", "hal").stdout == "hal-mother  sees nothing\n"
    assert guardian("remove", "hal", "hal-mother").returncode == 0
    assert "no guardians" in guardian("list", "hal").stdout


def test_the_guardians_form_accepts_every_valid_identifier(course: Course, people: People) -> None:
    """Identifiers are e-mail addresses, and names with characters that have a meaning in URLs."""
    people.key("uma")
    identifiers = ["mother@school.org", "open-webui:7c1f", "M. Müller", "שלום", "50%", "%40"]
    chance = random.Random(7)  # noqa: S311 - the same names in each run
    identifiers += [
        "x" + "".join(chance.choices("@:?#&=+%;,'é😀 .[]", k=4)) + "x" for _ in range(9)
    ]
    page = "/ui/people/uma/guardians"
    for identifier in identifiers:
        people.key(identifier, "guardian")
        form = {"action": "add", "guardian": identifier}
        answer = course.http.post(page, data=form, headers=BROWSER)
        assert answer.status_code == 303, identifier
    linked = ok(course.http.get("/v1/users/uma/guardians"))
    assert [guardian["identifier"] for guardian in linked] == identifiers


@pytest.mark.parametrize("width", [1440, 390])
def test_the_pages_work_in_a_browser(
    browser: Browser, course: Course, people: People, width: int
) -> None:
    family = Family(course, people, f"jo{width}")
    page_of_skills = f"/ui/people/{family.student}/learning"
    with visit(
        browser, course.server.url, width=width, extra_http_headers=bearer(OPERATOR)
    ) as visitor:
        page = visitor.see(page_of_skills)
        page.get_by_label("Guardian", exact=True).fill(family.guardian)
        page.get_by_role("button", name="Add").click()
        expect(page.get_by_role("status")).to_contain_text("sees nothing until")
        assert (visitor.faults(), visitor.is_wider_than_the_screen()) == ([], False)
        visitor.require_quiet()
    with visit(
        browser, course.server.url, width=width, extra_http_headers=bearer(family.students_key)
    ) as visitor:
        page = visitor.see("/ui/learning")
        page.get_by_label(f"What {family.guardian} sees", exact=True).select_option("words")
        page.get_by_role("button", name=f"Save what {family.guardian} sees").click()
        expect(page.get_by_role("status")).to_contain_text("Saved")
        expect(page.get_by_label(f"What {family.guardian} sees", exact=True)).to_have_value("words")
        expect(page.get_by_role("button", name="Add")).to_have_count(0)
        assert (visitor.faults(), visitor.is_wider_than_the_screen()) == ([], False)
        visitor.require_quiet()
    with visit(browser, course.server.url, width=width) as visitor:
        page = visitor.see("/")
        page.get_by_label("Key", exact=True).fill(family.guardians_key)
        page.get_by_role("button", name="Log in", exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_have_text("My students")
        page.get_by_role("link", name="Numbers").click()
        card = page.get_by_role("region", name="fractions")
        expect(card).to_contain_text("practised")
        card.get_by_text("1 observation").click()
        expect(card).to_contain_text(f"{SAID} 5/6")
        assert (visitor.faults(), visitor.is_wider_than_the_screen()) == ([], False)
        visitor.require_quiet()
