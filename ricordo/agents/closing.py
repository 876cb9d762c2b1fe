"""Ending a run that did not end by itself: a failure, a cancel, or a server that was killed in the middle of it.

What the user said is put into the window, a call without a result gets one that says so, and the run is closed. After that the
conversation is as good as any other: the next message is answered. Only what a provider refused as a bad request stays out of the
window, though not out of the history: with it every later request would be refused too, and the agent could never answer again.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from ricordo.domain.ids import new_id
from ricordo.domain.message import Message
from ricordo.domain.run import Run, StopReason, status_after
from ricordo.prompt.transcript import interrupted
from ricordo.storage import conversations, messages, runs
from ricordo.storage.store import Transaction

_REFUSED = ("llm_bad_request", "context_window_exceeded")


def close_run(tx: Transaction, run: Run, reason: StopReason, error: dict[str, Any] | None = None) -> Run | None:
    """End the run for this reason, whoever holds its lease; None where it had ended already."""
    held = runs.hold(tx, run.id)  # its progress may have been saved since `run` was read
    if held is None or held.ended_at is not None:
        return None
    now = tx.clock.now()
    ended = replace(
        held,
        status=status_after(reason),
        stop_reason=reason,
        error=error,
        ended_at=now,
        duration_ns=(now - run.created_at) * 1000,
    )
    runs.end(tx, ended)
    conversation = conversations.get(tx, run.conversation_id)
    if conversation is None:
        return ended
    said = messages.of_run(tx, run.id)
    missing = [message for message in said if message.id not in conversation.window]
    entering = [] if error and error["type"] in _REFUSED else missing
    if results := _results_for_open_calls(said):
        results = replace(results, id=new_id("message"), created_at=now)
        messages.insert_all(tx, [results])
        missing, entering = [*missing, results], [*entering, results]
    conversations.save_window(
        tx,
        conversation.id,
        [*conversation.window, *(message.id for message in entering)],
        conversation.prompt_key,
        added=len(missing),
        ended_at=now,
        run_ms=(now - run.created_at) // 1000,
        stop_reason=reason,
    )
    return ended


def heal(tx: Transaction, run: Run) -> bool:
    """Close a run whose lease has expired: whoever held it is gone. False where it ended, or its lease was renewed."""
    held = runs.hold(tx, run.id)
    if held is None or held.ended_at is not None or held.lease_expires_at > tx.clock.now():
        return False
    error = {"type": "interrupted", "message": "The server that ran this turn is gone."}
    return close_run(tx, held, "error", error) is not None


def close_expired(tx: Transaction, live: Collection[str] = ()) -> list[Run]:
    """Close the runs whose lease has expired, as any server of a shared database does; `live` are its own, which are alive."""
    return [run for run in runs.expired(tx) if run.id not in live and heal(tx, run)]


def close_all(tx: Transaction) -> list[Run]:
    """Close every open run, as the only server of a database does when it starts: whoever held those leases is gone."""
    error = {"type": "interrupted", "message": "The server stopped during this turn."}
    return [ended for run in runs.open_runs(tx) if (ended := close_run(tx, run, "error", error))]


def _results_for_open_calls(said: list[Message]) -> Message | None:
    answered: set[str] = set()
    for message in reversed(said):
        if message.tool_calls:
            # Only the last calls can be open; some models use the ids of earlier ones again.
            open_calls = [call for call in message.tool_calls if call.call_id not in answered]
            return interrupted(message, open_calls) if open_calls else None
        answered |= {part.call_id for part in message.tool_returns}
    return None
