"""Background tasks carried out: one job looks each minute what is due, another does it for five users at a time.

A run goes on from the user's last chat with the agent, in a fork that nobody is shown and that is deleted with its end; what it
changed in memory, and what it cost, stays with the run. A job that is killed is done again, and nothing is asked twice: the same
otid finds the turn that was begun.
"""

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace
from uuid import UUID

from ricordo.agents.budgets import BudgetSpent
from ricordo.agents.conversations import create_conversation, fork_conversation, stop_and_delete
from ricordo.agents.request import DEFAULT_MAX_STEPS, NewMessage, TurnRequest
from ricordo.agents.turn import Answer, collect_for_job, run_turn
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.scope import Scope
from ricordo.errors import Collision, NotFound, RicordoError, Unavailable
from ricordo.features.knowledge.memories.service import changes_of
from ricordo.features.tutor.tasks import queries, service
from ricordo.features.tutor.tasks.queries import BackgroundTask, RunState, TaskRun
from ricordo.prompt.transcript import local_time, task_event
from ricordo.runtime import Runtime
from ricordo.storage import agents, conversations
from ricordo.storage.engine.store import Transaction

AT_ONCE = 5  # users
log = logging.getLogger(__name__)


async def look(runtime: Runtime, _job: Job, _report: Report) -> None:
    """Add a run for each user of each task whose time has come."""
    store = runtime.store
    await store.write(service.follow_courses)
    for id in await store.read(queries.enabled_ids):
        await store.write(lambda tx, id=id: service.look(tx, id))  # type: ignore[misc]
    await store.write(service.wake)


async def carry_out(runtime: Runtime, _job: Job, report: Report) -> None:
    """Do all that waits, and what another server left behind."""
    taken: list[str] = []
    done = 0

    async def work() -> None:
        nonlocal done
        while run := await runtime.store.read(lambda tx: queries.next_open(tx, taken)):
            if run.id not in taken:  # another of these may have read it at the same moment
                taken.append(run.id)
                await do(runtime, run.id)
                done += 1
                report(done, len(taken))

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(work())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors


async def do(runtime: Runtime, id: str) -> None:
    """Carry out one run to its end. Raises Unavailable where the server stops in the middle of it."""
    begun = await runtime.store.write(lambda tx: service.begin(tx, id, _conversation_of))
    if begun is None:
        return
    task, run, scope = begun
    try:
        ended = await _answered(runtime, scope, task, run)
    except Unavailable:
        raise
    except RicordoError as error:
        status: RunState = "skipped" if isinstance(error, BudgetSpent) else "failed"
        ended = replace(run, status=status, problem=str(error)[:1000])
    except Exception:  # one run that cannot be done must not hold up all others
        log.exception("a background task failed", extra={"run": run.id})
        ended = replace(
            run, status="failed", problem="Something went wrong here. The server's log says what."
        )
    await runtime.store.write(lambda tx: _finish(tx, ended))
    with suppress(NotFound):
        await stop_and_delete(runtime, scope, _conversation_of(run))


async def _answered(runtime: Runtime, scope: Scope, task: BackgroundTask, run: TaskRun) -> TaskRun:
    """The run as it ends, once the agent has answered."""
    timezone = await _prepare(runtime, scope, task, run)
    event = task_event(task.name, task.instructions, local_time(run.created_at, timezone))
    request = TurnRequest(
        scope=scope,
        agent_id=task.agent_id,
        messages=(NewMessage("user", (event,), otid=run.id),),
        conversation_id=run.conversation_id,
        max_steps=task.max_steps or DEFAULT_MAX_STEPS,
        purpose="task",
    )
    answer = await collect_for_job(await run_turn(runtime, request), "this task")
    filed = await runtime.store.read(lambda tx: changes_of(tx, scope, answer.run.id))
    problem = _problem_of(answer)
    return replace(
        run,
        status="failed" if problem else "done",
        run_id=answer.run.id,
        problem=problem,
        changes=tuple({"id": one.id, "status": one.status, "label": one.label} for one in filed),
        usage=answer.run.usage,
        step_count=answer.run.step_count,
    )


async def _prepare(runtime: Runtime, scope: Scope, task: BackgroundTask, run: TaskRun) -> str:
    """Make the conversation that the run takes place in, where it is not there yet; returns the agent's time zone."""
    id = _conversation_of(run)

    def find(tx: Transaction) -> tuple[bool, str | None, str]:
        is_there = conversations.get(tx, id) is not None
        chat = queries.newest_chat(tx, task.agent_id, run.user_id)
        return is_there, chat, agents.timezone(tx, scope, task.agent_id)

    is_there, chat, timezone = await runtime.store.read(find)
    with suppress(Collision):  # made by a server that was thought dead
        if not is_there and chat:
            await fork_conversation(runtime, scope, chat, is_hidden=True, id=id)
        elif not is_there:
            await create_conversation(runtime, scope, task.agent_id, {"hidden": True}, id=id)
    return timezone


def _conversation_of(run: TaskRun) -> str:
    """The id of the run's conversation, which follows from its own."""
    return f"conv-{UUID(run.id.removeprefix('taskrun-'))}"


def _problem_of(answer: Answer) -> str | None:
    if answer.failure:
        return answer.failure.message[:1000]
    if answer.run.stop_reason == "requires_approval":
        return "It stopped at a tool that needs somebody's approval. Give the agent such tools in chats alone."
    return None


def _finish(tx: Transaction, ended: TaskRun) -> None:
    stored = queries.lock_run(tx, ended.id)
    if stored and stored.ended_at is None:
        queries.save_run(tx, replace(ended, ended_at=tx.clock.now()))


HANDLERS = (JobHandler("tasks.look", look, every_seconds=60), JobHandler(service.RUN, carry_out))
