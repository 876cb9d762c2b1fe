"""Plan background tasks: adopt the tasks of courses, and add runs of due tasks."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from ricordo.domain import cron
from ricordo.domain.clock import DAY, SECOND
from ricordo.domain.ids import new_id
from ricordo.domain.job import Job
from ricordo.domain.scope import LOCAL_ORGANIZATION, Scope, User, background_scope
from ricordo.errors import Conflict, Invalid, NotFound
from ricordo.features.tutor.courses import queries as courses
from ricordo.features.tutor.courses.applying import SCOPE, applied_course
from ricordo.features.tutor.courses.course_file import CourseTask
from ricordo.features.tutor.learning.service import students_with_due
from ricordo.features.tutor.tasks import queries
from ricordo.features.tutor.tasks.models import TaskRequest
from ricordo.features.tutor.tasks.queries import BackgroundTask, TaskRun, Trigger
from ricordo.storage import agents, jobs, users
from ricordo.storage.engine.store import Transaction

log = logging.getLogger(__name__)
RUN = "tasks.run"
ACTIVE_DAYS = 30
# The most tasks of an organization. Tasks of courses do not count, since the course files limit
# them.
MAX_TASKS = 200
_MINUTE = 60 * SECOND


def put(tx: Transaction, scope: Scope, agent_id: str, request: TaskRequest) -> BackgroundTask:
    """Create the task, or change the stored task with its name.

    Args:
        tx: The transaction.
        scope: The caller.
        agent_id: The agent that does the task.
        request: The task as it shall be. Fields that the request leaves out get their defaults.

    Raises:
        Conflict: the task belongs to a course, or there are too many.
        Invalid: the cron expression is wrong, or names no time to come.
        NotFound: there is no such agent.
    """
    agents.require(tx, scope, agent_id)
    queries.remove_orphans(tx)
    stored = queries.find_for_change(tx, scope, request.name)
    now = tx.clock.now()
    if stored and stored.course:
        raise Conflict(
            f'The task "{stored.name}" belongs to a course. '
            f"Change it in {stored.course}/agents.toml."
        )
    if stored is None and queries.count_without_course(tx, scope) >= MAX_TASKS:
        raise Conflict(
            f"There are {MAX_TASKS} tasks that belong to no course, and no more are allowed. "
            "Delete one that you no longer need."
        )
    task = BackgroundTask(
        id=stored.id if stored else new_id("task"),
        organization_id=scope.organization_id,
        name=request.name,
        agent_id=agent_id,
        instructions=request.instructions,
        max_steps=request.max_steps,
        active_days=request.active_days,
        enabled=request.enabled,
        created_at=stored.created_at if stored else now,
    )
    trigger = request.trigger
    if trigger.type == "cron":
        agent_timezone = agents.timezone(tx, scope, agent_id)
        expression = _zoned(trigger.schedule, trigger.timezone, agent_timezone)
        if cron.parse(expression).next_after(now) is None:
            raise Invalid(cron.NEVER)
        task = replace(task, cron=expression)
    else:
        task = replace(
            task,
            idle_minutes=trigger.idle_minutes,
            cooldown_minutes=trigger.cooldown_minutes,
        )
    return _store(tx, stored, task)


def _store(tx: Transaction, stored: BackgroundTask | None, task: BackgroundTask) -> BackgroundTask:
    """Store the task. Its next time changes only if its expression or state changes."""
    now = tx.clock.now()
    if stored and stored.cron == task.cron and stored.enabled == task.enabled:
        next_at = stored.next_at
    else:
        next_at = _next_time(task, now)
    task = replace(task, next_at=next_at, updated_at=now)
    if stored is None:
        queries.insert_task(tx, task)
    elif replace(task, updated_at=stored.updated_at) != stored:
        queries.change(tx, task)
    return task


def set_enabled(tx: Transaction, scope: Scope, name: str, *, is_on: bool) -> BackgroundTask:
    """Pause the task, or resume it.

    Times that passed during the pause are skipped.

    Args:
        tx: The transaction.
        scope: The caller.
        name: The task's name; of a course's task `<course>.<task>`.
        is_on: False to pause the task.

    Raises:
        NotFound: there is no such task.
    """
    _get(tx, scope, name)
    stored = queries.get_for_change(tx, scope, name)
    return _store(tx, stored, replace(stored, enabled=is_on))


def _get(tx: Transaction, scope: Scope, name: str) -> BackgroundTask:
    """Return the task; if its course was just applied, adopt the task first.

    Raises NotFound.
    """
    if queries.find(tx, scope, name) is None:
        follow_courses(tx)
    return queries.get(tx, scope, name)


def delete(tx: Transaction, scope: Scope, name: str) -> None:
    """Delete the task and its history.

    Args:
        tx: The transaction.
        scope: The caller.
        name: The task's name.

    Raises:
        NotFound: there is no such task.
        Conflict: the task belongs to a course.
    """
    stored = queries.get(tx, scope, name)
    if stored.course:
        raise Conflict(
            f'The task "{name}" belongs to a course. Remove it from {stored.course}/agents.toml, '
            "or disable it."
        )
    queries.remove(tx, stored)


def start(tx: Transaction, scope: Scope, name: str, user: str | None) -> list[TaskRun]:
    """Run the task now: for one user, or for all of its users.

    A run that is already open is returned unchanged.

    Args:
        tx: The transaction.
        scope: The caller. A caller without access to all users starts the task for their user only.
        name: The task's name.
        user: The user's id or identifier. None is all users who were active lately. A task that
            waits for reviews then runs only for students with a due review.

    Returns:
        The runs, which a job carries out later.

    Raises:
        NotFound: there is no such task or user.
        Conflict: the user is disabled.
    """
    task = _get(tx, scope, name)
    now = tx.clock.now()
    user_ids = _user_ids(tx, scope, task, user)
    # Lock it, so that a simultaneous second start sees the runs of the first.
    queries.lock(tx, task.id)
    runs = []
    new_runs = []
    for user_id in user_ids:
        run = queries.open_run_of(tx, task.id, user_id)
        if run is None:
            run = _new(tx, task, user_id, now, "manual")
            new_runs.append(run)
        runs.append(run)
    queries.add_runs(tx, new_runs)
    wake(tx)
    return runs


def _user_ids(tx: Transaction, scope: Scope, task: BackgroundTask, name: str | None) -> list[str]:
    """Return the ids of the users for whom the task is started."""
    if name:
        user = users.require(tx, scope, name)
        if user.disabled_at:
            raise Conflict(f'The user "{name[:80]}" is disabled, so no task runs for this user.')
        return [user.id]
    if scope.uses_every_agent:
        now = tx.clock.now()
        active = queries.active(tx, _counted(tx, task), now - task.active_days * DAY, now)
        return list(_with_due(tx, task, dict(active)))
    return [scope.subject] if scope.subject else []


def students_due(tx: Transaction, task_id: str) -> frozenset[str] | None:
    """Return the ids of the students for whom `look` would now find a due review.

    It reads the facts of all students, so it is no part of the transaction that writes.

    Args:
        tx: A read.
        task_id: The task.

    Returns:
        The ids; None if the task is not due, or does not wait for reviews.
    """
    task = queries.by_id(tx, task_id)
    now = tx.clock.now()
    if task is None or not task.enabled or (task.cron and (task.next_at or now + 1) > now):
        return None
    course_task = course_task_of(tx, task)
    if course_task is None or not course_task.only_if_due:
        return None
    return frozenset(_with_due(tx, task, _windows(tx, task, now)))


def look(tx: Transaction, task_id: str, due_ids: frozenset[str] | None = None) -> int:
    """Add the runs of each due window; return their number.

    Args:
        tx: The transaction.
        task_id: The task. One that was deleted or paused gets no runs.
        due_ids: The students with a due review, for a task that waits for reviews (see
            `students_due`). By default each student is examined here.
    """
    task = queries.lock(tx, task_id)
    now = tx.clock.now()
    if task is None or not task.enabled:
        return 0
    if agents.find(tx, Scope(task.organization_id), task.agent_id) is None:
        return 0  # its windows wait until the course creates the agent again
    if task.course and course_task_of(tx, task) is None:
        return 0  # its windows wait until the course's file can be read
    queries.mend_future_runs(tx, task.id, now)
    if task.cron and (task.next_at is None or task.next_at > now):
        _plan_sooner(tx, task, now)
        return 0
    windows = _windows(tx, task, now)
    if due_ids is None:
        windows = _with_due(tx, task, windows)
    else:
        windows = {user_id: window for user_id, window in windows.items() if user_id in due_ids}
    if not task.cron:
        return _add_all(tx, task, windows, "idle")
    queries.change(tx, replace(task, next_at=_next_time(task, now)))
    return _add_all(tx, task, windows, "cron")


def _windows(tx: Transaction, task: BackgroundTask, now: int) -> dict[str, int]:
    """Return the window of each user for whom the due task runs."""
    if not task.cron:
        return _idle_windows(tx, task, now)
    # If several times passed while no server ran, they count as one window: the first of them.
    since = now - task.active_days * DAY
    return dict.fromkeys(queries.active(tx, _counted(tx, task), since, now), task.next_at or now)


def _with_due(tx: Transaction, task: BackgroundTask, windows: dict[str, int]) -> dict[str, int]:
    """Return the windows of the task's students.

    For a task that waits for reviews these are the students with a review that is due.
    """
    stored = courses.find(tx, SCOPE, task.course) if task.course else None
    course = applied_course(stored.source, stored.name) if stored else None
    course_task = course_task_of(tx, task)
    if course is None or course_task is None or not course_task.only_if_due:
        return windows
    students = users.ROWS.by_ids(tx, list(windows)) if windows else []
    due = students_with_due(tx, students, course)
    return {user_id: window for user_id, window in windows.items() if user_id in due}


def _idle_windows(tx: Transaction, task: BackgroundTask, now: int) -> dict[str, int]:
    """Return the last activity of each idle user without a run since then.

    Users whose last run was within the task's cooldown are left out.
    """
    since = now - task.active_days * DAY
    idle_before = now - (task.idle_minutes or 0) * _MINUTE
    cooled_before = now - (task.cooldown_minutes or 0) * _MINUTE
    last_runs = queries.last_idle(tx, task.id)
    windows = {}
    for user_id, active_at in queries.active(tx, _counted(tx, task), since, idle_before).items():
        window, run_at = last_runs.get(user_id, (-1, -1))
        if window < active_at and run_at <= cooled_before:
            windows[user_id] = active_at
    return windows


def _plan_sooner(tx: Transaction, task: BackgroundTask, now: int) -> None:
    """Correct the task's next time if it was planned while the clock was ahead.

    The new time is stored only if it is earlier.
    """
    if task.next_at is None or task.next_at <= now + DAY:
        return
    next_at = _next_time(task, now + DAY)
    if next_at is not None and next_at < task.next_at:
        queries.change(tx, replace(task, next_at=_next_time(task, now)))


def _add_all(
    tx: Transaction, task: BackgroundTask, windows: Mapping[str, int], trigger: Trigger
) -> int:
    runs = [_new(tx, task, user_id, window, trigger) for user_id, window in windows.items()]
    return queries.add_runs(tx, runs)


def _new(
    tx: Transaction, task: BackgroundTask, user_id: str, window: int, trigger: Trigger
) -> TaskRun:
    return TaskRun(
        id=new_id("taskrun"),
        organization_id=task.organization_id,
        task_id=task.id,
        user_id=user_id,
        window=window,
        trigger=trigger,
        created_at=tx.clock.now(),
    )


def wake(tx: Transaction) -> None:
    """Add the job that carries out the open runs, unless such a job waits."""
    if queries.are_open(tx):
        jobs.add(tx, Job(RUN, LOCAL_ORGANIZATION, key=RUN, is_single=True))


def _zoned(expression: str, timezone: str | None, default_timezone: str) -> str:
    """Return the expression with its time zone, or the default one, in front.

    UTC is left out, since it is the zone of an expression without one. Raises Invalid.
    """
    expression_timezone = cron.parse(expression, timezone).timezone
    if cron.names_zone(expression):
        return expression
    if expression_timezone != "UTC":
        return f"CRON_TZ={expression_timezone} {expression}"
    if timezone is None and default_timezone != "UTC":
        return f"CRON_TZ={default_timezone} {expression}"
    return expression


def _next_time(task: BackgroundTask, now: int) -> int | None:
    if not task.cron or not task.enabled:
        return None
    try:
        return cron.read_stored(task.cron).next_after(now)
    except Invalid as error:
        # For example, a time zone may no longer exist. One task must not stop the others.
        log.warning("a task has no next time", extra={"task": task.name, "reason": error})
        return None


def _counted(tx: Transaction, task: BackgroundTask) -> Iterable[str]:
    """Return the agents whose turns count as activity: the task's and those of its course."""
    course = courses.find(tx, SCOPE, task.course) if task.course else None
    return {task.agent_id, *(course.agents.values() if course else ())}


def follow_courses(tx: Transaction) -> None:
    """Bring the tasks of courses in line with their files as last applied.

    A paused task stays paused. A task and its history are deleted only if the file no longer names
    it, or the course was deleted. A task without an agent waits for the agent. If the file cannot
    be read, all its tasks wait.
    """
    queries.remove_orphans(tx)
    for course in courses.all_courses(tx, SCOPE):
        applied = applied_course(course.source, course.name)
        if applied is None:
            continue
        stored = {task.name: task for task in queries.of_course(tx, SCOPE, course.name)}
        for course_task in applied.tasks:
            name = f"{course.name}.{course_task.name}"
            old_task = stored.pop(name, None)
            agent_id = course.agents.get(course_task.agent)
            agent = agents.find(tx, SCOPE, agent_id) if agent_id else None
            if agent_id is None or agent is None:
                continue
            if old_task is None and queries.find(tx, SCOPE, name):
                continue  # a task of this name was created by a request, and is kept
            new_task = BackgroundTask(
                id=new_id("task"),
                organization_id=SCOPE.organization_id,
                name=name,
                agent_id=agent_id,
                instructions="",
                course=course.name,
                created_at=tx.clock.now(),
            )
            expression = None
            if course_task.cron:
                expression = _zoned(course_task.cron, course_task.timezone, agent.timezone)
            if old_task:
                old_task = queries.lock(tx, old_task.id)
            changed = replace(
                old_task or new_task,
                agent_id=agent_id,
                instructions=course_task.instructions.strip(),
                cron=expression,
                idle_minutes=course_task.idle_minutes,
                cooldown_minutes=course_task.cooldown_minutes,
                max_steps=course_task.max_steps,
                active_days=course_task.active_days or ACTIVE_DAYS,
            )
            _store(tx, old_task, changed)
        for removed_task in stored.values():
            queries.remove(tx, removed_task)


def course_task_of(tx: Transaction, task: BackgroundTask) -> CourseTask | None:
    """Return the task as its course's file defines it; None if no course defines it."""
    course = courses.find(tx, SCOPE, task.course) if task.course else None
    applied = applied_course(course.source, course.name) if course else None
    for course_task in applied.tasks if applied else ():
        if f"{task.course}.{course_task.name}" == task.name:
            return course_task
    return None


def begin(
    tx: Transaction, run_id: str, conversation_of: Callable[[TaskRun], str]
) -> tuple[BackgroundTask, TaskRun, Scope] | None:
    """Start or resume a run, and return it with its scope.

    Args:
        tx: The transaction.
        run_id: The id of a task's run.
        conversation_of: Returns the id of the run's conversation, which is stored with the run.

    Returns:
        The task, the run, and the scope of its user. The run has its result if it is skipped now,
        or if only its conversation is left to delete. None for a run that has ended, whose task or
        user was deleted, or that is skipped before its start.
    """
    run = queries.lock_run(tx, run_id)
    now = tx.clock.now()
    if run is None or run.ended_at is not None:
        return None
    task = queries.by_id(tx, run.task_id)
    user = users.find(tx, Scope(run.organization_id), run.user_id)
    if task is None or user is None:  # it was just deleted, together with its runs
        return None
    scope = background_scope(user, "background task")
    if run.has_result:
        return task, run, scope
    if reason := _skip_reason(tx, scope, task, run=run, user=user):
        run = replace(run, status="skipped", problem=reason)
        if run.conversation_id is None:
            queries.save_run(tx, replace(run, ended_at=now))
            return None
        queries.save_run(tx, run)
        return task, run, scope
    run = replace(
        run,
        status="running",
        started_at=run.started_at or now,
        conversation_id=conversation_of(run),
    )
    queries.save_run(tx, run)
    return task, run, scope


def _skip_reason(
    tx: Transaction, scope: Scope, task: BackgroundTask, *, run: TaskRun, user: User
) -> str | None:
    if user.disabled_at is not None:
        return "The user is disabled."
    if not task.enabled and run.trigger != "manual":
        return "The task was disabled before this run."
    if task.course and course_task_of(tx, task) is None:
        # Without the file, the tools that the task may use are unknown.
        return "The course's file no longer defines this task, or cannot be read."
    try:
        agents.require(tx, scope, task.agent_id)
    except NotFound:
        return "The user may no longer use the agent."
    return None
