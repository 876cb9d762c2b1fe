"""Learner state on a running server: the tools of agents, their prompts, and what is due."""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx2
import pytest
from sqlalchemy import update

from ricordo.domain.job import Job
from ricordo.features.knowledge.facts.tables import user_facts
from ricordo.features.tutor.tasks import jobs as task_jobs
from ricordo.features.tutor.tasks import service as task_service
from ricordo.llm.scripted import call
from ricordo.storage.schema.core_tables import jobs as job_rows
from tests.seams.http import ok
from tests.seams.server import MODEL, ServerInThread, serving

OPERATOR = "the-operators-own-key"
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
    patch.setattr(task_service, "wake", lambda _tx: None)  # the tests say when to look
    with serving(tmp_path_factory.mktemp("learning"), api_key=OPERATOR) as running:
        running.write(lambda tx: tx.run(update(job_rows).values(status="cancelled")))
        yield running
    patch.undo()


@pytest.fixture
def course(server: ServerInThread) -> Iterator[Course]:
    server.forget()
    with server.http(headers={"authorization": f"Bearer {OPERATOR}"}) as http:
        yield Course(server, http)


def note(quote: str, **arguments: Any) -> Any:
    given = {"skill": "fractions", "observation": "Added them.", "result": "good"}
    return call("note_evidence", **given | arguments, message=quote)


def test_an_agent_notes_what_its_student_said_and_sees_it_then(course: Course) -> None:
    (noted,) = course.results("ada", "1/2 + 1/3 is 5/6qq", note("is 5/6qq", observation="Knowsqq."))
    assert noted == "Noted."
    first = course.prompt("ada")
    assert "<learner_state>" in first
    assert "Knowsqq." in first
    assert course.prompt("ada") == first
    of_bea = course.prompt("bea")
    assert "<learner_state>" in of_bea
    assert "qq" not in of_bea
    facts = ok(course.http.get("/v1/users/ada/facts"))
    assert [fact["evidence"][0]["quote"] for fact in facts] == ["is 5/6qq"]


def test_words_that_the_student_never_said_are_no_evidence(course: Course) -> None:
    course.say("cleo", "Hello.")
    for quote in ("Well done.", "I can do all fractions.", ""):
        (refused,) = course.results("cleo", "I like sums.", note(quote))
        assert "No message of the student holds these words" in refused
    # Another student's words are no evidence either.
    course.say("dan", "Danqq says 5/6.")
    (refused,) = course.results("cleo", "And now?", note("Danqq says 5/6."))
    assert "No message of the student" in refused
    assert ok(course.http.get("/v1/users/cleo/facts", params={"state": "all"})) == []


def test_wrong_names_are_answered_with_the_right_ones(course: Course) -> None:
    for arguments, words in (
        ({"skill": "fraction"}, "fractions"),
        ({"misconception": "cannot count"}, "adds the denominators"),
        ({"result": "great"}, "easy"),
    ):
        (refused,) = course.results("eva", "5/6", note("5/6", **arguments))
        assert words in refused
    assert ok(course.http.get("/v1/users/eva/facts", params={"state": "all"})) == []


def test_a_level_is_proposed_by_its_tool(course: Course) -> None:
    level = partial(call, "propose_mastery", skill="fractions", reason="Two in a row.")
    (none,) = course.results("fay", "Hi.", level(level="secure"))
    assert "note_evidence first" in none
    course.results("fay", "It is 5/6.", note("It is 5/6."))
    _, secure = course.results("fay", "It is 7/12.", note("It is 7/12."), level(level="secure"))
    assert "The level is secure now." in secure
    assert "sums" in secure  # it comes before, and is not secure
    assert "fractions: secure since" in course.prompt("fay")


def test_untrusted_content_makes_evidence_wait_for_the_student(
    course: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    course.say("gus", "My answer is 5/6.")
    lookup = call("query_student", question="What did I answer?")
    results = course.results("gus", "Look it up.", lookup, note("My answer is 5/6."))
    assert results[-1] == "Noted; it waits until the student agrees."


def test_a_task_for_reviews_runs_for_those_with_something_due(course: Course) -> None:
    for user in ("hal", "ida"):
        course.say(user, "It is 5/6.", note("It is 5/6."))
    ids = {
        user: ok(course.http.get(f"/v1/users/{user}/facts"))[0]["user_id"]
        for user in ("hal", "ida")
    }
    # What Hal said is two months ago, so that it is due.
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


def _shown(course: Course, user: str) -> str:
    return course.prompt(user).replace("→ ", "")


def test_the_export_of_a_person_has_the_state_and_erasure_leaves_nothing(course: Course) -> None:
    course.say("joy", "It is 5/6.", note("It is 5/6.", observation="Joyqq adds."))
    assert "Joyqq adds." in json.dumps(ok(course.http.get("/v1/users/joy/facts")))
