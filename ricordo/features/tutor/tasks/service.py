"""Background tasks planned: courses' tasks taken over, and for every window that has come a run for each user."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache

from ricordo.domain.clock import DAY, SECOND
from ricordo.domain.ids import new_id
from ricordo.domain.job import Job
from ricordo.domain.scope import LOCAL_ORGANIZATION, Scope, User, background_scope
from ricordo.errors import Conflict, Invalid, NotFound
from ricordo.features.automation.schedules import cron
from ricordo.features.tutor.courses import queries as courses
from ricordo.features.tutor.courses.course_file import CourseTask, parse_course
from ricordo.features.tutor.courses.service import SCOPE
from ricordo.features.tutor.tasks import queries
from ricordo.features.tutor.tasks.models import TaskRequest
from ricordo.features.tutor.tasks.queries import BackgroundTask, TaskRun, Trigger
from ricordo.storage import agents, jobs, users
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction

log = logging.getLogger(__name__)
RUN = "tasks.run"
ACTIVE_DAYS = 30
MOST = 200  # tasks of an organization that no course brought
_MINUTE = 60 * SECOND


def put(tx: Transaction, scope: Scope, agent_id: str, asked: TaskRequest) -> BackgroundTask:
    """Make the task, or change the one with its name. Raises Conflict where a course has it, Invalid, NotFound."""
    agents.require(tx, scope, agent_id)
    stored, now = queries.find(tx, scope, asked.name), tx.clock.now()
    if stored and stored.course:
        raise Conflict(
            f'The task "{stored.name}" belongs to a course. Change it in {stored.course}/agents.toml.'
        )
    if stored is None and len(queries.page(tx, scope, Page(limit=MOST))) >= MOST:
        raise Conflict(
            f"There are {MOST} tasks, and that is the most. Delete one that you no longer need."
        )
    when = asked.trigger
    wanted = BackgroundTask(
        id=stored.id if stored else new_id("task"),
        organization_id=scope.organization_id,
        name=asked.name,
        agent_id=agent_id,
        instructions=asked.instructions,
        cron=_zoned(when.schedule, when.timezone, agents.timezone(tx, scope, agent_id))
        if when.type == "cron"
        else None,
        idle_minutes=when.idle_minutes if when.type == "idle" else None,
        cooldown_minutes=when.cooldown_minutes if when.type == "idle" else None,
        max_steps=asked.max_steps,
        active_days=asked.active_days,
        enabled=asked.enabled,
        created_at=stored.created_at if stored else now,
    )
    if wanted.cron and cron.parse(wanted.cron).next_after(now) is None:
        raise Invalid(cron.NEVER)
    return _store(tx, stored, wanted)


def _store(
    tx: Transaction, stored: BackgroundTask | None, wanted: BackgroundTask
) -> BackgroundTask:
    """Store the task as it is wanted; its next time stays where the expression does."""
    now = tx.clock.now()
    is_same_time = (
        stored is not None and stored.cron == wanted.cron and stored.enabled == wanted.enabled
    )
    next_at = stored.next_at if stored and is_same_time else _next_time(wanted, now)
    wanted = replace(wanted, next_at=next_at, updated_at=now)
    if stored is None:
        queries.insert_task(tx, wanted)
    elif replace(wanted, updated_at=stored.updated_at) != stored:
        queries.change(tx, wanted)
    return wanted


def set_enabled(tx: Transaction, scope: Scope, name: str, *, is_on: bool) -> BackgroundTask:
    """Pause the task, or let it go on from now: what came meanwhile is not made up for. Raises NotFound."""
    stored = _get(tx, scope, name)
    return _store(tx, stored, replace(stored, enabled=is_on))


def _get(tx: Transaction, scope: Scope, name: str) -> BackgroundTask:
    """Return the task; of a course that was applied a moment ago, it is taken over first. Raises NotFound."""
    if queries.find(tx, scope, name) is None:
        follow_courses(tx)
    return queries.get(tx, scope, name)


def delete(tx: Transaction, scope: Scope, name: str) -> None:
    """Delete the task and its history. Raises NotFound, and Conflict where a course has it."""
    stored = queries.get(tx, scope, name)
    if stored.course:
        raise Conflict(
            f'The task "{name}" belongs to a course. Take it out of {stored.course}/agents.toml, or disable it.'
        )
    queries.remove(tx, stored)


def start(tx: Transaction, scope: Scope, name: str, user: str | None) -> list[TaskRun]:
    """Let the task run now: for this user, or for everybody it is for. One that is under way is returned as it is.

    Whoever may see one user alone, and uses no agents of others, runs it for that user. Raises NotFound, Conflict.
    """
    task, now = _get(tx, scope, name), tx.clock.now()
    if user:
        found = users.require(tx, scope, user)
        if found.disabled_at:
            raise Conflict(f'The user "{user[:80]}" is disabled, so nothing is done for them.')
        ids = [found.id]
    elif scope.uses_every_agent:
        ids = list(queries.active(tx, _counted(tx, task), now - task.active_days * DAY, now))
    else:
        ids = [scope.subject] if scope.subject else []
    queries.lock(
        tx, task.id
    )  # so that of two who start it at once the second finds the runs of the first
    known = {id: queries.open_run_of(tx, task.id, id) for id in ids}
    new = {id: _new(tx, task, id, now, "manual") for id, run in known.items() if run is None}
    queries.add_runs(tx, [*new.values()])
    wake(tx)
    return [known[id] or new[id] for id in ids]


def look(tx: Transaction, task_id: str) -> int:
    """Add the runs of each window that has come; returns how many."""
    task, now = queries.lock(tx, task_id), tx.clock.now()
    if task is None or not task.enabled:
        return 0
    queries.mend_future_runs(tx, task.id, now)
    since = now - task.active_days * DAY
    if task.cron:
        if task.next_at is None or task.next_at > now:
            _plan_sooner(tx, task, now)
            return 0
        # Times that passed while no server ran are one window, the first of them.
        due = dict.fromkeys(queries.active(tx, _counted(tx, task), since, now), task.next_at)
        queries.change(tx, replace(task, next_at=_next_time(task, now)))
        return _add_all(tx, task, due, "cron")
    last = queries.active(tx, _counted(tx, task), since, now - (task.idle_minutes or 0) * _MINUTE)
    done, cool = queries.last_idle(tx, task.id), now - (task.cooldown_minutes or 0) * _MINUTE
    never = (-1, -1)
    idle = {
        id: at
        for id, at in last.items()
        if done.get(id, never)[0] < at and done.get(id, never)[1] <= cool
    }
    return _add_all(tx, task, idle, "idle")


def _plan_sooner(tx: Transaction, task: BackgroundTask, now: int) -> None:
    """Plan a task anew whose next time was planned by a clock that had jumped ahead: one that comes sooner is left out."""
    if task.next_at is None or task.next_at <= now + DAY:
        return
    next_at = _next_time(task, now + DAY)
    if next_at is not None and next_at < task.next_at:
        queries.change(tx, replace(task, next_at=_next_time(task, now)))


def _add_all(
    tx: Transaction, task: BackgroundTask, windows: Mapping[str, int], trigger: Trigger
) -> int:
    return queries.add_runs(
        tx, [_new(tx, task, id, window, trigger) for id, window in windows.items()]
    )


def _new(
    tx: Transaction, task: BackgroundTask, user_id: str, window: int, trigger: Trigger
) -> TaskRun:
    return TaskRun(
        new_id("taskrun"),
        task.organization_id,
        task.id,
        user_id,
        window,
        trigger,
        created_at=tx.clock.now(),
    )


def wake(tx: Transaction) -> None:
    """Add the job that carries out what waits, unless it waits already."""
    if queries.are_open(tx):
        jobs.add(tx, Job(RUN, LOCAL_ORGANIZATION, key=RUN, is_single=True))


def _zoned(expression: str, timezone: str | None, usual: str) -> str:
    """Return the expression with its time zone before it, or the usual one. Raises Invalid."""
    read = cron.parse(expression, timezone)
    if timezone is None and read.timezone == "UTC" and usual != "UTC" and "TZ=" not in expression:
        return f"CRON_TZ={usual} {expression}"
    return (
        expression
        if read.timezone == "UTC" or "TZ=" in expression
        else f"CRON_TZ={read.timezone} {expression}"
    )


def _next_time(task: BackgroundTask, now: int) -> int | None:
    try:
        return cron.read_stored(task.cron).next_after(now) if task.cron and task.enabled else None
    except (
        Invalid
    ) as error:  # such as a time zone that is no more: one task must not hold up the others
        log.warning("a task has no next time", extra={"task": task.name, "reason": error})
        return None


def _counted(tx: Transaction, task: BackgroundTask) -> Iterable[str]:
    """The ids of the agents that count for who is active: the task's, and the others of its course."""
    course = courses.find(tx, SCOPE, task.course) if task.course else None
    return {task.agent_id, *(course.agents.values() if course else ())}


def follow_courses(tx: Transaction) -> None:
    """Make the tasks of courses what their files, as they were applied last, say. One that is paused stays so."""
    for course in courses.everyone(tx, SCOPE):
        wanted = {
            f"{course.name}.{one.name}": one for one in _tasks_in(course.source or "", course.name)
        }
        stored = {task.name: task for task in queries.of_course(tx, SCOPE, course.name)}
        for name, one in wanted.items():
            agent_id = course.agents.get(one.agent)
            found = agents.find(tx, SCOPE, agent_id) if agent_id else None
            if agent_id is None or found is None:
                continue
            known, now = stored.pop(name, None), tx.clock.now()
            if known is None and queries.find(tx, SCOPE, name):
                continue  # a task of this name was made by a request, and stays
            new = BackgroundTask(
                new_id("task"),
                SCOPE.organization_id,
                name,
                agent_id,
                "",
                course.name,
                created_at=now,
            )
            changed = replace(
                known or new,
                agent_id=agent_id,
                instructions=one.instructions.strip(),
                cron=_zoned(one.cron, one.timezone, found.timezone) if one.cron else None,
                idle_minutes=one.idle_minutes,
                cooldown_minutes=one.cooldown_minutes,
                active_days=one.active_days or ACTIVE_DAYS,
            )
            _store(tx, known, changed)
        for gone in stored.values():
            queries.remove(tx, gone)


@lru_cache(maxsize=64)
def _tasks_in(source: str, name: str) -> tuple[CourseTask, ...]:
    try:
        return parse_course(source, name).tasks if source else ()
    except Invalid:  # applied by an older version that allowed it
        return ()


def begin(
    tx: Transaction, id: str, conversation_of: Callable[[TaskRun], str]
) -> tuple[BackgroundTask, TaskRun, Scope] | None:
    """Take up a run, with the scope to do it in; None where it ended, or is not to be done any more."""
    run, now = queries.lock_run(tx, id), tx.clock.now()
    if run is None or run.ended_at is not None:
        return None
    task = queries.by_id(tx, run.task_id)
    user = users.find(tx, Scope(run.organization_id), run.user_id)
    if task is None or user is None:  # deleted at this moment, and so is the run
        return None
    scope = background_scope(user, "background task")
    if why := _why_not(tx, scope, task, run, user):
        queries.save_run(tx, replace(run, status="skipped", problem=why, ended_at=now))
        return None
    run = replace(
        run,
        status="running",
        started_at=run.started_at or now,
        conversation_id=conversation_of(run),
    )
    queries.save_run(tx, run)
    return task, run, scope


def _why_not(
    tx: Transaction, scope: Scope, task: BackgroundTask, run: TaskRun, user: User
) -> str | None:
    if user.disabled_at is not None:
        return "The user is disabled."
    if not task.enabled and run.trigger != "manual":
        return "The task was disabled before this began."
    try:
        agents.require(tx, scope, task.agent_id)
    except NotFound:
        return "The user may not use the agent any more."
    return None
