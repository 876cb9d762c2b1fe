"""The path of a message. Every interface of Ricordo comes here: start reading at `run_turn`.

    run_turn → start_turn (lease, window, input) → run_loop (ask the model, run tools, save) → events to every reader

A turn runs as a task of its own and waits for no reader; leaving is not cancelling. `docs/internals/message-path.md`
lists the functions.
"""

import asyncio
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
from ricordo.agents.request import TurnContext, TurnRequest
from ricordo.agents.run_end import cancel_open, close_run, heal
from ricordo.agents.tracing import failed_call
from ricordo.agents.turn_start import LEASE, start_turn
from ricordo.domain.clock import SECOND
from ricordo.domain.event import Compacted, Event, Failed, RunEnded, RunStarted, StepSaved
from ricordo.domain.message import Message
from ricordo.domain.run import DATABASE_FAILED, INTERRUPTED, Run, StopReason
from ricordo.domain.scope import Scope
from ricordo.errors import DatabaseFailed, Invalid, ModelError, NotFound, RicordoError, Unavailable
from ricordo.prompt.truncation import SystemPromptTooLong
from ricordo.runtime import LiveTurn, Runtime
from ricordo.storage import messages, runs
from ricordo.storage.engine.store import Transaction

log = logging.getLogger(__name__)
_POLL = 0.25
# The type of error of a run that nobody could carry out as it was asked for.
INVALID_REQUEST = "invalid_request"
RENEWAL = LEASE / SECOND / 3
_STOP_REASONS: dict[str, StopReason] = {
    "llm_insufficient_credits": "insufficient_credits",
    "llm_empty_response": "invalid_llm_response",
}


async def run_turn(runtime: Runtime, request: TurnRequest) -> LiveTurn:
    """Begin a turn and return it: iterate over its events, or `collect` them. Its run and input are saved when this returns.

    A request that was accepted before is not run again: the turn that took it is returned. Raises NotFound, Busy, Conflict,
    Invalid; what goes wrong later comes as the event Failed.
    """
    is_something = request.messages or request.approval or request.compaction
    if not is_something or not all(message.parts for message in request.messages):
        raise Invalid("There is no message to answer. Send at least one, with some content.")
    if runtime.is_stopping:
        raise Unavailable("The server is shutting down. Send the message again in a moment.")
    # Once the run is stored it has to be driven, also when the caller leaves at this very moment.
    return await asyncio.shield(asyncio.ensure_future(_begin_turn(runtime, request)))


async def _begin_turn(runtime: Runtime, request: TurnRequest) -> LiveTurn:
    """The turn of this request: a new one, or that which took it before."""
    started = await start_turn(runtime, request)
    if isinstance(started, str):
        again = partial(run_turn, runtime, request)
        return runtime.live.get(started) or PastTurn(runtime, request.scope, started, again)
    turn = Turn(started)
    turn.start()
    return turn


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole turn: what the agent said and did, and how it ended. `logprobs` are of the last step's tokens (see ModelReply)."""

    run: Run
    messages: tuple[Message, ...]
    failure: Failed | None = None
    logprobs: dict[str, list[dict[str, Any]]] | None = None


async def collect(turn: LiveTurn, hear: Callable[[Event], None] | None = None) -> Answer:
    """Wait for the turn to end, and let `hear` have each event; works for one that began before, or ended long ago."""
    said: list[Message] = []
    logprobs = None
    async with aclosing(turn.events()) as events:
        async for event in events:
            if hear:
                hear(event)
            if isinstance(event, StepSaved):
                said += event.messages
                logprobs = event.logprobs
            elif isinstance(event, Compacted):
                said.append(event.summary)
            elif isinstance(event, RunEnded):
                return Answer(event.run, tuple(said), logprobs=logprobs)
            elif isinstance(event, Failed):
                return Answer(event.run, tuple(said), event)
    raise RuntimeError("A turn's events ended without RunEnded or Failed.")


async def collect_for_job(turn: LiveTurn, work: str) -> Answer:
    """Wait for the end of a turn that a job began. Raises Unavailable where it was cut off: the job is done again later."""
    answer = await collect(turn)
    if was_cut_off(answer.run):
        raise Unavailable(f"The server was stopped in the middle of {work}. It goes on later.")
    return answer


class PartFailed(Exception):
    """Ends a run in the way in which a part of it ended: a turn of one of several agents."""

    def __init__(self, ended: Failed | RunEnded) -> None:
        super().__init__(ended.run.id)
        self.ended = ended


@dataclass(frozen=True, slots=True)
class _Ending:
    """Why a run ends: the stop reason, the error's type on the wire and its text."""

    reason: StopReason
    kind: str
    message: str
    detail: str | None = None


class LiveRun:
    """A run of this process, with its task, its lease and its readers.

    `work` does the work and yields its events, at last RunEnded once the run's end is saved.
    """

    def __init__(
        self, runtime: Runtime, run: Run, work: Callable[[], AsyncIterator[Event]]
    ) -> None:
        self._runtime = runtime
        self._run = run
        self._work = work
        self._feed = Feed(run, self._reread)
        # The first reader listens from the very start, however long it takes until it reads.
        self._first: Reader | None = self._feed.subscribe()
        self._is_stopping = False

    def start(self) -> None:
        """Begin the work."""
        self._runtime.live[self._run.id] = self
        self._task = asyncio.create_task(self._drive(), name=self._run.id)

    def _is_asked_for(self, _error: RicordoError) -> bool:
        """Return whether the caller, and no fault of the server, is the reason of the error."""
        return False

    async def _after_close(self, _run: Run) -> None:
        """Do what belongs to a run that did not end by itself, before its readers are told."""

    def _close_in(
        self, tx: Transaction, reason: StopReason, error: dict[str, Any] | None
    ) -> Run | None:
        """End the run in this transaction; None where it had ended already."""
        return close_run(tx, self._run, reason, error)

    async def _after(self, _run: Run) -> None:
        """Do what follows the end, which its readers know already."""

    async def _reread(self) -> list[Message]:
        return await answer_of(self._runtime, self._run)

    def events(self) -> AsyncGenerator[Event]:
        # Subscribed here and not at the first iteration, so that nothing is missed in between.
        reader, self._first = self._first or self._feed.subscribe(), None
        return reader.events()

    @property
    def has_readers(self) -> bool:
        return bool(self._feed.readers)

    async def cancel(self) -> None:
        # A task that is cancelled before its first step runs none of its code, and could not close its run.
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

    async def _drive(self) -> None:
        """Run the work to its end, whatever that is, and tell every reader of it."""
        run = self._run
        lease = asyncio.create_task(keep_lease(self._runtime, run, self._stop))
        last: RunEnded | Failed = Failed(
            run, "internal_error", "The turn could not be ended; the next message heals it."
        )
        try:
            last = await self._run_to_end()
        except Exception as error:
            log.exception("a turn's end could not be saved", extra={"run": run.id})
            self._runtime.unended.add(run.id)
            if isinstance(error, DatabaseFailed):
                last = Failed(run, INTERRUPTED, DATABASE_FAILED)
        finally:
            self._is_stopping = True
            lease.cancel()
            self._runtime.live.pop(run.id, None)
            self._feed.publish(last)
        await self._after(last.run)

    async def _run_to_end(self) -> RunEnded | Failed:
        """Return the run's last event, once the work has ended; the others are published."""
        ended: RunEnded | None = None
        try:
            async for event in self._work():
                if isinstance(event, RunEnded):
                    ended = event
                else:
                    self._feed.publish(event)
            if ended:
                return ended
            ending = _Ending("error", "internal_error", "The loop ended without ending its run.")
        except asyncio.CancelledError:
            ending = _Ending("cancelled", "cancelled", "The turn was stopped before it had ended.")
            if self._runtime.is_stopping:
                ending = _Ending(
                    "error",
                    INTERRUPTED,
                    "The server stopped during this turn. Send the message again.",
                )
        except PartFailed as error:
            ending = _ending_of(error.ended)
        except ModelError as error:
            log.warning("model failed", extra={"run": self._run.id, "kind": error.kind})
            reason = _STOP_REASONS.get(error.kind, "llm_api_error")
            if isinstance(error, SystemPromptTooLong):
                reason = "context_window_overflow_in_system_prompt"
            ending = _Ending(reason, error.kind, str(error))
        except DatabaseFailed:
            ending = _Ending("error", INTERRUPTED, DATABASE_FAILED)
        except RicordoError as error:
            kind = INVALID_REQUEST if self._is_asked_for(error) else "internal_error"
            ending = _Ending("error", kind, str(error))
        except Exception as error:
            log.exception("turn failed", extra={"run": self._run.id})
            ending = _Ending(
                "error", "internal_error", "An unknown error occurred", type(error).__name__
            )
        return await self._close(ending)

    async def _close(self, ending: _Ending) -> RunEnded | Failed:
        # It is ending: who cancels it now only waits, as stopping it here would leave its run open.
        self._is_stopping = True
        run = self._run
        error: dict[str, Any] | None = None
        if ending.reason != "cancelled":
            error = {"type": ending.kind, "message": ending.message}
        ended = await self._runtime.store.write(lambda tx: self._close_in(tx, ending.reason, error))
        if ended is None:
            # The run ended by another hand: a cancel from another process, or a save that went through while we were stopped.
            try:
                ended = await self._runtime.store.read(
                    lambda tx: runs.get(tx, Scope(run.organization_id), run.id)
                )
            except NotFound:
                return deleted(run, self._runtime)
        await self._after_close(ended)
        # A save that went through while we were stopped was told to nobody.
        self._feed.catch_up()
        if ended.status in ("completed", "cancelled"):
            return RunEnded(ended)
        stored = ended.error or {}
        return Failed(
            ended,
            stored.get("type", ending.kind),
            stored.get("message", ending.message),
            ending.detail,
        )


async def keep_lease(runtime: Runtime, run: Run, stop: Callable[[], None]) -> None:
    """Renew the lease of a run until it is lost; then `stop` is called."""
    store, token = runtime.store, run.lease_token or ""
    while True:
        await asyncio.sleep(RENEWAL)
        until = store.clock.now() + LEASE
        try:
            is_held = await store.write(lambda tx: runs.renew(tx, run.id, token, until))  # noqa: B023 - awaited at once
        except Exception:
            log.exception("a lease could not be renewed", extra={"run": run.id})
            continue
        if not is_held:
            stop()
            return


class Turn(LiveRun):
    """A turn of this process."""

    def __init__(self, context: TurnContext) -> None:
        super().__init__(context.runtime, context.run, partial(run_loop, context))
        self._context = context
        context.publish = self._feed.publish

    def _is_asked_for(self, error: RicordoError) -> bool:
        # Report Invalid only for a compaction request; inside a turn it is an internal error.
        return isinstance(error, Invalid) and self._context.request.compaction is not None

    def _close_in(
        self, tx: Transaction, reason: StopReason, error: dict[str, Any] | None
    ) -> Run | None:
        also_save = self._context.request.also_save
        ended = close_run(
            tx, self._context.run, reason, error, failed_call(self._context, reason, error)
        )
        if ended and also_save:
            also_save(tx, ended, ())
        # A step that ends its turn adds the job itself.
        if ended and ended.status == "failed" and wants_notes(self._context):
            add_note_job(tx, ended)
        return ended

    async def _after(self, run: Run) -> None:
        for after_turn in self._runtime.plugins.after_turn():
            try:
                await after_turn(self._runtime, run)
            except Exception:
                log.exception("a plugin failed after a turn", extra={"run": run.id})


@dataclass(frozen=True, slots=True)
class PastTurn:
    """A turn that ended, or that runs in another process: its events are read from the database.

    Where the other process is killed meanwhile, `begin_again` answers the request in a new turn.
    """

    runtime: Runtime
    scope: Scope
    run_id: str
    begin_again: Callable[[], Awaitable[LiveTurn]] | None = None

    @property
    def has_readers(self) -> bool:
        return True

    async def events(self) -> AsyncGenerator[Event]:
        """What was saved, once the run has ended."""
        run = await self._read()
        yield RunStarted(run)
        try:
            await self.wait()
            run = await self._read()
        except NotFound:
            yield deleted(run, self.runtime)
            return
        if anew := await self._begun_anew(run):
            async with aclosing(anew.events()) as events:
                async for event in events:
                    yield event
            return
        if said := await answer_of(self.runtime, run):
            yield StepSaved(self.run_id, None, tuple(said))
        if run.status == "failed":
            error = run.error or {}
            yield Failed(
                run, error.get("type", "internal_error"), error.get("message", "The run failed.")
            )
        else:
            tokens = await self.runtime.store.read(lambda tx: runs.context_tokens(tx, self.run_id))
            yield RunEnded(replace(run, context_tokens=tokens))

    async def _begun_anew(self, run: Run) -> LiveTurn | None:
        if self.begin_again is None or not was_cut_off(run):
            return None
        try:
            return await self.begin_again()
        except (
            RicordoError
        ):  # somebody else has the conversation by now: the reader is told of the interruption
            return None

    async def cancel(self) -> None:
        run = await self._read()
        await self.runtime.store.write(lambda tx: cancel_open(tx, run))

    async def wait(self) -> None:
        """Return when the run has ended."""
        while (await self._read()).ended_at is None:
            # Another process cannot wake us; and if it is gone, nobody but us may ever ask for this run.
            if not await self.runtime.store.write(
                lambda tx: heal(tx, runs.get(tx, self.scope, self.run_id))
            ):
                await asyncio.sleep(_POLL)

    async def _read(self) -> Run:
        return await self.runtime.store.read(lambda tx: runs.get(tx, self.scope, self.run_id))


def deleted(run: Run, runtime: Runtime) -> Failed:
    """The end of a run whose agent or conversation was deleted, and the run with it."""
    gone = replace(run, status="failed", stop_reason="error", ended_at=runtime.store.clock.now())
    return Failed(gone, "deleted", "The agent was deleted while it answered.")


async def answer_of(runtime: Runtime, run: Run) -> list[Message]:
    """Return the messages that the run has brought so far, without its input; a talk's are those of its turns."""
    stored = await runtime.store.read(lambda tx: record_of(tx, run))
    return [message for message in stored if message.step_id or message.role == "summary"]


def record_of(tx: Transaction, run: Run) -> list[Message]:
    """Return the messages of a run, its input among them; what agents said in a talk's turns as if it were the talk's."""
    stored = messages.of_runs(tx, [run.id, *run.turn_ids])
    if not run.turn_ids:
        return stored
    return [replace(one, run_id=run.id) for one in stored if one.step_id or one.run_id == run.id]


def _ending_of(part: Failed | RunEnded) -> _Ending:
    if isinstance(part, Failed):
        return _Ending(part.run.stop_reason or "error", part.kind, part.message, part.detail)
    return _Ending("cancelled", "cancelled", "The turn was stopped before it had ended.")
