"""The commands of docs/tutor/a-first-course.md, run unchanged.

A second test runs the course with a model and lets two days pass.
"""

import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from ricordo.domain.clock import SECOND
from ricordo.domain.job import Job
from ricordo.domain.model import LIBRARIAN, ModelRequest
from ricordo.features.tutor.tasks import jobs
from ricordo.llm.scripted import call
from ricordo.storage.schema.core_tables import conversations
from tests.seams.http import ok
from tests.seams.server import MODEL, ServerInThread, events_of, serving

PAGE = (Path(__file__).parents[2] / "docs" / "tutor" / "a-first-course.md").read_text("utf-8")
ADDRESS = "http://127.0.0.1:8283"
TASK = "/background/tasks/essay.think-again"


def run(commands: str, home: Path) -> str:
    """Run the page's commands in this home folder; return their output."""
    path = f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}"
    environment = {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8"}
    done = subprocess.run(
        ["bash", "-e", "-c", commands], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


PARTS = {
    part.partition("\n")[0]: "\n".join(re.findall(r"```sh\n(.*?)```", part, re.S))
    for part in PAGE.split("\n## ")
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home folder with the course file."""
    home = tmp_path_factory.mktemp("written")
    assert "essay: 1 agent, 3 blocks, 1 task" in run(PARTS["Write it"], home)
    return home


@pytest.fixture
def server(written: Path, tmp_path: Path) -> Iterator[ServerInThread]:
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    with serving(tmp_path / ".ricordo", model=LIBRARIAN) as running:
        yield running


def test_the_commands_of_the_page_work_unchanged(server: ServerInThread, tmp_path: Path) -> None:
    def told(heading: str) -> str:
        return run(PARTS[heading].replace(ADDRESS, server.url), tmp_path)

    assert '"title":"Essays for spring"' in told("Start it")
    chats = told("Chat as two students")
    assert chats.count("Proposed to remember: ") == 2
    decided = told("Decide")
    assert "grandfather" in decided
    with server.http() as http:
        assert "grandfather" in str(ok(http.get("/users/ada/blocks/notes"))["body"])
        assert "chess" not in str(ok(http.get("/users/bob/blocks")))
    assert '"started":1' in told("Let it think")
    assert "grandfather" in told("Ask")


def test_a_course_with_a_model_keeps_two_students_notes_separate(
    server: ServerInThread, tmp_path: Path
) -> None:
    path = tmp_path / ".ricordo" / "courses" / "essay" / "agents.toml"
    path.write_text(
        path.read_text("utf-8").replace("[[agent]]\n", f'[[agent]]\nmodel = "{MODEL}"\n'), "utf-8"
    )

    def answer(request: ModelRequest) -> Any:
        said = [one.text for one in request.messages if one.role == "user"]
        if request.messages[-1].role == "tool":
            return "Noted."
        if "background_task" in said[-1]:
            return call(
                "memory_insert", label="journey", new_string=f"Thought again of: {said[-2]}"
            )
        return call("memory_insert", label="notes", new_string=f"Said: {said[-1]}")

    server.answers_with(answer)
    look = Job("tasks.look", "")
    with server.http() as http:
        assert ok(http.post("/v1/courses/apply"))[0]["fault"] is None
        for user, words in (("ada", "My grandfather sails."), ("bob", "Chess taught me to lose.")):
            body = {
                "user_id": user,
                "chat_id": "1",
                "messages": [{"role": "user", "content": words}],
            }
            events = [
                data
                for _, data in events_of(http.post("/chat/stream", json=body).text)
                if isinstance(data, dict)
            ]
            assert [event["label"] for event in events if event.get("status") == "waits"] == [
                "notes"
            ]
        ok(http.post("/users/ada/diffs/approve", json={"all": True}))
        ok(http.post("/users/bob/diffs/reject", json={"all": True, "reason": "Not yet."}))
        assert "My grandfather sails." in ok(http.get("/users/ada/blocks/notes"))["body"]
        server.run(jobs.look(server.runtime, look, lambda _done, _all: None))
        assert ok(http.get(f"{TASK}/runs")) == []
        two_days = (2880 + 1) * 60 * SECOND
        last = conversations.c.last_run_ended_at
        server.write(
            lambda tx: tx.run(
                update(conversations)
                .where(last.is_not(None))
                .values(last_run_ended_at=last - two_days)
            )
        )
        server.run(jobs.look(server.runtime, look, lambda _done, _all: None))
        server.run(jobs.carry_out(server.runtime, look, lambda _done, _all: None))
        assert [run["status"] for run in ok(http.get(f"{TASK}/runs"))] == ["done", "done"]
        for user, words, others in (
            ("ada", "grandfather", "Chess"),
            ("bob", "Chess", "grandfather"),
        ):
            (waiting,) = ok(http.get(f"/users/{user}/diffs"))
            assert waiting["label"] == "journey"
            assert words in str(waiting)
            # Histories are separate: no text of one student is in the other's.
            kept = [
                ok(http.get(f"/users/{user}/{what}")) for what in ("blocks", "diffs?status=all")
            ]
            assert others not in str(kept)
