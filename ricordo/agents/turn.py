"""The path of a message. Every interface of Ricordo comes here: start reading at `run_turn`.

    run_turn → start_turn (lease, window, input) → run_loop (ask the model, run tools, save) → events to every reader

A turn runs as a task of its own and waits for no reader; leaving is not cancelling. `docs/message-path.md` lists the functions.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Any

from ricordo.agents.feed import Feed, Reader
from ricordo.agents.loop import run_loop
from ricordo.agents.note_taker import add_note_job, wants_notes
from ricordo.agents.repeats import was_cut_off
from ricordo.agents.request import TurnContext, TurnRequest
from ricordo.agents.run_end import close_run, heal
from ricordo.agents.tracing import failed_call
from ricordo.agents.turn_start import LEASE, start_turn
from ricordo.domain.clock import SECOND
from ricordo.domain.event import Compacted, Event, Failed, RunEnded, RunStarted, StepSaved
from ricordo.domain.message import Message
from ricordo.domain.run import DATABASE_FAILED, INTERRUPTED, Run, StopReason
from ricordo.domain.scope import Scope
from ricordo.errors import DatabaseFailed, Invalid, LeaseLost, ModelError, NotFound, RicordoError, Unavailable
from ricordo.prompt.truncation import SystemPromptTooLong
from ricordo.runtime import LiveTurn, Runtime
from ricordo.storage import messages, runs
from ricordo.storage.engine.store import Transaction

log = logging.getLogger(__name__)
RENEWAL = LEASE / SECOND / 3
_POLL = 0.25
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
        return runtime.live.get(started) or PastTurn(runtime, request.scope, started, request)
    return Turn(started)


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole turn: what the agent said and did, and how it ended. `logprobs` are of the last step's tokens (see ModelReply)."""

    run: Run
    messages: tuple[Message, ...]
    failure: Failed | None = None
    logprobs: dict[str, list[dict[str, Any]]] | None = None


async def collect(turn: LiveTurn) -> Answer:
    """Wait for the turn to end; works for one that began before, or ended long ago."""
    said: list[Message] = []
    logprobs = None
    async for event in turn.events():
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


class Turn:
    """A turn of this process, with its task, its lease and its readers."""

    def __init__(self, context: TurnContext) -> None:
        self._runtime = runtime = context.runtime
        self._context = context
        self._feed = Feed(context.run, lambda: _answer_of(runtime, context.run.id))
        context.publish = self._feed.publish
        # The first reader listens from the very start, however long it takes until it reads.
        self._first: Reader | None = self._feed.subscribe()
        self._is_stopping = False
        runtime.live[context.run.id] = self
        self._task = asyncio.create_task(self._drive(), name=context.run.id)

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
        """Run the loop to its end, whatever that is, and tell every reader of it."""
        run = self._context.run
        lease = asyncio.create_task(self._keep_lease())
        last: Event = Failed(run, "internal_error", "The turn could not be ended; the next message heals it.")
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
        for after_turn in self._runtime.plugins.after_turn():
            try:
                await after_turn(self._runtime, self._context.run)
            except Exception:
                log.exception("a plugin failed after a turn", extra={"run": run.id})

    async def _run_to_end(self) -> Event:
        """The turn's last event, once the loop has ended; the others are published."""
        ended: RunEnded | None = None
        detail: str | None = None
        reason: StopReason = "error"
        kind, message = "internal_error", "The loop ended without ending its run."
        try:
            async for event in run_loop(self._context):
                if isinstance(event, RunEnded):
                    ended = event
                else:
                    self._feed.publish(event)
            if ended:
                return ended
        except asyncio.CancelledError:
            kind, message = "cancelled", "The turn was stopped before it had ended."
            reason = "cancelled"
            if self._runtime.is_stopping:
                reason, kind, message = (
                    "error",
                    INTERRUPTED,
                    "The server stopped during this turn. Send the message again.",
                )
        except LeaseLost as error:
            message = str(error)
        except ModelError as error:
            log.warning("model failed", extra={"run": self._context.run.id, "kind": error.kind})
            reason = _STOP_REASONS.get(error.kind, "llm_api_error")
            if isinstance(error, SystemPromptTooLong):
                reason = "context_window_overflow_in_system_prompt"
            kind, message = error.kind, str(error)
        except DatabaseFailed:
            kind, message = INTERRUPTED, DATABASE_FAILED
        except RicordoError as error:
            # Who asked for a compaction alone learns whether that was wrong; in a conversation the rules are nobody's fault.
            is_asked = isinstance(error, Invalid) and self._context.request.compaction is not None
            kind, message = "invalid_request" if is_asked else kind, str(error)
        except Exception as error:
            log.exception("turn failed", extra={"run": self._context.run.id})
            message, detail = "An unknown error occurred", type(error).__name__
        return await self._close(reason, kind, message, detail)

    async def _close(self, reason: StopReason, kind: str, message: str, detail: str | None = None) -> Event:
        # It is ending: who cancels it now only waits, as stopping it here would leave its run open.
        self._is_stopping = True
        run = self._context.run
        error: dict[str, Any] | None = None if reason == "cancelled" else {"type": kind, "message": message}
        failed = failed_call(self._context, reason, error)
        also_save = self._context.request.also_save

        def close(tx: Transaction) -> Run | None:
            ended = close_run(tx, run, reason, error, failed)
            if ended and also_save:
                also_save(tx, ended, ())
            # A step that ends its turn adds the job itself.
            if ended and ended.status == "failed" and wants_notes(self._context):
                add_note_job(tx, ended)
            return ended

        ended = await self._runtime.store.write(close)
        if ended is None:
            # The run ended by another hand: a cancel from another process, or a save that went through while we were stopped.
            try:
                ended = await self._runtime.store.read(lambda tx: runs.get(tx, self._context.request.scope, run.id))
            except NotFound:
                return _deleted(run, self._runtime)
        self._context.run = ended
        # A save that went through while we were stopped was told to nobody.
        self._feed.catch_up()
        if ended.status in ("completed", "cancelled"):
            return RunEnded(ended)
        told = ended.error or {}
        return Failed(ended, told.get("type", kind), told.get("message", message), detail)

    async def _keep_lease(self) -> None:
        run = self._context.run
        while True:
            await asyncio.sleep(RENEWAL)
            store, token = self._runtime.store, run.lease_token or ""
            until = store.clock.now() + LEASE
            try:
                is_held = await store.write(lambda tx: runs.renew(tx, run.id, token, until))  # noqa: B023 - awaited at once
            except Exception:
                log.exception("a lease could not be renewed", extra={"run": run.id})
                continue
            if not is_held:
                self._stop()
                return


@dataclass(frozen=True, slots=True)
class PastTurn:
    """A turn that ended, or that runs in another process: its events are read from the database.

    Where the other process is killed meanwhile, `request` is answered anew.
    """

    runtime: Runtime
    scope: Scope
    run_id: str
    request: TurnRequest | None = None

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
            yield _deleted(run, self.runtime)
            return
        if anew := await self._begun_anew(run):
            async with aclosing(anew.events()) as events:
                async for event in events:
                    yield event
            return
        if said := await _answer_of(self.runtime, self.run_id):
            yield StepSaved(self.run_id, None, tuple(said))
        if run.status == "failed":
            error = run.error or {}
            yield Failed(run, error.get("type", "internal_error"), error.get("message", "The run failed."))
        else:
            tokens = await self.runtime.store.read(lambda tx: runs.context_tokens(tx, self.run_id))
            yield RunEnded(replace(run, context_tokens=tokens))

    async def _begun_anew(self, run: Run) -> LiveTurn | None:
        if self.request is None or not was_cut_off(run):
            return None
        try:
            return await run_turn(self.runtime, self.request)
        except RicordoError:  # somebody else has the conversation by now: the reader is told of the interruption
            return None

    async def cancel(self) -> None:
        run = await self._read()
        await self.runtime.store.write(lambda tx: close_run(tx, run, "cancelled"))

    async def wait(self) -> None:
        """Return when the run has ended."""
        while (await self._read()).ended_at is None:
            # Another process cannot wake us; and if it is gone, nobody but us may ever ask for this run.
            if not await self.runtime.store.write(lambda tx: heal(tx, runs.get(tx, self.scope, self.run_id))):
                await asyncio.sleep(_POLL)

    async def _read(self) -> Run:
        return await self.runtime.store.read(lambda tx: runs.get(tx, self.scope, self.run_id))


def _deleted(run: Run, runtime: Runtime) -> Failed:
    """The end of a run whose agent or conversation was deleted, and the run with it."""
    gone = replace(run, status="failed", stop_reason="error", ended_at=runtime.store.clock.now())
    return Failed(gone, "deleted", "The agent was deleted while it answered.")


async def _answer_of(runtime: Runtime, run_id: str) -> list[Message]:
    said = await runtime.store.read(lambda tx: messages.of_run(tx, run_id))
    return [message for message in said if message.step_id or message.role == "summary"]
