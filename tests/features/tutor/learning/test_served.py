"""Learner state on a running server: the tools of agents, their prompts, and due reviews."""

import io
import json
import zipfile
from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Browser, expect
from sqlalchemy import select, update

from ricordo.domain.job import Job
from ricordo.features.knowledge.facts.tables import user_facts
from ricordo.features.tutor.learning import jobs as learning_jobs
from ricordo.features.tutor.learning.queries import learner_choices
from ricordo.features.tutor.tasks import jobs as task_jobs
from ricordo.features.tutor.tasks import queries as task_queries
from ricordo.features.tutor.tasks import service as task_service
from ricordo.llm.scripted import call
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import jobs as job_rows
from tests.seams.http import OPERATOR, bearer, erase, ok, refused
from tests.seams.people import People
from tests.seams.server import MODEL, ServerInThread, serving
from tests.support.browser import visit

BROWSER = {"sec-fetch-site": "same-origin"}
COURSE = f"""
title = "Numbers"
skill_policy = "direct"
[[agent]]
name = "coach"
model = "{MODEL}"
instructions = "Coach."
[[task]]
name = "review-today"
cron = "0 5 * * *"
only_if_due = true
instructions = "Choose an exercise for what is due."
[[skill]]
name = "sums"
[[skill]]
name = "fractions"
prerequisites = ["sums"]
examples = ["1/2 + 1/3"]
misconceptions = ["adds the denominators"]
"""


class Course:
    """A course on a running server, with students who talk with its agent."""

    def __init__(self, server: ServerInThread, http: httpx2.Client) -> None:
        self.server = server
        self.http = http
        made = ok(http.put("/v1/courses/numbers", json={"source": COURSE}))
        self.agent = made["agents"]["coach"]

    def say(self, user: str, text: str, *replies: Any) -> list[dict[str, Any]]:
        """Let a student say something, and the model reply; return the answer's messages."""
        self.server.says(*replies, "Well done.")
        answer = self.http.post(
            f"/v1/agents/{self.agent}/messages",
            json={"input": text},
            headers={"x-ricordo-user": user},
        )
        messages: list[dict[str, Any]] = ok(answer)["messages"]
        return messages

    def results(self, user: str, text: str, *replies: Any) -> list[str]:
        """Return the results of the calls that the model makes."""
        return [
            message["tool_return"]
            for message in self.say(user, text, *replies)
            if message["message_type"] == "tool_return_message"
        ]

    def prompt(self, user: str) -> str:
        """Return the system prompt of a student's turn."""
        self.say(user, "Hello.")
        return str(self.server.model.requests[-1].messages[0].text)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    patch = pytest.MonkeyPatch()
    patch.setattr(task_service, "wake", lambda _tx: None)  # The tests decide when the job runs.
    with serving(tmp_path_factory.mktemp("learning"), api_key=OPERATOR) as running:
        running.write(lambda tx: tx.run(update(job_rows).values(status="cancelled")))
        yield running
    patch.undo()


@pytest.fixture
def course(server: ServerInThread) -> Iterator[Course]:
    server.forget()
    with server.http(headers=bearer(OPERATOR)) as http:
        yield Course(server, http)


def note(quote: str, **arguments: Any) -> Any:
    given = {"skill": "fractions", "observation": "Added them.", "result": "good"}
    return call("note_evidence", **given | arguments, message=quote)


def test_noted_evidence_is_in_the_students_next_prompt(course: Course) -> None:
    (noted,) = course.results("ada", "1/2 + 1/3 is 5/6qq", note("is 5/6qq", observation="Knowsqq."))
    assert noted == "Noted."
    first = course.prompt("ada")
    assert "<learner_state>" in first
    assert "Knowsqq" in first
    assert course.prompt("ada") == first
    of_bea = course.prompt("bea")
    assert "<learner_state>" in of_bea
    assert "qq" not in of_bea
    facts = ok(course.http.get("/v1/users/ada/facts"))
    assert [fact["evidence"][0]["quote"] for fact in facts] == ["is 5/6qq"]


def test_quotes_that_the_student_never_said_are_refused(course: Course) -> None:
    course.say("cleo", "Hello.")
    for quote in ("Well done.", "I can do all fractions.", ""):
        (refused,) = course.results("cleo", "I like sums.", note(quote))
        assert "No message of the student contains this quote" in refused
    # Another student's words are no evidence either.
    course.say("dan", "Danqq says 5/6.")
    (refused,) = course.results("cleo", "And now?", note("Danqq says 5/6."))
    assert "No message of the student" in refused
    assert ok(course.http.get("/v1/users/cleo/facts", params={"state": "all"})) == []


def test_wrong_skill_names_and_results_are_answered_with_valid_ones(course: Course) -> None:
    for arguments, words in (
        ({"skill": "fraction"}, "fractions"),
        ({"misconception": "cannot count"}, "adds the denominators"),
        ({"result": "great"}, "easy"),
    ):
        (refused,) = course.results("eva", "5/6", note("5/6", **arguments))
        assert words in refused
    assert ok(course.http.get("/v1/users/eva/facts", params={"state": "all"})) == []


def test_propose_mastery_sets_a_level_that_the_evidence_supports(course: Course) -> None:
    level = partial(call, "propose_mastery", skill="fractions", reason="Two in a row.")
    (none,) = course.results("fay", "Hi.", level(level="secure"))
    assert "note_evidence first" in none
    course.results("fay", "It is 5/6.", note("It is 5/6."))
    _, secure = course.results("fay", "It is 7/12.", note("It is 7/12."), level(level="secure"))
    assert "The level is secure now." in secure
    # "sums" is a prerequisite, and not yet secure.
    assert "sums" in secure
    assert "fractions: secure since" in course.prompt("fay")


def test_evidence_after_untrusted_content_waits_for_the_student(course: Course) -> None:
    course.say("gus", "My answer is 5/6.")
    lookup = call("query_student", question="What did I answer?")
    results = course.results("gus", "Look it up.", lookup, note("My answer is 5/6."))
    assert results[-1] == "Noted; it waits until the student agrees."


def test_a_review_task_runs_only_for_students_with_due_reviews(
    course: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    for user in ("hal", "ida"):
        course.say(user, "It is 5/6.", note("It is 5/6."))
    ids = {
        user: ok(course.http.get(f"/v1/users/{user}/facts"))[0]["user_id"]
        for user in ("hal", "ida")
    }
    # Hal's message is two months old, so the skill is due.
    days = 60 * 86_400 * 1_000_000
    of_hal = user_facts.c.user_id == ids["hal"]
    course.server.write(
        lambda tx: tx.run(
            update(user_facts).where(of_hal).values(said_at=user_facts.c.said_at - days)
        )
    )
    assert "Due for review today:\n- fractions: for example 1/2 + 1/3" in _shown(course, "hal")
    assert "Due for review" not in _shown(course, "ida")
    job = Job("tasks.look", "")
    course.server.run(task_jobs.look(course.server.runtime, job, lambda _done, _all: None))
    started = ok(course.http.post("/background/tasks/numbers.review-today/run", json={}))
    assert [run["user_id"] for run in started["runs"]] == [ids["hal"]]
    # The job that runs each minute examines the students in a read; its write only adds the runs.
    examined_in: list[object] = []
    writes: list[object] = []
    find, plan = task_service.students_with_due, task_service.look

    def examine(tx: Transaction, *given: Any) -> set[str]:
        examined_in.append(tx)
        return find(tx, *given)

    def look(tx: Transaction, **given: Any) -> int:
        writes.append(tx)
        return plan(tx, **given)

    monkeypatch.setattr(task_service, "students_with_due", examine)
    monkeypatch.setattr(task_service, "look", look)
    course.server.write(lambda tx: tx.run(update(task_queries.tasks).values(next_at=1)))
    course.server.run(task_jobs.look(course.server.runtime, job, lambda _done, _all: None))
    assert len(examined_in) == 1
    assert len(writes) == 1
    assert not any(tx is writes[0] for tx in examined_in)
    listed = ok(course.http.get("/background/tasks/numbers.review-today/runs"))
    assert [run["user_id"] for run in listed if run["trigger"] == "cron"] == [ids["hal"]]


def _shown(course: Course, user: str) -> str:
    return course.prompt(user).replace("→ ", "")


@pytest.fixture
def people(course: Course) -> People:
    return People(course.server, course.http)


class Learning:
    """The routes of one student's learner state."""

    def __init__(self, course: Course, user: str) -> None:
        self.http = course.http
        self.path = f"/v1/users/{user}/learning/numbers"

    def read(self) -> Any:
        return ok(self.http.get(self.path))

    def skill(self, name: str = "fractions") -> Any:
        return next(skill for skill in self.read()["skills"] if skill["name"] == name)

    def ask(self, method: str, path: str = "", **body: Any) -> Any:
        return ok(self.http.request(method, self.path + path, json=body or None))


def test_a_student_can_read_dispute_and_delete_levels(course: Course) -> None:
    level = call("propose_mastery", skill="fractions", level="practised", reason="One.")
    course.say("joy", "It is 5/6.", note("It is 5/6.", observation="Joyqq adds."), level)
    learning = Learning(course, "joy")
    skill = learning.skill()
    assert skill["level"]["value"] == "practised"
    assert skill["level"]["evidence"][0]["quote"] == "It is 5/6."
    learning.ask("POST", "/skills/fractions/dispute", words="I can do thisqq.")
    assert learning.skill()["dispute"]["value"] == "I can do thisqq."
    assert learning.skill()["level"]["value"] == "practised"
    assert 'the student says: "I can do thisqq."' in course.prompt("joy")
    (listed,) = ok(course.http.get("/v1/users/joy/learning"))
    assert (listed["name"], listed["levels"], listed["skills"]) == ("numbers", 1, 2)
    removed = learning.ask("DELETE", f"/facts/{skill['observations'][0]['id']}")
    assert removed == {"removed": 2}
    assert (learning.skill()["level"], learning.skill()["observations"]) == (None, [])
    assert refused(course.http.delete(f"{learning.path}/facts/fact-0"), 404)


def test_learning_settings_apply_to_one_course_and_keep_earlier_evidence(course: Course) -> None:
    course.say("kim", "It is 5/6.", note("It is 5/6.", observation="Kimqq adds."))
    learning = Learning(course, "kim")
    learning.ask("PATCH", is_off=True)
    chosen = learning.ask("PATCH", retention_days=30)
    assert (chosen["is_off"], chosen["retention_days"], chosen["kept_days"]) == (True, 30, 30)
    (refusal,) = course.results("kim", "It is 7/12.", note("It is 7/12."))
    assert "Notes about this student are off" in refusal
    assert "Kimqq" not in course.prompt("kim")
    assert learning.read()["skills"] == []
    learning.ask("PATCH", is_off=False)
    assert [noted["sentence"] for noted in learning.skill()["observations"]] == ["Kimqq adds."]
    assert refused(course.http.patch(learning.path, json={"retention_days": 0}), 422)


def test_the_retention_job_deletes_old_evidence(course: Course) -> None:
    for user in ("lea", "max"):
        course.say(user, "It is 5/6.", note("It is 5/6."))
    old = Learning(course, "lea")
    old.ask("PATCH", retention_days=10)
    days = 20 * 86_400 * 1_000_000
    course.server.write(
        lambda tx: tx.run(update(user_facts).values(said_at=user_facts.c.said_at - days))
    )
    job = Job("learning.retain", "")
    course.server.run(learning_jobs.retain(course.server.runtime, job, lambda _done, _all: None))
    assert old.skill()["observations"] == []
    assert len(Learning(course, "max").skill()["observations"]) == 1


def test_waiting_evidence_can_be_approved_together(course: Course) -> None:
    course.say("nia", "Hello.")
    ok(course.http.put("/v1/users/nia/facts/policy", json={"policy": "propose"}))
    (told,) = course.results("nia", "It is 5/6.", note("It is 5/6."))
    assert told == "Noted; it waits until the student agrees."
    learning = Learning(course, "nia")
    assert len(learning.skill()["waiting"]) == 1
    assert learning.ask("POST", "/approve") == {"approved": 1}
    assert len(learning.skill()["observations"]) == 1


def test_a_students_skills_are_exported_erased_and_restored(course: Course) -> None:
    course.say("ona", "It is 5/6qq.", note("It is 5/6qq.", observation="Onaqq adds."))
    learning = Learning(course, "ona")
    learning.ask("PATCH", shares=True)
    learning.ask("POST", "/skills/sums/dispute", words="Sumsqq.")
    markdown = course.http.get(f"{learning.path}/record", params={"format": "markdown"})
    assert markdown.headers["content-type"].startswith("text/markdown")
    for words in ("## fractions", "Onaqq adds.", '"It is 5/6qq."', "Sumsqq.", "Next review: 20"):
        assert words in markdown.text, words
    exported = course.http.get(f"{learning.path}/record").json()
    assert exported["skills"] == learning.read()["skills"]
    content = course.http.get("/users/ona/export").content
    whole = zipfile.ZipFile(io.BytesIO(content))
    assert b"Onaqq adds." in whole.read("facts.jsonl")
    (record,) = map(json.loads, whole.read("learning.jsonl").splitlines())
    choice = {"course": "numbers", "is_off": False, "shares": True, "retention_days": None}
    assert record == choice

    receipt = erase(course.http, "ona")
    assert receipt["removed"]["learner_choices"] == 1
    assert receipt["removed"]["user_facts"] == 2
    assert [
        row for row in stored_rows(course) if "Onaqq" in row or exported["user_id"] in row
    ] == []

    # The archive restores all of it: evidence, disputes, and choices.
    archive = {"file": ("memory.zip", content)}
    restored = ok(course.http.post("/v1/imports/memory", files=archive))
    counts = restored["records"]
    assert (counts["facts.jsonl"], counts["learning.jsonl"]) == (2, 1)
    again = learning.read()
    assert (again["shares"], again["skills"]) == (True, exported["skills"])


def test_teachers_see_counts_and_only_shared_skills(course: Course) -> None:
    for user in ("pia", "quin"):
        course.say(user, f"{user}qq", note(f"{user}qq", observation=f"{user}qq adds."))
    digest = course.http.get("/v1/courses/numbers/skills")
    assert ok(digest)["course"] == "numbers"
    assert "qq" not in digest.text
    days = 20 * 86_400 * 1_000_000
    course.server.write(
        lambda tx: tx.run(update(user_facts).values(said_at=user_facts.c.said_at - days))
    )
    assert ok(course.http.get("/v1/courses/numbers/skills"))["weeks"]
    assert ok(course.http.get("/v1/courses/numbers/skills", params={"weeks": 1}))["weeks"] == []
    user_id = Learning(course, "pia").read()["user_id"]
    path = f"/v1/courses/numbers/students/{user_id}/skills"
    assert "shares no skills" in refused(course.http.get(path), 404)
    Learning(course, "pia").ask("PATCH", shares=True)
    shared = course.http.get(path)
    (skill,) = [one for one in ok(shared)["skills"] if one["observations"]]
    assert (skill["name"], skill["observations"][0]["evidence"]) == ("fractions", [])
    assert '"quote"' not in shared.text
    assert "piaqq" not in shared.text
    page = course.http.get(f"/ui/courses/numbers/students/{user_id}", headers=BROWSER)
    assert page.status_code == 200
    assert "no level yet" in page.text
    assert "piaqq" not in page.text


def test_a_grade_is_proposed_only_to_teachers_and_not_stored(course: Course) -> None:
    course.say("sue", "It is 5/6.", note("It is 5/6.", observation="Sueqq."))
    agent = ok(course.http.post("/v1/agents/", json={"model": MODEL, "tools": ["propose_grade"]}))[
        "id"
    ]
    grade = call("propose_grade", course="numbers", student="sue", grade="B", reason="One skill.")

    def results(**headers: str) -> list[str]:
        course.server.says(grade, "Decide.")
        path = f"/v1/agents/{agent}/messages"
        answer = course.http.post(path, json={"input": "Grades?"}, headers=headers)
        messages = ok(answer)["messages"]
        return [one["tool_return"] for one in messages if "tool_return" in one]

    assert "shares no skills" in results()[0]
    Learning(course, "sue").ask("PATCH", shares=True)
    before = stored_rows(course)
    (proposed,) = results()
    assert "Proposed for sue in Numbers: B" in proposed
    assert "fractions: no level yet, observations: 1" in proposed
    assert "Sueqq" not in proposed
    assert stored_rows(course) == before
    assert "Only teachers" in results(**{"x-ricordo-user": "tom"})[0]
    # A key that may only chat sees no students through the tool either.
    people = People(course.server, course.http)
    chats_only = people.key("chats-only", "developer", ("agents:read", "messages:write"))
    assert "Only teachers" in results(**bearer(chats_only))[0]


def stored_rows(course: Course) -> list[str]:
    """All facts and choices that are stored."""
    tables = (user_facts, learner_choices)
    return course.server.read(
        lambda tx: [str(row) for table in tables for row in tx.all(select(table))]
    )


@pytest.mark.parametrize("width", [1440, 390])
def test_the_pages_work_in_a_browser(
    browser: Browser, course: Course, people: People, width: int
) -> None:
    name = f"rea{width}"
    key = people.key(name)
    level = call("propose_mastery", skill="fractions", level="practised", reason="One.")
    wrong = {"result": "failed", "misconception": "adds the denominators"}
    course.say(name, "It is 2/5.", note("It is 2/5.", observation="Adds both.", **wrong))
    course.say(name, "It is 5/6.", note("It is 5/6."), level)
    given = {"extra_http_headers": bearer(key)}
    with visit(browser, course.server.url, width=width, **given) as visitor:
        page = visitor.see("/ui/learning")
        expect(page.get_by_role("heading", level=1)).to_have_text("What I can do")
        page.get_by_role("link", name="Numbers").click()
        card = page.get_by_role("region", name="fractions")
        expect(card).to_contain_text("practised")
        card.get_by_text("2 observations").click()
        expect(card).to_contain_text("It is 2/5.")
        expect(card).to_contain_text("Misconception: adds the denominators")
        assert (visitor.faults(), visitor.is_wider_than_the_screen()) == ([], False)
        card.get_by_text("I can do this").click()
        card.get_by_role("button", name="Tell the tutor").click()
        expect(page.get_by_role("status")).to_contain_text("asked to check")
        expect(card).to_contain_text("In my view: I can do this.")
        page.get_by_label("Delete notes after days").fill("90")
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_text("Now after 90 days")).to_be_visible()
        page.get_by_label("Tutors of this course note what I can do").uncheck()
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_text("Nothing is noted in this course.")).to_be_visible()
        expect(card).to_have_count(0)
        assert (visitor.faults(), visitor.is_wider_than_the_screen()) == ([], False)
        visitor.require_quiet()
    given = {"extra_http_headers": bearer(OPERATOR)}
    with visit(browser, course.server.url, width=width, **given) as visitor:
        page = visitor.see("/ui/courses/numbers/skills")
        expect(page.get_by_role("heading", level=1)).to_have_text("Skills of numbers")
        assert (visitor.faults(), visitor.is_wider_than_the_screen()) == ([], False)
        assert name not in page.content()
        visitor.require_quiet()
