"""The path of a message. Every interface of Ricordo calls `run_turn`; start reading there.

  run_turn → start_turn (lease, window, input) → run_loop (model, tools, save) → events to readers

A turn runs as a separate task and waits for no reader. A reader that leaves does not cancel it.
`docs/internals/message-path.md` lists the functions.
"""

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ricordo.agents.feed import Feed, Reader
from ricordo.agents.loop import run_loop
from ricordo.agents.note_taker import add_note_job, wants_notes
from ricordo.agents.repeats import was_cut_off
from ricordo.agents.request import (
    TurnRequest,
)
from ricordo.agents.run_end import cancel_open, close_run, heal
from ricordo.agents.tracing import failed_call
from ricordo.agents.turn_context import (
    TurnContext,
)
from ricordo.agents.turn_start import LEASE, start_turn
from ricordo.domain.clock import SECOND, Backoff
from ricordo.domain.event import Compacted, Event, Failed, RunEnded, RunStarted, StepSaved
from ricordo.domain.message import Message
from ricordo.domain.run import DATABASE_FAILED, INTERRUPTED, Run, StopReason
from ricordo.domain.scope import Scope
from ricordo.errors import (
    CommitUnknown,
    DatabaseFailed,
    Invalid,
    ModelError,
    NotFound,
    RicordoError,
    Unavailable,
)
from ricordo.logs import note_run
from ricordo.prompt.truncation import SystemPromptTooLong
from ricordo.runtime import LiveTurn, Runtime
from ricordo.storage import conversations, messages, runs
from ricordo.storage.engine.store import Transaction

log = logging.getLogger(__name__)
_POLL = 0.25
# The error type of a run whose request cannot be carried out.
INVALID_REQUEST = "invalid_request"
RENEWAL = LEASE / SECOND / 3
# Seconds after a failed renewal of a lease.
_RENEWAL_AGAIN = 1.0
# The waits before each attempt to save the end of a run again.
CLOSE_AGAIN = Backoff(1, 2, 30)
_STOP_REASONS: dict[str, StopReason] = {
    "llm_insufficient_credits": "insufficient_credits",
    "llm_empty_response": "invalid_llm_response",
}


async def run_turn(runtime: Runtime, request: TurnRequest) -> LiveTurn:
    """Begin a turn and return it, once its run and input are saved.

    Iterate over its events, or `collect` them. A request that was already accepted is not run
    again; its turn is returned. Raises RicordoError if the turn cannot start (see `start_turn`).
    Later errors arrive as the event Failed.
    """
    has_content = request.messages or request.approval or request.compaction
    if not has_content or not all(message.parts for message in request.messages):
        raise Invalid("There is no message to answer. Send at least one that has content.")
    if runtime.is_stopping:
        raise Unavailable("The server is shutting down. Send the message again in a moment.")
    # Once the run is stored its task must run, even if the caller is cancelled now.
    return await asyncio.shield(asyncio.ensure_future(_begin_turn(runtime, request)))


async def _begin_turn(runtime: Runtime, request: TurnRequest) -> LiveTurn:
    """Return the turn of this request, new or accepted before."""
    started = await start_turn(runtime, request)
    if isinstance(started, str):
        note_run(started)
        begin_again = partial(run_turn, runtime, request)
        return runtime.live.get(started) or PastTurn(runtime, request.scope, started, begin_again)
    turn = Turn(started)
    note_run(started.run.id)
    turn.start()
    return turn


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole turn: its messages and its end.

    `logprobs` belong to the tokens of the last step (see ModelReply).
    """

    run: Run
    messages: tuple[Message, ...]
    failure: Failed | None = None
    logprobs: dict[str, list[dict[str, Any]]] | None = None


async def collect(turn: LiveTurn, hear: Callable[[Event], None] | None = None) -> Answer:
    """Wait for the turn to end; `hear` gets each event.

    The turn may have begun earlier, or ended long ago.
    """
    new_messages: list[Message] = []
    logprobs = None
    async with aclosing(turn.events()) as events:
        async for event in events:
            if hear:
                hear(event)
            if isinstance(event, StepSaved):
                new_messages += event.messages
                logprobs = event.logprobs
            elif isinstance(event, Compacted):
                new_messages.append(event.summary)
            elif isinstance(event, RunEnded):
                return Answer(event.run, tuple(new_messages), logprobs=logprobs)
            elif isinstance(event, Failed):
                return Answer(event.run, tuple(new_messages), event)
    raise RuntimeError("A turn's events ended without RunEnded or Failed.")


async def collect_for_job(turn: LiveTurn, work: str) -> Answer:
    """Wait for the end of a turn that a job began.

    Raises Unavailable if the turn was cut off (see `was_cut_off`); the job is then repeated later.
    """
    answer = await collect(turn)
    if was_cut_off(answer.run):
        raise Unavailable(
            f"The server was stopped, or its database failed, in the middle of {work}. "
            "It continues later."
        )
    return answer


class PartFailed(Exception):
    """Ends a talk among agents in the way that one agent's turn in it ended."""

    def __init__(self, end_event: Failed | RunEnded) -> None:
        super().__init__(end_event.run.id)
        self.end_event = end_event


@dataclass(frozen=True, slots=True)
class _Ending:
    """The end of a run: the stop reason, and the error's type and text."""

    reason: StopReason
    kind: str
    message: str
    detail: str | None = None


class LiveRun:
    """A run of this process, with its task, its lease and its readers.

    `work` yields the run's events. The last event is RunEnded. It is yielded after the run's end is
    saved.
    """

    def __init__(
        self, runtime: Runtime, run: Run, work: Callable[[], AsyncIterator[Event]]
    ) -> None:
        self._runtime = runtime
        self._run = run
        self._work = work
        self._feed = Feed(run, self._read_saved)
        # The first reader is subscribed now, so it may start reading later.
        self._first: Reader | None = self._feed.subscribe()
        self._is_stopping = False
        # The connection was lost at the commit of the run's end, which may have succeeded.
        self._may_be_closed = False

    def start(self) -> None:
        """Start the task."""
        self._runtime.live[self._run.id] = self
        self._task = asyncio.create_task(self._run_task(), name=self._run.id)

    def _is_callers_error(self, _error: RicordoError) -> bool:
        """Return True if the request caused the error; False for a fault of the server."""
        return False

    def _note_renewal(self, _expires_at: int) -> None:
        """Note the new end of the lease, in microseconds UTC."""

    async def _after_close(self, _run: Run) -> None:
        """React to a forced end, before readers learn of it."""

    def _close_in(
        self, tx: Transaction, reason: StopReason, error: dict[str, Any] | None
    ) -> Run | None:
        """End the run in this transaction; return None if it had ended already."""
        return close_run(tx, self._run, reason, error)

    async def _after(self, _run: Run) -> None:
        """React to the end, after readers learned of it."""

    async def _read_saved(self) -> list[Message]:
        return await answer_of(self._runtime, self._run)

    def events(self) -> AsyncGenerator[Event]:
        # Subscribe now: an event before the first iteration would be missed.
        reader = self._first or self._feed.subscribe()
        self._first = None
        return reader.events()

    @property
    def has_readers(self) -> bool:
        return bool(self._feed.readers)

    async def cancel(self) -> None:
        # A task that is cancelled before its first step runs no code at all, so it cannot close its
        # run.
        await asyncio.sleep(0)
        self._stop()
        await self.wait()

    async def wait(self) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.shield(self._task)

    def _stop(self) -> None:
        if not self._is_stopping:
            self._is_stopping = True
            self._task.cancel()

    async def _run_task(self) -> None:
        """Run the work to its end, and publish the end to every reader."""
        run = self._run
        lease = asyncio.create_task(
            keep_lease(self._runtime, run, self._stop, renewed=self._note_renewal)
        )
        end_event: RunEnded | Failed = Failed(
            run, "internal_error", "The turn could not be ended; the next message heals it."
        )
        try:
            end_event = await self._run_to_end()
        except Exception as error:
            log.exception("a turn's end could not be saved", extra={"run": run.id})
            self._may_be_closed = isinstance(error, CommitUnknown)
            self._runtime.unended[run.id] = asyncio.create_task(
                self._close_later(), name=f"unended {run.id}"
            )
            if isinstance(error, DatabaseFailed):
                end_event = Failed(run, INTERRUPTED, DATABASE_FAILED)
        finally:
            self._is_stopping = True
            lease.cancel()
            self._runtime.live.pop(run.id, None)
            self._feed.publish(end_event)
        await self._after(end_event.run)

    async def _run_to_end(self) -> RunEnded | Failed:
        """Publish the work's events, and return the run's last event."""
        end_event: RunEnded | None = None
        try:
            async for event in self._work():
                if isinstance(event, RunEnded):
                    end_event = event
                else:
                    self._feed.publish(event)
            if end_event:
                return end_event if end_event.run.error is None else _failure_of(end_event.run)
            ending = _Ending("error", "internal_error", "The loop ended without ending its run.")
        except asyncio.CancelledError:
            ending = _Ending("cancelled", "cancelled", "The turn was stopped before its end.")
            if self._runtime.is_stopping:
                ending = _Ending(
                    "error",
                    INTERRUPTED,
                    "The server stopped during this turn. Send the message again.",
                )
        except PartFailed as error:
            ending = _ending_of(error.end_event)
        except ModelError as error:
            log.warning("model failed", extra={"run": self._run.id, "kind": error.kind})
            reason = _STOP_REASONS.get(error.kind, "llm_api_error")
            if isinstance(error, SystemPromptTooLong):
                reason = "context_window_overflow_in_system_prompt"
            ending = _Ending(reason, error.kind, str(error))
        except DatabaseFailed:
            ending = _Ending("error", INTERRUPTED, DATABASE_FAILED)
        except RicordoError as error:
            kind = INVALID_REQUEST if self._is_callers_error(error) else "internal_error"
            ending = _Ending("error", kind, str(error))
        except Exception as error:
            log.exception("turn failed", extra={"run": self._run.id})
            ending = _Ending(
                "error", "internal_error", "An unknown error occurred", type(error).__name__
            )
        return await self._close(ending)

    async def _close(self, ending: _Ending) -> RunEnded | Failed:
        """Save the run's end, and return its last event."""
        # From now on a cancel only waits. Stopping the task here would leave its run open.
        self._is_stopping = True
        run = self._run
        error: dict[str, Any] | None = None
        if ending.reason != "cancelled":
            error = {"type": ending.kind, "message": ending.message}
        closed_run = await self._runtime.store.write(
            lambda tx: self._close_in(tx, ending.reason, error)
        )
        if closed_run is None:
            # The run had already ended: another process cancelled it, or a save completed while
            # this task was being cancelled.
            try:
                closed_run = await self._runtime.store.read(
                    lambda tx: runs.get(tx, Scope(run.organization_id), run.id)
                )
            except NotFound:
                return await vanished(run, self._runtime)
        await self._after_close(closed_run)
        # A save may have completed while this task was being cancelled. No reader got its messages.
        self._feed.catch_up()
        if closed_run.error is None:
            return RunEnded(closed_run)
        return replace(_failure_of(closed_run), detail=ending.detail)

    async def _close_later(self) -> None:
        """Save the end of a run whose end could not be saved, once the database writes again.

        The next message may save it earlier.
        """
        error = {"type": INTERRUPTED, "message": DATABASE_FAILED}
        for attempt in itertools.count(1):
            await asyncio.sleep(CLOSE_AGAIN.seconds(attempt))
            try:
                await self._runtime.store.write(lambda tx: self._close_in(tx, "error", error))
            except Exception as reason:
                extra = {"run": self._run.id, "reason": reason}
                log.warning("a turn's end could not be saved yet", extra=extra)
                self._may_be_closed |= isinstance(reason, CommitUnknown)
                continue
            del self._runtime.unended[self._run.id]
            return


async def keep_lease(
    runtime: Runtime, run: Run, stop: Callable[[], None], *, renewed: Callable[[int], None]
) -> None:
    """Renew the run's lease until it is lost; then call `stop`.

    Each renewal calls `renewed` with the new end of the lease.
    """
    store = runtime.store
    token = run.lease_token or ""
    pause = RENEWAL
    while True:
        await asyncio.sleep(pause)
        until = store.clock.now() + LEASE
        try:
            is_held = await store.write(lambda tx: runs.renew(tx, run.id, token, until))  # noqa: B023 - awaited at once
        except Exception:
            if pause == RENEWAL:  # the first failure of an outage
                log.exception(
                    "a lease could not be renewed; it is tried again", extra={"run": run.id}
                )
            pause = min(RENEWAL, _RENEWAL_AGAIN)
            continue
        if not is_held:
            stop()
            return
        renewed(until)
        pause = RENEWAL


class Turn(LiveRun):
    """A turn of this process."""

    def __init__(self, context: TurnContext) -> None:
        super().__init__(context.runtime, context.run, partial(run_loop, context))
        self._context = context
        context.publish = self._feed.publish

    def _is_callers_error(self, error: RicordoError) -> bool:
        # Report Invalid only for a compaction request; inside a turn it is an internal error.
        return isinstance(error, Invalid) and self._context.request.compaction is not None

    def _close_in(
        self, tx: Transaction, reason: StopReason, error: dict[str, Any] | None
    ) -> Run | None:
        also_save = self._context.request.delivery.also_save
        self._pay_unsaved_reply(tx)
        closed_run = close_run(
            tx, self._context.run, reason, error, failed_call(self._context, reason, error)
        )
        if closed_run and also_save:
            also_save(tx, closed_run, ())
        # A step that ends its turn adds the job itself.
        if closed_run and closed_run.status == "failed" and wants_notes(self._context):
            is_local_user = self._context.request.scope.is_local_user
            add_note_job(tx, closed_run, is_local_user=is_local_user)
        return closed_run

    def _note_renewal(self, expires_at: int) -> None:
        self._context.run = replace(self._context.run, lease_expires_at=expires_at)

    def _pay_unsaved_reply(self, tx: Transaction) -> None:
        """Write the tokens of a reply into the ledger if its step was not saved."""
        context = self._context
        usage = context.unsaved_usage
        if usage is None or not usage.total_tokens:
            return
        # The step may have been saved while the turn was being cancelled.
        stored_run = runs.lock(tx, context.run.id)
        if self._may_be_closed and (stored_run is None or stored_run.ended_at is not None):
            return  # they were paid with the end
        if stored_run is None or stored_run.step_count == context.run.step_count:
            context.payer.add(tx, context.model.info.handle, usage)

    async def _after(self, run: Run) -> None:
        for after_turn in self._runtime.after_turn:
            is_skipped = (after_turn.about_users and run.user_id is None) or (
                after_turn.in_groups and "group_id" not in run.metadata
            )
            if is_skipped:
                continue
            try:
                await after_turn.call(self._runtime, run)
            except Exception:
                log.exception("a plugin failed after a turn", extra={"run": run.id})


@dataclass(frozen=True, slots=True)
class PastTurn:
    """A turn that ended or runs in another process.

    Its events are read from the database. If the other process is killed meanwhile, `begin_again`
    answers the request in a new turn.
    """

    runtime: Runtime
    scope: Scope
    run_id: str
    begin_again: Callable[[], Awaitable[LiveTurn]] | None = None

    @property
    def has_readers(self) -> bool:
        return True

    async def events(self) -> AsyncGenerator[Event]:
        """Yield the saved messages, once the run has ended."""
        run = await self._read()
        yield RunStarted(run)
        try:
            await self.wait()
            run = await self._read()
        except NotFound:
            yield await vanished(run, self.runtime)
            return
        if new_turn := await self._restart_turn(run):
            async with aclosing(new_turn.events()) as events:
                async for event in events:
                    yield event
            return
        if saved_messages := await answer_of(self.runtime, run):
            yield StepSaved(self.run_id, None, tuple(saved_messages))
        tokens = await self.runtime.store.read(lambda tx: runs.context_tokens(tx, self.run_id))
        run = replace(run, context_tokens=tokens)
        yield RunEnded(run) if run.error is None else _failure_of(run)

    async def _restart_turn(self, run: Run) -> LiveTurn | None:
        """Answer an interrupted request in a new turn; None if that is impossible."""
        if self.begin_again is None or not was_cut_off(run):
            return None
        try:
            return await self.begin_again()
        except RicordoError:
            # For example, another turn has the conversation now. The reader learns of the
            # interruption.
            return None

    async def cancel(self) -> None:
        run = await self._read()
        await self.runtime.store.write(lambda tx: cancel_open(tx, run))

    async def wait(self) -> None:
        """Return when the run has ended."""
        while (await self._read()).ended_at is None:
            # Another process cannot notify this one, so we poll. If that process is gone, its run
            # is closed here.
            if not await self.runtime.store.write(
                lambda tx: heal(tx, runs.get(tx, self.scope, self.run_id))
            ):
                await asyncio.sleep(_POLL)

    async def _read(self) -> Run:
        return await self.runtime.store.read(lambda tx: runs.get(tx, self.scope, self.run_id))


async def vanished(run: Run, runtime: Runtime) -> Failed:
    """Return the end of a run that is not in the database any more.

    Usually it was deleted with its agent or conversation. If both still exist, the database lost
    the run: by a crash of PostgreSQL with `synchronous_commit` off, or by a restored backup.
    """
    failed_run = replace(
        run, status="failed", stop_reason="error", ended_at=runtime.store.clock.now()
    )
    try:
        await runtime.store.read(
            lambda tx: conversations.require(tx, Scope(run.organization_id), run.conversation_id)
        )
    except NotFound:
        return Failed(
            failed_run, "deleted", "The agent or the conversation was deleted during the answer."
        )
    return Failed(failed_run, INTERRUPTED, DATABASE_FAILED)


async def answer_of(runtime: Runtime, run: Run) -> list[Message]:
    """Return the run's messages so far, without its input.

    For a talk among agents these are the messages of its turns.
    """
    all_messages = await runtime.store.read(lambda tx: record_of(tx, run))
    return [message for message in all_messages if message.step_id or message.role == "summary"]


def record_of(tx: Transaction, run: Run) -> list[Message]:
    """Return the messages of a run, its input among them.

    Agents' messages in the turns of a talk get the run id of the talk.
    """
    all_messages = messages.of_runs(tx, [run.id, *run.turn_ids])
    if not run.turn_ids:
        return all_messages
    return [
        replace(message, run_id=run.id)
        for message in all_messages
        if message.step_id or message.run_id == run.id
    ]


def _failure_of(run: Run) -> Failed:
    """Return the last event of a run that ended with an error."""
    error = run.error or {}
    return Failed(run, error.get("type", "internal_error"), error.get("message", "The run failed."))


def _ending_of(part: Failed | RunEnded) -> _Ending:
    if isinstance(part, Failed):
        return _Ending(part.run.stop_reason or "error", part.kind, part.message, part.detail)
    return _Ending("cancelled", "cancelled", "The turn was stopped before its end.")
