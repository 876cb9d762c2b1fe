"""A run that this process drives: its task, its lease, its readers, and its end, whatever that is.

A turn of an agent is one, and so is a talk with a group, whose work is the turns of several agents.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ricordo.agents.feed import Feed, Reader
from ricordo.agents.run_end import close_run
from ricordo.agents.turn_start import LEASE
from ricordo.domain.clock import SECOND
from ricordo.domain.event import Event, Failed, RunEnded
from ricordo.domain.message import Message
from ricordo.domain.run import DATABASE_FAILED, INTERRUPTED, Run, StopReason
from ricordo.domain.scope import Scope
from ricordo.errors import DatabaseFailed, ModelError, NotFound, RicordoError
from ricordo.prompt.truncation import SystemPromptTooLong
from ricordo.runtime import Runtime
from ricordo.storage import messages, runs
from ricordo.storage.engine.store import Transaction

log = logging.getLogger(__name__)
RENEWAL = LEASE / SECOND / 3
_STOP_REASONS: dict[str, StopReason] = {
    "llm_insufficient_credits": "insufficient_credits",
    "llm_empty_response": "invalid_llm_response",
}


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


class LiveRun(ABC):
    """A run of this process, with its task, its lease and its readers."""

    def __init__(self, runtime: Runtime, run: Run) -> None:
        self._runtime = runtime
        self._run = run
        self._feed = Feed(run, self._reread)
        # The first reader listens from the very start, however long it takes until it reads.
        self._first: Reader | None = self._feed.subscribe()
        self._is_stopping = False

    def _start(self) -> None:
        """Begin the work; to be called once, when all else is set up."""
        self._runtime.live[self._run.id] = self
        self._task = asyncio.create_task(self._drive(), name=self._run.id)

    @abstractmethod
    def _work(self) -> AsyncIterator[Event]:
        """Do the work and yield its events, at last RunEnded once the run's end is saved."""

    def _is_asked_for(self, _error: RicordoError) -> bool:
        """Return whether the caller, and no fault of the server, is the reason of the error."""
        return False

    async def _before_close(self, kind: str) -> None:  # noqa: B027 - most have nothing to do
        """Do what belongs to the run before it ends with an error of this kind."""

    def _close_in(self, tx: Transaction, reason: StopReason, error: dict[str, Any] | None) -> Run | None:
        """End the run in this transaction; None where it had ended already."""
        return close_run(tx, self._run, reason, error)

    async def _after(self, _run: Run) -> None:  # noqa: B027 - most have nothing to do
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
                ending = _Ending("error", INTERRUPTED, "The server stopped during this turn. Send the message again.")
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
            kind = "invalid_request" if self._is_asked_for(error) else "internal_error"
            ending = _Ending("error", kind, str(error))
        except Exception as error:
            log.exception("turn failed", extra={"run": self._run.id})
            ending = _Ending("error", "internal_error", "An unknown error occurred", type(error).__name__)
        return await self._close(ending)

    async def _close(self, ending: _Ending) -> RunEnded | Failed:
        # It is ending: who cancels it now only waits, as stopping it here would leave its run open.
        self._is_stopping = True
        run = self._run
        await self._before_close(ending.kind)
        error: dict[str, Any] | None = None
        if ending.reason != "cancelled":
            error = {"type": ending.kind, "message": ending.message}
        ended = await self._runtime.store.write(lambda tx: self._close_in(tx, ending.reason, error))
        if ended is None:
            # The run ended by another hand: a cancel from another process, or a save that went through while we were stopped.
            try:
                ended = await self._runtime.store.read(lambda tx: runs.get(tx, Scope(run.organization_id), run.id))
            except NotFound:
                return deleted(run, self._runtime)
        # A save that went through while we were stopped was told to nobody.
        self._feed.catch_up()
        if ended.status in ("completed", "cancelled"):
            return RunEnded(ended)
        stored = ended.error or {}
        return Failed(ended, stored.get("type", ending.kind), stored.get("message", ending.message), ending.detail)


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
