"""The tables of background tasks and their runs, and users' last activity.

A run is one task for one user in one window. The window is a time of a cron expression, the user's
last activity before a silence, or the time of a start by hand. Task, user and window together are
unique, so no window is done twice, even with several servers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sqlalchemy import Index, UniqueConstraint, delete, exists, func, select, update

from ricordo.domain.clock import DAY, SECOND
from ricordo.domain.scope import Scope
from ricordo.domain.usage import Usage
from ricordo.errors import NotFound
from ricordo.features.tutor.courses.queries import courses
from ricordo.storage import activity, agent_lookup
from ricordo.storage.engine.repository import Missing, Page, Repository, equal, one_of
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.columns import (
    flag,
    json_value,
    names,
    numbers,
    partial_index,
    reference,
    root,
    strings,
    table,
    texts,
    timestamps,
    usage,
)

Trigger = Literal["cron", "idle", "manual"]
RunState = Literal["waiting", "running", "done", "failed", "skipped"]

tasks = table(
    "background_tasks",
    *root(),
    *names("name", null=False),
    # There is no foreign key. If the agent of a course's task is deleted, the task waits until the
    # course creates the agent again.
    *strings("agent_id", null=False, erasure="keep"),
    *names("course"),
    *texts("instructions", null=False),
    *strings("cron"),
    *numbers("idle_minutes", "cooldown_minutes", "max_steps", null=True),
    *numbers("active_days"),
    flag("enabled"),
    *timestamps("next_at", null=True),
    *timestamps("created_at", "updated_at"),
    UniqueConstraint("organization_id", "name"),
    Index("background_tasks_by_agent", "agent_id"),
    erasure="keep",
)
task_runs = table(
    "task_runs",
    *root(),
    reference("task_id", "background_tasks"),
    *strings("user_id", null=False),
    *timestamps("window"),
    *strings("trigger", "status", null=False, erasure="keep"),
    *strings("conversation_id", "run_id", erasure="keep"),
    *strings("problem"),
    json_value("changes", "'[]'"),
    *usage(),
    *numbers("step_count"),
    *timestamps("created_at"),
    *timestamps("started_at", "ended_at", null=True),
    UniqueConstraint("task_id", "user_id", "window"),
    Index("task_runs_by_task", "task_id", "created_at", "seq"),
    Index("task_runs_by_user", "user_id"),
    partial_index("task_runs_open", "seq", where="ended_at IS NULL"),
    erasure="delete",
)


@dataclass(frozen=True, slots=True)
class BackgroundTask:
    """An agent's task for each user, at times of a cron expression or after silence.

    It runs for users who talked within `active_days` with the agent, or with another agent of its
    `course`. Times are microseconds.
    """

    id: str
    organization_id: str
    name: str
    agent_id: str
    instructions: str
    course: str | None = None
    cron: str | None = None
    idle_minutes: int | None = None
    cooldown_minutes: int | None = None
    max_steps: int | None = None
    active_days: int = 30
    enabled: bool = True
    next_at: int | None = None
    created_at: int = 0
    updated_at: int = 0


@dataclass(frozen=True, slots=True)
class TaskRun:
    """One task for one user in one window.

    `changes` are the `id`, `status` and `label` of each version and proposal of the run.
    """

    id: str
    organization_id: str
    task_id: str
    user_id: str
    window: int
    trigger: Trigger
    status: RunState = "waiting"
    conversation_id: str | None = None
    run_id: str | None = None
    problem: str | None = None
    changes: tuple[dict[str, Any], ...] = ()
    usage: Usage = field(default_factory=Usage)
    step_count: int = 0
    created_at: int = 0
    started_at: int | None = None
    ended_at: int | None = None

    @property
    def has_result(self) -> bool:
        """True if nothing is left to do, except perhaps the deletion of the run's conversation."""
        return self.status not in ("waiting", "running")


_TASKS = Repository(BackgroundTask, tasks)
RUNS = Repository(TaskRun, task_runs)
# A task without a course is deleted together with its agent, within a minute.
_HAS_AGENT = agent_lookup.exists_as(tasks.c.agent_id, tasks.c.organization_id)
_IS_THERE = tasks.c.course.is_not(None) | _HAS_AGENT
_NAMED = _TASKS.select.where(equal(tasks, "organization_id", "name"), _IS_THERE)
_LOCK_TASK = select(tasks.c.id).where(equal(tasks, "id")).with_for_update()
_OPEN = task_runs.c.ended_at.is_(None)
_NEXT = (
    RUNS.select.where(_OPEN, ~one_of(task_runs.c.id, "started_ids"))
    .order_by(task_runs.c.seq)
    .limit(1)
)
_LOCK_RUN = RUNS.select.where(equal(task_runs, "id")).with_for_update()
_INSERT_RUN = Missing(task_runs)
# A run's conversation is deleted when the run ends; until then it does not count as activity of the
# user.
_OF_TASKS = select(task_runs.c.conversation_id).where(
    _OPEN, task_runs.c.conversation_id.is_not(None)
)
_DONE = (
    select(
        task_runs.c.user_id,
        func.max(task_runs.c.window).label("window"),
        func.max(task_runs.c.created_at).label("at"),
    )
    .where(equal(task_runs, "task_id"), task_runs.c.trigger == "idle")
    .group_by(task_runs.c.user_id)
)
_OF_USER = RUNS.select.where(equal(task_runs, "user_id")).order_by(
    task_runs.c.created_at.desc(), task_runs.c.seq.desc()
)
_CHANGED = (
    "agent_id",
    "instructions",
    "cron",
    "idle_minutes",
    "cooldown_minutes",
    "max_steps",
    "active_days",
)
change = _TASKS.updates(*_CHANGED, "enabled", "next_at", "updated_at")
_ENDED = ("status", "run_id", "problem", "changes", "step_count", "ended_at")
_USAGE = (
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
)
save_run = RUNS.updates(*_ENDED, *_USAGE, "conversation_id", "started_at")
insert_task = _TASKS.insert


def find(tx: Transaction, scope: Scope, name: str) -> BackgroundTask | None:
    """Return the task with this name, or None.

    Args:
        tx: The transaction, or a read.
        scope: The caller, whose organization is searched.
        name: The exact name, without NUL characters. A task without a course whose agent was
            deleted is not found.
    """
    return _TASKS.first(tx, _NAMED, {"organization_id": scope.organization_id, "name": name})


def get(tx: Transaction, scope: Scope, name: str) -> BackgroundTask:
    """Return the task with this name.

    Args:
        tx: The transaction, or a read.
        scope: The caller, whose organization is searched.
        name: The name from a request.

    Raises:
        NotFound: There is no such task.
    """
    task = None if "\0" in name else find(tx, scope, name)
    if task is None:
        raise NotFound(f'There is no background task "{name[:80]}". Look in the list of tasks.')
    return task


def find_for_change(tx: Transaction, scope: Scope, name: str) -> BackgroundTask | None:
    """Lock the task with this name until the transaction ends, and return it; None if missing."""
    task = find(tx, scope, name)
    if task:
        return lock(tx, task.id)
    return None


def get_for_change(tx: Transaction, scope: Scope, name: str) -> BackgroundTask:
    """Lock the task with this name until the transaction ends, and return it. Raises NotFound."""
    lock(tx, get(tx, scope, name).id)
    return get(tx, scope, name)


def by_id(tx: Transaction, task_id: str) -> BackgroundTask | None:
    """Return any organization's task, or None.

    Args:
        tx: The transaction, or a read.
        task_id: The task.
    """
    return next(iter(_TASKS.by_ids(tx, [task_id])), None)


def lock(tx: Transaction, task_id: str) -> BackgroundTask | None:
    """Lock the task until the transaction ends; None for a deleted task.

    Args:
        tx: The transaction.
        task_id: The task of any organization.
    """
    tx.lock(_LOCK_TASK, {"id": task_id})
    return by_id(tx, task_id)


def page(tx: Transaction, scope: Scope, page: Page) -> list[BackgroundTask]:
    """Return one page of the organization's tasks.

    Args:
        tx: The transaction, or a read.
        scope: The caller.
        page: The part of the list, by creation.
    """
    return _TASKS.page(tx, scope, page, _IS_THERE)


def of_course(tx: Transaction, scope: Scope, course: str) -> list[BackgroundTask]:
    """Return the tasks of a course, the oldest first.

    Args:
        tx: The transaction, or a read.
        scope: The caller, whose organization has the course.
        course: The course's name.
    """
    listed = _TASKS.select.where(equal(tasks, "organization_id", "course")).order_by(tasks.c.seq)
    return _TASKS.all(tx, listed, {"organization_id": scope.organization_id, "course": course})


def count_without_course(tx: Transaction, scope: Scope) -> int:
    """Return the number of the organization's tasks that belong to no course.

    Args:
        tx: The transaction, or a read.
        scope: The caller.
    """
    counted = select(func.count()).where(
        tasks.c.organization_id == scope.organization_id, tasks.c.course.is_(None)
    )
    return int(tx.all(counted)[0][0])


def enabled_ids(tx: Transaction) -> list[str]:
    """Return the ids of all organizations' tasks that are not paused.

    Args:
        tx: The transaction, or a read.
    """
    return [
        row.id for row in tx.all(select(tasks.c.id).where(tasks.c.enabled).order_by(tasks.c.seq))
    ]


def remove_orphans(tx: Transaction) -> None:
    """Delete tasks of deleted courses, and tasks without a course whose agent was deleted.

    Their history is deleted too.

    Args:
        tx: The transaction. Tasks of all organizations are examined.
    """
    is_course = (courses.c.name == tasks.c.course) & (
        courses.c.organization_id == tasks.c.organization_id
    )
    has_no_course = tasks.c.course.is_not(None) & ~exists().where(is_course)
    orphans = _TASKS.select.where(~_IS_THERE | has_no_course)
    for task in _TASKS.all(tx, orphans):
        remove(tx, task)


def remove(tx: Transaction, task: BackgroundTask) -> None:
    """Delete the task with its history.

    Args:
        tx: The transaction.
        task: The task.
    """
    tx.run(delete(task_runs).where(task_runs.c.task_id == task.id))
    tx.run(delete(tasks).where(tasks.c.id == task.id))


def active(tx: Transaction, agent_ids: Iterable[str], since: int, until: int) -> dict[str, int]:
    """Return the end of each user's last turn with these agents, by user id.

    Only enabled users whose last turn ended between these times are returned. Turns of open runs do
    not count.

    Args:
        tx: The transaction.
        agent_ids: The agents.
        since: The earliest end of a turn, in microseconds.
        until: The latest end of a turn, in microseconds.
    """
    return activity.last_turns(
        tx, agent_ids, since=since, until=until, ignored_conversations=_OF_TASKS
    )


def last_chat(tx: Transaction, agent_id: str, user_id: str) -> str | None:
    """Return the id of the user's last used conversation with the agent, or None.

    Conversations of open runs are left out.

    Args:
        tx: The transaction, or a read.
        agent_id: The agent.
        user_id: The user.
    """
    return activity.newest_conversation(tx, agent_id, user_id, ignored_conversations=_OF_TASKS)


def last_idle(tx: Transaction, task_id: str) -> dict[str, tuple[int, int]]:
    """Return the task's last idle window for each user, with the time of the run.

    Both times are in microseconds.

    Args:
        tx: The transaction, or a read.
        task_id: The task.
    """
    return {row.user_id: (row.window, row.at) for row in tx.all(_DONE, {"task_id": task_id})}


def add_runs(tx: Transaction, runs: Sequence[TaskRun]) -> int:
    """Store the runs whose window is new; return their number.

    Args:
        tx: The transaction.
        runs: The runs. If a run with the same task, user and window is stored already, the run is
            skipped.
    """
    return tx.run(_INSERT_RUN, [RUNS.values(run) for run in runs])


def are_open(tx: Transaction) -> bool:
    """Return True if any run of any organization has not ended.

    Args:
        tx: The transaction, or a read.
    """
    return tx.first(_NEXT, {"started_ids": []}) is not None


def next_open(tx: Transaction, started_ids: Sequence[str]) -> TaskRun | None:
    """Return the oldest open run that is not in `started_ids`.

    Args:
        tx: The transaction, or a read.
        started_ids: The ids of runs that this process works on.
    """
    return RUNS.first(tx, _NEXT, {"started_ids": list(started_ids)})


def lock_run(tx: Transaction, run_id: str) -> TaskRun | None:
    """Lock the run until the transaction ends; None for a deleted run.

    Args:
        tx: The transaction.
        run_id: The run.
    """
    return RUNS.first_locked(tx, _LOCK_RUN, {"id": run_id})


def open_run_of(tx: Transaction, task_id: str, user_id: str) -> TaskRun | None:
    """Return the open run of this task for this user, or None.

    Args:
        tx: The transaction, or a read.
        task_id: The task.
        user_id: The user.
    """
    open_runs = RUNS.select.where(equal(task_runs, "task_id", "user_id"), _OPEN).limit(1)
    return RUNS.first(tx, open_runs, {"task_id": task_id, "user_id": user_id})


def newest_of_user(tx: Transaction, user_id: str, limit: int) -> list[TaskRun]:
    """Return the user's newest runs, the newest first.

    Args:
        tx: The transaction, or a read.
        user_id: The user. Runs of all tasks are returned.
        limit: The most runs.
    """
    return list(RUNS.all(tx, _OF_USER.limit(limit), {"user_id": user_id}))


def mend_future_runs(tx: Transaction, task_id: str, now: int) -> None:
    """Set times of the task that lie in the future to now, so that its users' next windows begin.

    Such times come from a clock that had jumped ahead.

    Args:
        tx: The transaction.
        task_id: The task.
        now: The time in microseconds. Times up to a day later are left as they are.
    """
    newest = (
        select(task_runs.c.seq)
        .where(task_runs.c.task_id == task_id, task_runs.c.created_at > now + DAY)
        .limit(1)
    )
    if not tx.all(newest):
        return
    change_runs = update(task_runs).where(task_runs.c.task_id == task_id)
    # The windows of one user must differ, so each gets an offset below one second.
    own_window = now + task_runs.c.seq % SECOND
    tx.run(change_runs.where(task_runs.c.window > now + DAY).values(window=own_window))
    for name in ("created_at", "started_at", "ended_at"):
        tx.run(change_runs.where(task_runs.c[name] > now + DAY).values({name: now}))
