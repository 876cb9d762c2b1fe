"""The path of a message. Every interface of Ricordo comes here: start reading at `run_turn`.

    run_turn → start_turn (lease, window, input) → run_loop (ask the model, run tools, save) → events to every reader

A turn runs as a task of its own and waits for no reader; leaving is not cancelling. `docs/message-path.md` lists the functions.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ricordo.agents.live_run import LiveRun, answer_of, deleted
from ricordo.agents.loop import run_loop
from ricordo.agents.note_taker import add_note_job, wants_notes
from ricordo.agents.repeats import was_cut_off
from ricordo.agents.request import TurnContext, TurnRequest
from ricordo.agents.run_end import close_run, heal
from ricordo.agents.tracing import failed_call
from ricordo.agents.turn_start import start_turn
from ricordo.domain.event import Compacted, Event, Failed, RunEnded, RunStarted, StepSaved
from ricordo.domain.message import Message
from ricordo.domain.run import Run, StopReason
from ricordo.domain.scope import Scope
from ricordo.errors import Invalid, NotFound, RicordoError, Unavailable
from ricordo.runtime import LiveTurn, Runtime
from ricordo.storage import runs
from ricordo.storage.engine.store import Transaction

log = logging.getLogger(__name__)
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
        again = partial(run_turn, runtime, request)
        return runtime.live.get(started) or PastTurn(runtime, request.scope, started, again)
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


class Turn(LiveRun):
    """A turn of this process."""

    def __init__(self, context: TurnContext) -> None:
        super().__init__(context.runtime, context.run)
        self._context = context
        context.publish = self._feed.publish
        self._start()

    def _work(self) -> AsyncIterator[Event]:
        return run_loop(self._context)

    def _is_asked_for(self, error: RicordoError) -> bool:
        # Report Invalid only for a compaction request; inside a turn it is an internal error.
        return isinstance(error, Invalid) and self._context.request.compaction is not None

    def _close_in(self, tx: Transaction, reason: StopReason, error: dict[str, Any] | None) -> Run | None:
        also_save = self._context.request.also_save
        ended = close_run(tx, self._context.run, reason, error, failed_call(self._context, reason, error))
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
            yield Failed(run, error.get("type", "internal_error"), error.get("message", "The run failed."))
        else:
            tokens = await self.runtime.store.read(lambda tx: runs.context_tokens(tx, self.run_id))
            yield RunEnded(replace(run, context_tokens=tokens))

    async def _begun_anew(self, run: Run) -> LiveTurn | None:
        if self.begin_again is None or not was_cut_off(run):
            return None
        try:
            return await self.begin_again()
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
