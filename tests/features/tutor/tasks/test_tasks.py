"""Tasks of a running server: their users, their results, and the callers who may pause them."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import select, update

from ricordo.domain.clock import SECOND
from ricordo.domain.job import Job
from ricordo.domain.model import ModelRequest
from ricordo.domain.scope import Scope
from ricordo.errors import Unavailable
from ricordo.features.tutor.courses.queries import courses
from ricordo.features.tutor.tasks import jobs as work
from ricordo.features.tutor.tasks import pages, queries, service
from ricordo.llm.scripted import call
from ricordo.storage import deletion
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import conversations, users
from ricordo.storage.schema.core_tables import jobs as job_rows
from tests.seams.http import OPERATOR, bearer, ok, refused
from tests.seams.server import MODEL, ServerInThread, serving
from tests.seams.waiting import wait_for

AUTHORIZED = bearer(OPERATOR)
COURSE = f"""
[[agent]]
name = "coach"
model = "{MODEL}"
instructions = "Coach them."
max_steps = 3
[[block]]
label = "notes"
[[task]]
name = "look"
idle_minutes = 60
cooldown_minutes = 600
instructions = "Is there something to note?"
"""
TASK = "essay.look"
DAILY = {"type": "cron", "schedule": "0 3 * * *"}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerInThread]:
    monkeypatch.setattr(service, "wake", lambda _tx: None)  # The tests decide when the job runs.
    with serving(tmp_path, api_key=OPERATOR) as running:
        running.write(lambda tx: tx.run(update(job_rows).values(status="cancelled")))
        yield running


@pytest.fixture
def http(server: ServerInThread) -> Iterator[httpx2.Client]:
    with server.http(headers=AUTHORIZED) as opened:
        yield opened


@pytest.fixture
def coach(http: httpx2.Client) -> str:
    return str(ok(http.put("/v1/courses/essay", json={"source": COURSE}))["agents"]["coach"])


def say(http: httpx2.Client, agent: str, user: str, text: str) -> None:
    ok(
        http.post(
            f"/v1/agents/{agent}/messages", json={"input": text}, headers={"x-ricordo-user": user}
        )
    )


def pass_minutes(server: ServerInThread, minutes: int) -> None:
    """Move everybody's last turn and all runs of tasks into the past by this time."""
    shift = minutes * 60 * SECOND
    last, at = conversations.c.last_run_ended_at, queries.task_runs.c.created_at

    def work(tx: Transaction) -> None:
        tx.run(
            update(conversations).where(last.is_not(None)).values(last_run_ended_at=last - shift)
        )
        runs = queries.task_runs
        tx.run(update(runs).values(created_at=at - shift))
        tx.run(update(runs).where(runs.c.trigger == "idle").values(window=runs.c.window - shift))

    server.write(work)


def run_task_jobs(server: ServerInThread) -> None:
    """Run the job of a minute now, and the tasks that it finds due."""
    job = Job("tasks.look", "")
    server.run(work.look(server.runtime, job, lambda _done, _all: None))
    server.run(work.carry_out(server.runtime, job, lambda _done, _all: None))


def runs_of(http: httpx2.Client, task: str = TASK, **query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ok(http.get(f"/background/tasks/{task}/runs", params=query))
    return found


def start(http: httpx2.Client, task: str = TASK, **body: str) -> list[dict[str, Any]]:
    told = ok(http.post(f"/background/tasks/{task}/run", json=body))
    assert told["started"] == len(told["runs"])
    found: list[dict[str, Any]] = told["runs"]
    return found


def task_conversations(server: ServerInThread) -> list[str]:
    """Return the conversations of tasks that still exist."""
    theirs = select(queries.task_runs.c.conversation_id)
    found = select(conversations.c.id).where(
        conversations.c.id.in_(theirs), conversations.c.deleted_at.is_(None)
    )
    return [row.id for row in server.read(lambda tx: tx.all(found))]


def notes_what_was_said(request: ModelRequest) -> Any:
    """A model that answers in chats, and in a task stores the student's last message."""
    said = [one for one in request.messages if one.role == "user"]
    if "background_task" not in said[-1].text:
        return "I see."
    if request.messages[-1].role == "tool":
        return "Noted."
    return call("memory_insert", label="notes", new_string=f"Said: {said[-2].text}")


def test_a_task_proposes_to_each_idle_student_without_visible_messages(
    server: ServerInThread, http: httpx2.Client, coach: str
) -> None:
    server.answers_with(notes_what_was_said)
    for name in ("ada", "bob"):
        say(http, coach, name, f"{name} likes the sea.")
    run_task_jobs(server)
    assert runs_of(http) == []
    pass_minutes(server, 61)
    run_task_jobs(server)
    run_task_jobs(server)
    runs = runs_of(http)
    assert [(run["status"], run["trigger"], len(run["changes"])) for run in runs] == [
        ("done", "idle", 1)
    ] * 2
    assert all(run["usage"]["prompt_tokens"] > 0 and run["step_count"] == 2 for run in runs)
    assert task_conversations(server) == []
    for name, other in (("ada", "bob"), ("bob", "ada")):
        headers = bearer(server.key(name))
        with server.http(headers=headers) as own:
            (diff,) = ok(own.get(f"/users/{name}/diffs"))
            assert f"Said: {name} likes the sea." in str(diff)
            (mine,) = runs_of(own)
            assert mine["changes"] == [{"id": diff["id"], "status": "waits", "label": "notes"}]
            theirs = next(run["id"] for run in runs if run["id"] != mine["id"])
            refused(own.get(f"/background/runs/{theirs}"), 404)
            assert ok(own.get(f"/background/runs/{mine['id']}")) == mine
            said = str(ok(own.get(f"/v1/agents/{coach}/messages")))
            assert "background_task" not in said
            assert f"{other} likes" not in said
    # The same silence does not count twice, and a new one within the cooldown waits.
    say(http, coach, "ada", "ada likes tea.")
    pass_minutes(server, 120)
    run_task_jobs(server)
    assert len(runs_of(http)) == 2
    pass_minutes(server, 500)
    run_task_jobs(server)
    assert len(runs_of(http)) == 3


def test_a_tasks_prompt_and_step_limit_apply_only_to_the_task(
    server: ServerInThread, http: httpx2.Client
) -> None:
    source = COURSE + 'system = "Now you are a librarian."\nmax_steps = 2\n'
    agent = ok(http.put("/v1/courses/essay", json={"source": source}))["agents"]["coach"]
    server.answers_with(notes_what_was_said)
    say(http, agent, "ada", "I like the sea.")
    start(http, user_id="ada")
    run_task_jobs(server)
    assert ok(http.get(f"/background/tasks/{TASK}"))["max_steps"] == 2
    prompts = [request.messages[0].text for request in server.model.requests]
    assert ["Now you are a librarian." in prompt for prompt in prompts] == [False, True, True]


def test_a_course_defines_its_tasks_and_keeps_them_paused(
    server: ServerInThread, http: httpx2.Client, coach: str
) -> None:
    run_task_jobs(server)
    (task,) = ok(http.get("/background/tasks"))
    assert (task["name"], task["agent_id"], task["course"], task["enabled"]) == (
        TASK,
        coach,
        "essay",
        True,
    )
    assert task["trigger"] == {"type": "idle", "idle_minutes": 60, "cooldown_minutes": 600}
    ok(http.post(f"/background/tasks/{TASK}/disable"))
    changed = COURSE.replace("idle_minutes = 60", 'cron = "0 3 * * *"').replace(
        "cooldown_minutes = 600", ""
    )
    ok(http.put("/v1/courses/essay", json={"source": changed}))
    run_task_jobs(server)
    task = ok(http.get(f"/background/tasks/{TASK}"))
    assert (task["trigger"], task["enabled"], task["next_at"]) == (
        DAILY | {"timezone": "UTC"},
        False,
        None,
    )
    assert ok(http.post(f"/background/tasks/{TASK}/enable"))["next_at"].endswith(
        "T03:00:00.000000Z"
    )
    assert "essay/agents.toml" in refused(http.delete(f"/background/tasks/{TASK}"), 409)
    local = f'timezone = "Europe/Berlin"\n{changed}'
    ok(http.put("/v1/courses/essay", json={"source": local}))
    run_task_jobs(server)
    task = ok(http.get(f"/background/tasks/{TASK}"))
    assert task["trigger"] == DAILY | {"timezone": "Europe/Berlin"}
    assert ok(http.get(f"/v1/agents/{coach}"))["timezone"] == "Europe/Berlin"
    ok(http.put("/v1/courses/essay", json={"source": local + 'timezone = "Asia/Tokyo"\n'}))
    run_task_jobs(server)
    assert ok(http.get(f"/background/tasks/{TASK}"))["next_at"].endswith("T18:00:00.000000Z")
    own = {"name": TASK, "agent_id": coach, "instructions": "x", "trigger": DAILY}
    assert "essay/agents.toml" in refused(http.post("/background/tasks", json=own), 409)
    ok(http.put("/v1/courses/essay", json={"source": COURSE.partition("[[task]]")[0]}))
    run_task_jobs(server)
    assert ok(http.get("/background/tasks")) == []


def test_the_tasks_of_a_course_wait_while_its_file_cannot_be_read(
    server: ServerInThread, http: httpx2.Client, coach: str
) -> None:
    run_task_jobs(server)
    say(http, coach, "ada", "Hello")
    pass_minutes(server, 61)

    def set_source(tx: Transaction, source: str) -> None:
        tx.run(update(courses).values(source=source))

    # For example, an update of the server no longer accepts the file.
    server.write(partial(set_source, source="no TOML"))
    run_task_jobs(server)
    assert runs_of(http) == []
    start(http, user_id="ada")
    run_task_jobs(server)
    (run,) = runs_of(http)
    assert (run["status"], run["step_count"]) == ("skipped", 0)
    assert run["problem"].startswith("The course's file no longer defines this task")
    server.write(partial(set_source, source=COURSE))
    run_task_jobs(server)
    assert [run["status"] for run in runs_of(http)] == ["done", "skipped"]


def test_a_task_can_be_created_changed_run_and_deleted(
    server: ServerInThread, http: httpx2.Client, coach: str
) -> None:
    body: dict[str, Any] = {
        "name": "daily",
        "agent_id": coach,
        "instructions": "Look.",
        "trigger": DAILY,
    }
    made = ok(http.post("/background/tasks", json=body))
    assert made["next_at"].endswith("T03:00:00.000000Z")
    changed = ok(
        http.post("/background/tasks", json={**body, "instructions": "Look well.", "max_steps": 2})
    )
    assert (changed["id"], changed["instructions"], changed["next_at"]) == (
        made["id"],
        "Look well.",
        made["next_at"],
    )
    say(http, coach, "ada", "Hello")
    say(http, coach, "bob", "Hello")
    (started,) = start(http, "daily", user_id="ada")
    assert [run["id"] for run in start(http, "daily", user_id="ada")] == [started["id"]]
    assert len(start(http, "daily")) == 2
    server.run(work.carry_out(server.runtime, Job("tasks.run", ""), lambda _done, _all: None))
    assert [run["status"] for run in runs_of(http, "daily")] == ["done", "done"]
    assert [run["id"] for run in runs_of(http, "daily", user_id="ada")] == [started["id"]]
    assert "Look well." in server.model.requests[-1].messages[-1].text
    refused(http.post("/background/tasks/daily/run", json={"user_id": "nobody-here"}), 404)
    ok(http.delete("/background/tasks/daily"))
    refused(http.get("/background/tasks/daily/runs"), 404)
    refused(http.get(f"/background/runs/{started['id']}"), 404)


def test_course_tasks_do_not_count_towards_the_task_limit(
    http: httpx2.Client, server: ServerInThread, coach: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_TASKS", 3)
    monkeypatch.setattr(pages, "_TASKS_PER_PAGE", 10)
    more = [COURSE.partition("[[task]]")[2].replace("look", f"look-{n}") for n in range(12)]
    ok(http.put("/v1/courses/essay", json={"source": "[[task]]".join([COURSE, *more])}))
    run_task_jobs(server)
    body = {"agent_id": coach, "instructions": "Look.", "trigger": DAILY}
    for name in ("one", "two", "three", "one"):
        ok(http.post("/background/tasks", json={"name": name, **body}))
    words = refused(http.post("/background/tasks", json={"name": "four", **body}), 409)
    assert "There are 3 tasks that belong to no course" in words
    assert len(ok(http.get("/background/tasks"))) == 13 + 3
    first_page = http.get("/ui/tasks").text
    after = first_page.split("/ui/tasks?after=")[1].split('"')[0]
    second_page = http.get("/ui/tasks", params={"after": after}).text
    assert (first_page.count("<tr data-item>"), second_page.count("<tr data-item>")) == (10, 6)


def test_a_course_task_outlives_its_agent_while_the_file_names_it(
    server: ServerInThread, http: httpx2.Client, coach: str
) -> None:
    say(http, coach, "ada", "Hello")
    pass_minutes(server, 61)
    run_task_jobs(server)
    (run,) = runs_of(http)
    say(http, coach, "ada", "Hello again")
    pass_minutes(server, 1000)
    id = ok(http.get(f"/background/tasks/{TASK}"))["id"]

    def hide(tx: Transaction) -> None:
        """Delete the agent, as if the server was killed before the purge."""
        deletion.hide(tx, "agent", [coach])

    def set_source(tx: Transaction, source: str | None) -> None:
        tx.run(update(courses).values(source=source))

    # While the source names no agent, the job that runs each minute cannot make the agent again.
    server.write(partial(set_source, source="no TOML"))
    server.write(hide)
    for source in ("no TOML", "[[agent]]\nunknown = 1\n", "", None):
        server.write(partial(set_source, source=source))
        run_task_jobs(server)
        assert ok(http.get(f"/background/tasks/{TASK}"))["id"] == id
        assert [one["id"] for one in runs_of(http)] == [run["id"]]
        assert "An agent that is missing" in http.get(f"/ui/tasks/{TASK}").text
    server.write(partial(set_source, source=COURSE))
    run_task_jobs(server)
    assert ok(http.get(f"/background/tasks/{TASK}"))["id"] == id
    # The minute's job creates the agent again, and the task continues with its history.
    ok(http.post("/v1/courses/apply"))
    run_task_jobs(server)
    task = ok(http.get(f"/background/tasks/{TASK}"))
    assert task["id"] == id
    assert task["agent_id"] not in (coach, None)
    assert run["id"] in [one["id"] for one in runs_of(http)]
    ok(http.put("/v1/courses/essay", json={"source": COURSE.partition("[[task]]")[0]}))
    run_task_jobs(server)
    refused(http.get(f"/background/tasks/{TASK}"), 404)


WRONG: list[tuple[dict[str, Any], int, str]] = [
    ({"trigger": {"type": "cron", "schedule": "soon"}}, 400, "five fields"),
    ({"trigger": {"type": "cron", "schedule": "0 0 30 2 *"}}, 400, "never comes"),
    ({"trigger": {"type": "idle", "idle_minutes": 0}}, 422, "greater than or equal"),
    ({"trigger": {"type": "weekly"}}, 422, "idle"),
    ({"name": "No/slash"}, 422, "pattern"),
    ({"agent_id": "nobody"}, 404, "no agent"),
    ({"instructions": ""}, 422, "at least 1"),
]


@pytest.mark.parametrize(("change", "status", "words"), WRONG)
def test_invalid_tasks_are_refused_with_a_reason(
    http: httpx2.Client, coach: str, change: dict[str, Any], status: int, words: str
) -> None:
    body = {"name": "daily", "agent_id": coach, "instructions": "Look.", "trigger": DAILY} | change
    assert words in refused(http.post("/background/tasks", json=body), status)
    assert ok(http.get("/background/tasks")) == []


def kill_after_the_answer(server: ServerInThread, coach: str) -> queries.TaskRun:
    """Let a run answer, and do nothing more, as if the server was killed then."""

    def begin(tx: Transaction) -> Any:
        task = queries.get(tx, Scope(), TASK)
        (user_id,) = queries.active(tx, [coach], 0, tx.clock.now())
        run = service._new(tx, task, user_id, 1, "cron")
        assert queries.add_runs(tx, [run]) == 1
        return service.begin(tx, run.id, work._conversation_of)

    begun = server.write(begin)
    assert begun
    task, row, scope = begun
    server.run(work._answer(server.runtime, scope, task, row))
    assert isinstance(row, queries.TaskRun)
    return row


def test_a_killed_run_is_resumed_without_repeated_model_calls(
    server: ServerInThread, http: httpx2.Client, coach: str
) -> None:
    say(http, coach, "ada", "Hello")
    run_task_jobs(server)

    row = kill_after_the_answer(server, coach)
    asked = len(server.model.requests)
    assert runs_of(http)[0]["status"] == "running"
    server.run(work.carry_out(server.runtime, Job("tasks.run", ""), lambda _done, _all: None))
    assert (runs_of(http)[0]["status"], len(server.model.requests), task_conversations(server)) == (
        "done",
        asked,
        [],
    )
    server.run(work.do(server.runtime, row.id))
    assert len(server.model.requests) == asked


async def fail_to_delete(*_given: Any) -> None:
    raise Unavailable("The server stops.")


@pytest.mark.parametrize("end", ["finish", "disable", "withdraw", "pause"])
def test_no_kill_leaves_the_conversation_of_a_run(
    server: ServerInThread,
    http: httpx2.Client,
    coach: str,
    end: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    say(http, coach, "ada", "Hello")
    run_task_jobs(server)
    row = kill_after_the_answer(server, coach)
    assert task_conversations(server)
    # The copy is no activity of the user, and no chat to continue.
    (chat,) = set(conversations_of(server, row.user_id)) - {row.conversation_id}
    assert server.read(lambda tx: queries.last_chat(tx, coach, row.user_id)) == chat
    match end:
        case "finish":
            with monkeypatch.context() as stopped:
                stopped.setattr(work, "stop_and_delete", fail_to_delete)
                with pytest.raises(Unavailable):
                    server.run(work.do(server.runtime, row.id))
            (before,) = runs_of(http)
            assert before["status"] == "done"
        case "disable":
            disabled = update(users).where(users.c.id == row.user_id).values(disabled_at=1)
            server.write(lambda tx: tx.run(disabled))
        case "withdraw":
            monkeypatch.setattr(service, "_skip_reason", lambda *_given, **_named: "Withdrawn.")
        case "pause":
            ok(http.post(f"/background/tasks/{TASK}/disable"))

    job = Job("tasks.run", "")
    server.run(work.carry_out(server.runtime, job, lambda _done, _all: None))

    (run,) = runs_of(http)
    assert (run["status"], bool(run["ended_at"])) == (
        "done" if end == "finish" else "skipped",
        True,
    )
    assert conversations_of(server, row.user_id) == [chat]
    assert server.read(lambda tx: queries.next_open(tx, [])) is None


def conversations_of(server: ServerInThread, user_id: str) -> list[str]:
    """Return the ids of all conversations of a user, with hidden ones."""
    found = select(conversations.c.id).where(
        conversations.c.user_id == user_id, conversations.c.deleted_at.is_(None)
    )
    return [row.id for row in server.read(lambda tx: tx.all(found))]


def test_failed_and_skipped_runs_are_reported_and_others_continue(
    server: ServerInThread, http: httpx2.Client, coach: str
) -> None:
    for name in ("ada", "bob", "cem", "dan"):
        say(http, coach, name, "Hello")
    run_task_jobs(server)

    def start_all(tx: Transaction) -> None:
        service.start(tx, Scope(), TASK, None)
        tx.run(update(users).where(users.c.identifier == "bob").values(disabled_at=1))

    server.write(start_all)

    def answer(request: ModelRequest) -> Any:
        return RuntimeError("The model broke.") if request.user_id == ids["cem"] else "Done."

    ids = {
        one["identifier_key"]: one["id"].replace("identity-", "user-")
        for one in ok(http.get("/v1/identities/"))
    }
    server.answers_with(answer)
    server.run(work.carry_out(server.runtime, Job("tasks.run", ""), lambda _done, _all: None))
    ended = {run["user_id"]: (run["status"], run["problem"]) for run in runs_of(http)}
    assert ended[ids["ada"]] == ended[ids["dan"]] == ("done", None)
    assert ended[ids["bob"]] == ("skipped", "The user is disabled.")
    assert ended[ids["cem"]][0] == "failed"
    assert task_conversations(server) == []


def test_a_task_started_by_hand_runs_at_once(tmp_path: Path) -> None:
    with serving(tmp_path, api_key=OPERATOR) as server, server.http(headers=AUTHORIZED) as http:
        agent = ok(http.put("/v1/courses/essay", json={"source": COURSE}))["agents"]["coach"]
        say(http, agent, "ada", "Hello")
        start(http, user_id="ada")
        wait_for(lambda: runs_of(http)[0]["status"] == "done")


def test_a_paused_task_skips_waiting_runs_but_can_be_started(
    server: ServerInThread, http: httpx2.Client, coach: str
) -> None:
    say(http, coach, "ada", "Hello")
    pass_minutes(server, 61)
    job = Job("tasks.look", "")
    server.run(work.look(server.runtime, job, lambda _done, _all: None))
    ok(http.post(f"/background/tasks/{TASK}/disable"))
    run_task_jobs(server)
    assert [(run["status"], run["problem"]) for run in runs_of(http)] == [
        ("skipped", "The task was disabled before this run.")
    ]
    ok(http.post(f"/background/tasks/{TASK}/run"))
    run_task_jobs(server)
    assert [run["status"] for run in runs_of(http)] == ["done", "skipped"]


def test_users_cannot_start_or_pause_tasks(
    server: ServerInThread, http: httpx2.Client, coach: str
) -> None:
    run_task_jobs(server)
    ada = bearer(server.key("ada"))
    for what in ("enable", "disable", "run"):
        refused(http.post(f"/background/tasks/{TASK}/{what}", headers=ada), 403)
    body = {"name": "daily", "agent_id": coach, "instructions": "Look.", "trigger": DAILY}
    refused(http.post("/background/tasks", json=body, headers=ada), 403)
    for name in ("ada", "bob"):
        say(http, coach, name, "Hello")
    designer = bearer(server.key("dora", "developer"))
    told = ok(http.post(f"/background/tasks/{TASK}/run", headers=designer))
    assert told == {"started": 2, "runs": []}  # A developer does not see who the students are.
    assert ok(http.get(f"/background/tasks/{TASK}/runs", headers=designer)) == []
    assert ok(http.get("/background/tasks", headers=ada))[0]["name"] == TASK


def test_the_tasks_page_shows_history_and_pauses_tasks(
    server: ServerInThread, http: httpx2.Client, coach: str
) -> None:
    say(http, coach, "ada", "Hello")
    run_task_jobs(server)
    ok(http.post(f"/background/tasks/{TASK}/run"))
    server.run(work.carry_out(server.runtime, Job("tasks.run", ""), lambda _done, _all: None))
    assert TASK in http.get("/ui/tasks").text
    page = http.get(f"/ui/tasks/{TASK}").text
    assert "/ui/runs/" not in page, "the runs are deleted with the tasks' conversations"
    assert "idle for 60 minutes" in page
    assert "done" in page
    told = http.post(f"/ui/tasks/{TASK}/disable", follow_redirects=True).text
    assert "The task is paused." in told
    assert "Go on" in told
    assert ok(http.get(f"/background/tasks/{TASK}"))["enabled"] is False


def test_a_course_task_keeps_its_history_when_its_agent_is_recreated(
    server: ServerInThread, http: httpx2.Client, coach: str
) -> None:
    say(http, coach, "ada", "Hello")
    own = {"name": "own", "agent_id": coach, "instructions": "Look.", "trigger": DAILY}
    ok(http.post("/background/tasks", json=own))
    started = ok(http.post(f"/background/tasks/{TASK}/run", json={"user_id": "ada"}))["runs"]
    ok(http.delete(f"/v1/agents/{coach}"))
    names = {task["name"] for task in ok(http.get("/background/tasks"))}
    assert names == {TASK}, "a task without a course must be deleted with its agent"
    again = ok(http.put("/v1/courses/essay", json={"source": COURSE}))["agents"]["coach"]
    assert again != coach
    server.write(service.follow_courses)
    task = ok(http.get(f"/background/tasks/{TASK}"))
    assert task["agent_id"] == again
    runs = ok(http.get(f"/background/tasks/{TASK}/runs"))
    assert [run["id"] for run in runs] == [run["id"] for run in started]
    ok(http.delete("/v1/courses/essay"))
    server.write(service.follow_courses)
    assert ok(http.get("/background/tasks")) == []
    assert server.read(lambda tx: tx.all(select(queries.tasks.c.id))) == []
