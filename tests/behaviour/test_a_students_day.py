"""A student's proposals wait for her decision and link to the messages behind them.

No other student sees them. The model follows a script; all other parts are real.
docs/tutor/a-students-day.md describes the whole day, and test_docs.py runs that page.
"""

import json
from typing import Any

import pytest

from ricordo.domain.ids import new_id
from tests.seams.scene import OPENAI, Scene, Wire, calls, returns, said

MORNING = "Name: Ada\nStudies maths.\n"
REASON = "She told me where she lives."


class Day:
    """Ada's memory over HTTP, and her tutor."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.user = new_id("ada")
        self.ask("put", "student", body=MORNING, title="About me")
        self.tutor = scene.agent(
            "edit_memory_block", "propose_memory_edit", name="Tutor", user_id=self.user
        )

    def ask(self, method: str, path: str, **body: Any) -> Any:
        sent = {"json": body} if body else {}
        answer = self.scene.http.request(
            method.upper(), f"/users/{self.user}/blocks/{path}", **sent
        )
        assert answer.status_code == 200, answer.text
        return answer.json()

    def tells(self, words: str, *lines: Any) -> Wire:
        self.scene.says(*lines)
        return self.scene.send(self.tutor, words)

    def proposes(self) -> tuple[Wire, Wire]:
        answer = self.tells(
            "I live in Turin.", edit("maths.", "maths.\nLives in Turin."), "I noted it."
        )
        (proposal,) = self.ask("get", "student/diffs")
        return answer, proposal

    def prompt(self) -> str:
        return str(self.scene.asked[-1]["messages"][0]["content"])


def edit(old: str, new: str, tool: str = "edit_memory_block", **more: Any) -> Any:
    return calls(
        (
            tool,
            {"label": "student", "old_string": old, "new_string": new, "reasoning": REASON, **more},
        )
    )


@pytest.fixture
def day(scene: Scene) -> Day:
    return Day(scene)


def test_the_tutor_reads_a_students_block_and_its_change_waits_for_her(day: Day) -> None:
    answer, proposal = day.proposes()

    assert "Studies maths." in day.prompt()
    ((status, told),) = returns(answer)
    assert (status, "waits for the owner" in told) == ("success", True)
    block = day.ask("get", "student")
    assert (block["body"], block["pending"]) == (MORNING, 1)
    assert (proposal["author"], proposal["agent_id"], proposal["reasoning"]) == (
        "Tutor",
        day.tutor,
        REASON,
    )
    assert "+Lives in Turin.\n" in proposal["diff"]
    # No prompt, search or list of the agent shows a proposal.
    day.tells("Where do I live?", "I don't know.")
    assert "Lives in Turin" not in day.prompt()
    assert "Lives in Turin" not in json.dumps(day.scene.state(day.tutor)["blocks"])


def test_the_tutor_reads_the_reason_of_a_rejection_in_its_next_turn(day: Day) -> None:
    _, proposal = day.proposes()
    day.ask("post", f"student/diffs/{proposal['id']}/reject", reason="I only visit.")
    day.tells("Hello again.", "Hello.")
    told = [
        one["content"]
        for one in day.scene.asked[-1]["messages"]
        if "proposal_rejected" in str(one["content"])
    ]
    assert [("I only visit." in one, proposal["id"] in one) for one in told] == [(True, True)]


def test_an_answer_can_be_traced_to_the_message_behind_its_memory(day: Day) -> None:
    _, proposal = day.proposes()
    approved = day.ask("post", f"student/diffs/{proposal['id']}/approve")

    answer = day.tells("Where do I live?", "You live in Turin.")
    assert said(answer) == ["You live in Turin."]
    why = day.scene.http.get(f"/v1/messages/{answer['messages'][-1]['id']}/memory").json()
    assert [(held["label"], held["sha"]) for held in why["blocks"]] == [
        ("student", approved["version"])
    ]
    assert (why["changed"], why["proposed"]) == ([], [])

    blamed = day.ask("get", "student/blame")
    line = blamed["lines"][-1]
    version = next(one for one in blamed["versions"] if one["sha"] == line["version"])
    assert (line["text"], version["author"], version["message"]) == (
        "Lives in Turin.",
        "Tutor",
        REASON,
    )
    led = day.scene.http.get(
        f"/v1/runs/{version['run_id']}/messages", params={"order": "asc"}
    ).json()
    assert [one["content"] for one in led if one["message_type"] == "user_message"] == [
        "I live in Turin."
    ]
    called = next(one for one in led if one["message_type"] == "tool_call_message")
    asked = day.scene.http.get(f"/v1/messages/{called['id']}/memory").json()
    assert [one["id"] for one in asked["proposed"]] == [proposal["id"]]


def test_a_shared_agent_shows_each_student_only_their_own_block(day: Day) -> None:
    """Two students use one agent.

    Each conversation shows its student's block. A conversation without a student shows neither.
    """
    scene = day.scene
    shared = scene.agent(
        model=OPENAI, name="Shared", memory_blocks=[{"label": "student", "value": "Nobody yet."}]
    )
    seen: dict[str | None, str] = {}
    for user in (day.user, new_id("bob"), None):
        body = {"user_id": user} if user else {}
        thread = scene.http.post(
            "/v1/conversations/", params={"agent_id": shared}, json=body
        ).json()
        assert (thread["user_id"] is not None) == (user is not None)
        scene.says("Hello.")
        sent = {"messages": [{"role": "user", "content": "Hi."}], "streaming": False}
        assert (
            scene.http.post(f"/v1/conversations/{thread['id']}/messages", json=sent).status_code
            == 200
        )
        seen[user] = day.prompt()
    assert [MORNING.strip() in prompt for prompt in seen.values()] == [True, False, False]
    assert ["Nobody yet." in prompt for prompt in seen.values()] == [False, True, True]
