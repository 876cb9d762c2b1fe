"""End a run that did not end by itself: after a failure, cancel or kill.

The user's messages enter the window, each call without a result gets one that says so, and the run
is closed. After this the conversation is usable and the next message is answered. Only messages
that a provider refused as a bad request or as too long stay out of the window. Otherwise every
later request would contain them and be refused too. They remain in the history.
"""

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from ricordo.agents.tracing import FailedCall
from ricordo.domain.agent import Conversation
from ricordo.domain.ids import new_id
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.message import CompactionPart, Message, ToolReturnPart
from ricordo.domain.run import DATABASE_FAILED, INTERRUPTED, Run, StopReason
from ricordo.prompt import transcript
from ricordo.prompt.transcript import interrupted
from ricordo.runtime import Runtime
from ricordo.search.index import insert_messages
from ricordo.storage import conversations, jobs, messages, runs
from ricordo.storage.engine.store import Transaction
from ricordo.tools.toolbox import failed_result

log = logging.getLogger(__name__)
CALLBACK = "callback"
CANCELLED = "The user cancelled the request, so the tool call was denied."
SWEEP_SECONDS = 20.0  # a lease lasts thirty
_CALLBACK_ATTEMPTS = 6  # the last attempt is about twelve minutes after the first
_REFUSED = ("llm_bad_request", "context_window_exceeded")


def close_run(
    tx: Transaction,
    run: Run,
    reason: StopReason,
    error: dict[str, Any] | None = None,
    failed: FailedCall | None = None,
) -> Run | None:
    """End the run for this reason; return None if it had ended already.

    The run is ended even if another process has its lease.

    Args:
        tx: The transaction.
        run: The run as the caller read it; its stored state is what is ended.
        reason: The reason that is stored with the run.
        error: `type` and `message` of the failure; None if it was a cancel. After some refusals by
            a provider, the type keeps the run's messages out of the window.
        failed: The model call that was interrupted or failed, which is stored as a step.
    """
    # the run's progress may have been saved since `run` was read
    locked_run = runs.lock(tx, run.id)
    if locked_run is None or locked_run.ended_at is not None:
        return None
    now = tx.clock.now()
    closed_run = locked_run.ended(reason, now, error)
    runs.end(tx, closed_run)
    if failed:
        step, trace = failed
        runs.insert_step(tx, step)
        if trace:
            runs.insert_trace(tx, trace)
    add_callback(tx, closed_run)
    conversation = conversations.get(tx, run.conversation_id)
    if conversation is None:
        return closed_run
    _close_window(tx, conversation, closed_run)
    return closed_run


def _close_window(tx: Transaction, conversation: Conversation, run: Run) -> None:
    """Put the run's messages into the window, with results for calls that have none."""
    now = tx.clock.now()
    error = run.error
    run_messages = messages.of_run(tx, run.id)
    missing = _missing_in_window(conversation, run_messages)
    entering = [] if error and error["type"] in _REFUSED else missing
    call_outcome = _outcome_of_open_calls(run.stop_reason, error)
    results = _results_of_unused_answer(tx, conversation, run_messages, call_outcome)
    results = results or _results_for_open_calls(run_messages, call_outcome)
    if results:
        results = replace(results, id=new_id("message"), created_at=now, run_id=run.id)
        insert_messages(tx, [results])
        # Results come right after the answer to their calls, before other messages.
        answers = [message for message in missing if message.role == "approval"]
        others = [message for message in entering if message not in answers]
        entering = [*answers, results, *others] if answers else [*entering, results]
        missing = [*missing, results]
    conversations.save_window(
        tx,
        conversation.id,
        [*conversation.window, *(message.id for message in entering)],
        conversation.prompt_key,
        added=len(missing),
        ended=run,
    )


def _missing_in_window(
    conversation: Conversation, run_messages: Sequence[Message]
) -> list[Message]:
    """Return the run's messages that the window lacks, except those that were summarized."""
    window_ids = set(conversation.window)
    for message in run_messages:
        for part in message.parts:
            if isinstance(part, CompactionPart):
                window_ids.update(part.evicted)
    return [message for message in run_messages if message.id not in window_ids]


def cancel_open(tx: Transaction, run: Run) -> Run | None:
    """Cancel an open run of any process; return None if it had ended already.

    The turns of a talk among agents are cancelled too.
    """
    closed_run = close_run(tx, run, "cancelled")
    for part in runs.by_ids(tx, run.part_ids) if closed_run else ():
        close_run(tx, part, "cancelled")
    return closed_run


def _outcome_of_open_calls(reason: StopReason | None, error: dict[str, Any] | None) -> str:
    """Return the result for calls that were open when the run ended."""
    if reason == "cancelled":
        return transcript.CANCELLED
    is_server_gone = error is None or error["type"] == INTERRUPTED
    if is_server_gone:
        return transcript.INTERRUPTED
    return transcript.FAILED


def heal(tx: Transaction, run: Run, *, is_gone: bool = False) -> bool:
    """Close a run whose lease has expired, or on which no process works.

    Returns False if the run has ended or its lease is valid.

    Args:
        tx: The transaction.
        run: The run as the caller read it.
        is_gone: Its process has given it up, because the database refused to save its end. So the
            lease does not matter.
    """
    locked_run = runs.lock(tx, run.id)
    if locked_run is None or locked_run.ended_at is not None:
        return False
    if locked_run.lease_expires_at > tx.clock.now() and not is_gone:
        return False
    message = DATABASE_FAILED if is_gone else "The server that ran this turn is gone."
    error = {"type": INTERRUPTED, "message": message}
    return close_run(tx, locked_run, "error", error) is not None


def close_expired(tx: Transaction, live: Collection[str] = ()) -> list[Run]:
    return [run for run in runs.expired(tx) if run.id not in live and heal(tx, run)]


async def close_expired_runs(runtime: Runtime) -> int:
    """Close the runs whose lease has expired; return their number.

    Call it before anything writes to their conversations.
    """
    closed = await runtime.store.write(lambda tx: close_expired(tx, frozenset(runtime.live)))
    if closed:
        log.warning("closed runs that a server left open", extra={"runs": len(closed)})
    return len(closed)


async def _run_job(runtime: Runtime, _job: Job, _report: Report) -> None:
    await close_expired_runs(runtime)


HANDLER = JobHandler("expired_runs", _run_job, every_seconds=SWEEP_SECONDS)


def close_all(tx: Transaction) -> list[Run]:
    error = {"type": INTERRUPTED, "message": "The server stopped during this turn."}
    return [
        closed_run
        for run in runs.open_runs(tx)
        if (closed_run := close_run(tx, run, "error", error))
    ]


def denied(tx: Transaction, request: Message, reason: str) -> Message:
    """Return the message that answers every call of this request with a denial.

    It is not stored yet.

    Args:
        tx: The transaction, for its time.
        request: The message whose calls wait.
        reason: The text of each result, which the agent reads.
    """
    message = replace(
        request, id=new_id("message"), role="tool", otid=None, seq=0, created_at=tx.clock.now()
    )
    return replace(message, parts=expired_results(request, reason))


def expired_results(request: Message, reason: str) -> tuple[ToolReturnPart, ...]:
    return tuple(failed_result(call, reason) for call in request.tool_calls)


def add_callback(tx: Transaction, run: Run) -> None:
    """Add the job that reports the run's end, if the request asked for a callback.

    Call it in the transaction that ends the run.
    """
    if run.ended_at is None or not run.callback.get("url"):
        return
    payload = {"run_id": run.id}
    key = f"{CALLBACK}:{run.id}"
    job = Job(
        CALLBACK,
        run.organization_id,
        payload,
        key=key,
        most_attempts=_CALLBACK_ATTEMPTS,
        user_id=run.user_id,
    )
    jobs.add(tx, job)


def _results_of_unused_answer(
    tx: Transaction, conversation: Conversation, run_messages: list[Message], call_outcome: str
) -> Message | None:
    """Return results for calls whose answer this run accepted but did not apply.

    Results of tools that the client ran stay.
    """
    answer = next(
        (
            message
            for message in run_messages
            if message.role == "approval" and not message.tool_calls
        ),
        None,
    )
    if answer is None or answer.id in conversation.window:
        return None
    request = messages.by_ids(tx, conversation.window[-1:])
    if not request or not request[0].is_waiting:
        return None
    client_results = {part.call_id: part for part in answer.tool_returns}
    results = interrupted(request[0], list(request[0].tool_calls), call_outcome)
    parts = tuple(client_results.get(part.call_id, part) for part in results.tool_returns)
    return replace(results, parts=parts, is_untrusted=results.is_untrusted or answer.is_untrusted)


def _results_for_open_calls(run_messages: list[Message], call_outcome: str) -> Message | None:
    answered: set[str] = set()
    for message in reversed(run_messages):
        if message.tool_calls:
            # Only the last calls can be open. Earlier ones are skipped, since some models reuse
            # their ids.
            open_calls = [call for call in message.tool_calls if call.call_id not in answered]
            if open_calls:
                return interrupted(message, open_calls, call_outcome)
            return None
        answered |= {part.call_id for part in message.tool_returns}
    return None
