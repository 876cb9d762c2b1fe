"""Jobs of background tasks: one adds due runs each minute, another carries them out.

A run continues the user's last chat with the agent in a hidden fork, which is deleted at its end.
Without a chat it has a new hidden conversation instead.
Its changes of memory and its cost stay with the run. A killed job is repeated without asking the
model twice, since the message's otid leads to the turn that was already started. A run ends after
its fork is deleted, so a kill in between leaves no fork.
"""

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace
from functools import partial
from uuid import UUID

from ricordo.agents.conversations import create_conversation, fork_conversation, stop_and_delete
from ricordo.agents.request import (
    DEFAULT_MAX_STEPS,
    TurnDelivery,
    TurnOverrides,
    TurnRequest,
    task_message,
)
from ricordo.agents.turn import Answer, collect_for_job, run_turn
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.scope import Scope
from ricordo.errors import Collision, NotFound, RicordoError, Unavailable
from ricordo.features.knowledge.memories.service import changes_of
from ricordo.features.tutor.tasks import queries, service
from ricordo.features.tutor.tasks.queries import BackgroundTask, RunState, TaskRun
from ricordo.runtime import Runtime
from ricordo.storage import agents, conversations
from ricordo.storage.budgets import BudgetSpent
from ricordo.storage.engine.store import Transaction

AT_ONCE = 5  # runs at the same time
log = logging.getLogger(__name__)


async def look(runtime: Runtime, _job: Job, _report: Report) -> None:
    """Add a run for each user of each due task.

    Args:
        runtime: The running server.
        _job: Not used, since one job serves all organizations.
        _report: Not used.
    """
    store = runtime.store
    await store.write(service.follow_courses)
    for task_id in await store.read(queries.enabled_ids):
        due_ids = await store.read(partial(service.students_due, task_id=task_id))
        await store.write(partial(service.look, task_id=task_id, due_ids=due_ids))
    await store.write(service.wake)


async def carry_out(runtime: Runtime, _job: Job, report: Report) -> None:
    """Do all open runs, including another server's unfinished ones.

    Args:
        runtime: The running server.
        _job: Not used, since one job serves all organizations.
        report: Reports the finished and the started runs.

    Raises:
        Unavailable: if the server stops or loses the database meanwhile.
    """
    started_ids: list[str] = []
    finished_count = 0

    async def work() -> None:
        nonlocal finished_count
        while run := await runtime.store.read(lambda tx: queries.next_open(tx, started_ids)):
            if run.id in started_ids:  # another worker read it at the same time
                continue
            started_ids.append(run.id)
            await do(runtime, run.id)
            finished_count += 1
            report(finished_count, len(started_ids))

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(work())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors


async def do(runtime: Runtime, run_id: str) -> None:
    """Carry out one run to its end.

    A failure of the task is stored with the run.

    Args:
        runtime: The running server.
        run_id: The id of a task's run. A run that has ended is left as it is.

    Raises:
        Unavailable: if the server stops meanwhile.
    """
    start = await runtime.store.write(lambda tx: service.begin(tx, run_id, _conversation_of))
    if start is None:
        return
    task, run, scope = start
    if not run.has_result:
        run = await _result(runtime, scope, task, run)
        await runtime.store.write(lambda tx: _save_result(tx, run))
    with suppress(NotFound):
        # The user may have lost the access to the agent, so the server deletes it.
        await stop_and_delete(runtime, Scope(run.organization_id), _conversation_of(run))
    await runtime.store.write(lambda tx: _finish(tx, run))


async def _result(runtime: Runtime, scope: Scope, task: BackgroundTask, run: TaskRun) -> TaskRun:
    """Do the task, and return the run with its result or its failure."""
    try:
        return await _answer(runtime, scope, task, run)
    except Unavailable:
        raise
    except RicordoError as error:
        status: RunState = "skipped" if isinstance(error, BudgetSpent) else "failed"
        return replace(run, status=status, problem=str(error)[:1000])
    except Exception:  # a run that cannot be carried out must not delay the others
        log.exception("a background task failed", extra={"run": run.id})
        return replace(
            run,
            status="failed",
            problem="The task failed because of an error of the server. The server's log has the details.",
        )


async def _answer(runtime: Runtime, scope: Scope, task: BackgroundTask, run: TaskRun) -> TaskRun:
    """Let the agent do the task, and return the run with its result."""
    timezone = await _prepare(runtime, scope, task, run)
    message = task_message(
        task.name, task.instructions, at=run.created_at, timezone=timezone, otid=run.id
    )
    course_task = await runtime.store.read(lambda tx: service.course_task_of(tx, task))
    request = TurnRequest(
        scope=scope,
        agent_id=task.agent_id,
        messages=(message,),
        conversation_id=run.conversation_id,
        overrides=TurnOverrides(
            max_steps=task.max_steps or DEFAULT_MAX_STEPS,
            instructions=((course_task and course_task.system) or "").strip(),
            only_tools=course_task.tools if course_task else None,
        ),
        delivery=TurnDelivery(purpose="task"),
    )
    answer = await collect_for_job(await run_turn(runtime, request), "this task")
    changes = await runtime.store.read(lambda tx: changes_of(tx, scope, answer.run.id))
    problem = _problem_of(answer)
    return replace(
        run,
        status="failed" if problem else "done",
        run_id=answer.run.id,
        problem=problem,
        changes=tuple(
            {"id": change.id, "status": change.status, "label": change.label} for change in changes
        ),
        usage=answer.run.usage,
        step_count=answer.run.step_count,
    )


async def _prepare(runtime: Runtime, scope: Scope, task: BackgroundTask, run: TaskRun) -> str:
    """Create the run's conversation if it is missing; return the agent's time zone."""
    conversation_id = _conversation_of(run)

    def find(tx: Transaction) -> tuple[bool, str | None, str]:
        exists = conversations.get(tx, conversation_id) is not None
        chat_id = queries.last_chat(tx, task.agent_id, run.user_id)
        return exists, chat_id, agents.timezone(tx, scope, task.agent_id)

    exists, chat_id, timezone = await runtime.store.read(find)
    if exists:
        return timezone
    with suppress(Collision):  # created by a server that was declared dead
        if chat_id:
            await fork_conversation(runtime, scope, chat_id, is_hidden=True, id=conversation_id)
        else:
            await create_conversation(
                runtime, scope, task.agent_id, {"hidden": True}, id=conversation_id
            )
    return timezone


def _conversation_of(run: TaskRun) -> str:
    """Return the id of the run's conversation, which is derived from the run's id."""
    return f"conv-{UUID(run.id.removeprefix('taskrun-'))}"


def _problem_of(answer: Answer) -> str | None:
    if answer.failure:
        return answer.failure.message[:1000]
    if answer.run.stop_reason == "requires_approval":
        return (
            "It stopped at a tool call that needs a person's approval. Use such tools only in "
            "chats."
        )
    return None


def _save_result(tx: Transaction, run: TaskRun) -> None:
    stored = queries.lock_run(tx, run.id)
    if stored and stored.ended_at is None:
        queries.save_run(tx, run)


def _finish(tx: Transaction, ended_run: TaskRun) -> None:
    stored = queries.lock_run(tx, ended_run.id)
    if stored and stored.ended_at is None:
        queries.save_run(tx, replace(ended_run, ended_at=tx.clock.now()))


HANDLERS = (JobHandler("tasks.look", look, every_seconds=60), JobHandler(service.RUN, carry_out))
