"""A student's day on a server with keys.

Student, teacher and tutoring service each have a key, and use REST and stock git.
docs/tutor/a-students-day.md describes the same day, and test_docs.py runs it.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import letta_client
import pytest

from tests.seams.people import OPERATOR, People
from tests.seams.server import MODEL, Gate, StrictLetta, serving
from tests.seams.stage import call
from tests.support.git import git, run_git

MORNING = "Name: Ada\nStudies maths.\n"


class School:
    """The server, the keys of its people, and a client for each of them."""

    def __init__(self, people: People) -> None:
        self.people, self.server = people, people.server
        made = {
            "admin": {"user": "principal", "role": "admin"},
            "ada": {"user": "ada"},
            "bea": {"user": "bea"},
            "teacher": {"user": "hopf", "role": "developer"},
            "service": {"name": "tutoring", "role": "service"},
        }
        self.keys = {name: self._key(body) for name, body in made.items()}
        self.teacher, self.ada = self.client("teacher"), self.client("ada")
        self.tutoring = self.client("service", default_headers={"x-ricordo-user": "ada"})
        self.do(
            "ada", "PUT", "/users/ada/blocks/student", json={"body": MORNING, "title": "About me"}
        )
        tools = ["edit_memory_block", "archival_memory_insert"]
        self.tutor = self.teacher.agents.create(
            name="Tutor", model=MODEL, tools=tools, include_base_tools=False
        ).id

    def _key(self, body: dict[str, str]) -> str:
        return str(self.people.ask(OPERATOR, "POST", "/v1/keys/", json=body)["key"])

    def client(self, name: str, **options: Any) -> StrictLetta:
        return self.server.client(api_key=self.keys[name], **options)

    def do(self, name: str, method: str, path: str, **given: Any) -> Any:
        return self.people.ask(self.keys[name], method, path, **given)

    def status(self, name: str, method: str, path: str, **given: Any) -> int:
        return self.people.send(self.keys[name], method, path, **given).status_code

    def lesson(self) -> dict[str, Any]:
        """Let the service send Ada's message to the tutor; return the tutor's proposal."""
        edit = call(
            "edit_memory_block",
            label="student",
            old_string="maths.",
            new_string="maths.\nLives in Turin.",
            reasoning="So.",
        )
        self.server.says(edit, "I noted it.")
        self.tutoring.agents.messages.create(self.tutor, input="I live in Turin.")
        (proposal,) = self.do("ada", "GET", "/users/ada/diffs")
        return dict(proposal)

    def address(self, name: str) -> str:
        return (
            self.server.url.replace("://", f"://{name}:{self.keys[name]}@")
            + "/users/ada/memory.git"
        )


@pytest.fixture
def school(tmp_path: Path) -> Iterator[School]:
    with (
        serving(tmp_path / "data", api_key=OPERATOR, traces="all") as server,
        server.http() as http,
    ):
        yield School(People(server, http))


def test_a_service_acts_for_a_student_but_only_she_decides(school: School) -> None:
    proposal = school.lesson()
    decide = f"/users/ada/blocks/student/diffs/{proposal['id']}"
    for other, headers in (
        ("service", {"x-ricordo-user": "ada"}),
        ("service", {}),
        ("teacher", {}),
        ("bea", {}),
    ):
        for decision in ("approve", "reject"):
            assert school.status(other, "POST", f"{decide}/{decision}", headers=headers) in (
                403,
                404,
            ), (
                other,
                decision,
            )
    assert school.do("ada", "GET", "/users/ada/blocks/student")["body"] == MORNING
    school.do("ada", "POST", f"{decide}/approve")
    assert "Lives in Turin." in school.do("ada", "GET", "/users/ada/blocks/student")["body"]
    newest = school.do("ada", "GET", "/users/ada/blocks/student/history")[0]
    assert newest["run_id"] == proposal["run_id"]
    # Messages sent through the service belong to Ada. She reads them with her key and the same
    # client.
    said = [
        message.content
        for message in school.ada.agents.messages.list(school.tutor).items
        if hasattr(message, "content")
    ]
    assert "I live in Turin." in said


def test_a_teacher_sees_the_tutor_but_none_of_a_students_data(school: School) -> None:
    proposal = school.lesson()
    assert school.teacher.agents.retrieve(school.tutor).name == "Tutor"
    school.teacher.agents.update(school.tutor, description="For the first year.")
    assert "Turin" not in str(school.teacher.agents.messages.list(school.tutor).items)
    assert school.teacher.runs.list().items == []
    run, step = proposal["run_id"], proposal["step_id"]
    for path in (
        "/users/ada/blocks",
        f"/v1/runs/{run}",
        f"/v1/runs/{run}/trace",
        f"/v1/steps/{step}/messages",
    ):
        assert school.status("teacher", "GET", path) in (403, 404), path
    # With this scope a teacher may read; the key still cannot decide anything.
    reads = ["agents:read", "messages:read", "memory:read"]
    body = {"user": "hopf", "role": "developer", "scopes": reads}
    school.keys["reader"] = school.people.ask(OPERATOR, "POST", "/v1/keys/", json=body)["key"]
    assert school.do("reader", "GET", "/users/ada/blocks/student")["body"] == MORNING
    assert (
        school.status("reader", "PUT", "/users/ada/blocks/student", json={"body": "Mine."}) == 403
    )
    with pytest.raises(letta_client.PermissionDeniedError):
        school.client("reader").agents.update(school.tutor, description="Mine.")


def test_a_student_clones_and_pushes_with_her_key_and_nobody_else_as_her(
    school: School, tmp_path: Path
) -> None:
    school.lesson()
    git(tmp_path, "clone", "-q", school.address("ada"), "hers")
    hers = tmp_path / "hers"
    (hers / "student.md").write_text(MORNING + "Likes proofs.\n")
    git(hers, "commit", "-qam", "What I like")
    git(hers, "push", "-q")
    assert school.do("ada", "GET", "/users/ada/blocks/student")["body"].endswith("Likes proofs.\n")
    for other in ("bea", "teacher"):
        assert (
            run_git(tmp_path, "clone", "-q", school.address(other), other, check=False).returncode
            != 0
        )
        assert run_git(hers, "push", "-q", school.address(other), check=False).returncode != 0
    head = git(hers, "rev-parse", "HEAD")
    (hers / "student.md").write_text("Name: Somebody\n")
    git(hers, "commit", "-qam", "What the service likes")
    refused = run_git(hers, "push", "-q", school.address("service"), check=False)
    assert "Push to propose/<any name> for the owner to decide." in refused.stderr
    run_git(hers, "push", "-q", school.address("service"), "HEAD:propose/likes")
    # Her newest version is unchanged. The pushed change waits for her, with its author.
    assert school.do("ada", "GET", "/users/ada/blocks/student")["body"].endswith("Likes proofs.\n")
    assert git(hers, "ls-remote", school.address("ada"), "refs/heads/main").split()[0] == head
    (pushed,) = [
        one for one in school.do("ada", "GET", "/users/ada/diffs") if "Somebody" in one["diff"]
    ]
    assert (pushed["author_kind"], pushed["author"]) == ("service", "tutoring for ada")


def test_nobody_else_can_see_follow_or_stop_a_students_running_turn(school: School) -> None:
    made = school.do(
        "ada", "POST", "/v1/conversations/", params={"agent_id": school.tutor}, json={}
    )["id"]
    gate = Gate(school.server, "Slowly said.")
    school.server.answers_with(gate)
    said = {"messages": [{"role": "user", "content": "A secret."}]}
    run = school.do("ada", "POST", f"/v1/agents/{school.tutor}/messages/async", json=said)["id"]
    gate.wait()
    ways = [
        ("GET", f"/v1/runs/{run}", {}),
        ("GET", f"/v1/runs/{run}/messages", {}),
        ("POST", f"/v1/runs/{run}/stream", {"json": {}}),
        ("POST", f"/v1/conversations/{made}/stream", {"json": {}}),
        ("POST", f"/v1/conversations/{made}/cancel", {"json": {}}),
        ("DELETE", f"/v1/runs/{run}", {}),
    ]
    for other in ("bea", "teacher", "service"):
        for method, path, given in ways:
            assert school.status(other, method, path, **given) in (403, 404), (other, path)
        assert school.do(other, "GET", "/v1/runs/", params={"active": True}) == []
        # A request without ids cancels the caller's turns, and there are none.
        school.people.send(
            school.keys[other], "POST", f"/v1/agents/{school.tutor}/messages/cancel", json={}
        )
        listed = {"run_ids": [run]}
        stopped = school.people.send(
            school.keys[other], "POST", f"/v1/agents/{school.tutor}/messages/cancel", json=listed
        )
        assert '"failed"' in stopped.text or stopped.status_code in (403, 404, 409), (
            other,
            stopped.text,
        )
    gate.open()
    for _ in range(500):
        ended = school.do("ada", "GET", f"/v1/runs/{run}")
        if ended["status"] not in ("created", "running"):
            break
        time.sleep(0.01)
    assert (ended["status"], ended["stop_reason"]) == ("completed", "end_turn")
