"""A disk that pauses at any write of a turn for longer than a lease, and a slow disk.

Other requests are answered meanwhile or afterwards, and nothing is lost or doubled. The test moves
the clock, so nothing waits. The long form pauses at every statement, and also delays each of them.
"""

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ricordo.agents.run_end import close_expired, close_expired_runs
from ricordo.agents.turn_start import LEASE
from ricordo.domain.clock import SECOND
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.engine.store import SqlStore
from tests.campaigns.sizes import RecordProperty, short_and_long
from tests.conftest import BOTH
from tests.seams.stage import LIMIT, Hooks, LineOf, Stage, call, soon
from tests.seams.stores import ManualClock

DATABASES = BOTH
_AGENTS, _TURNS = 4, 5
_SLOW = 0.03  # seconds that a slow disk takes for each statement


@pytest.fixture
async def stage(store: SqlStore, tmp_path: Path) -> AsyncIterator[Stage]:
    opened = await Stage(store, tmp_path, Hooks()).open()
    yield opened
    await opened.close()


class Stall:
    """An observer that pauses the disk at one statement of the writer, until `release`."""

    def __init__(self, store: SqlStore, at: int) -> None:
        self.reached = threading.Event()
        self._released = threading.Event()
        self._at = at
        self._count = 0
        self._writers = "sqlite-writer" if isinstance(store, SqliteStore) else "postgres"
        self._observers = store.statements.observers
        self._observers.append(self)

    def __call__(self, _sql: str) -> None:
        if not threading.current_thread().name.startswith(self._writers):
            return
        self._count += 1
        if self._count == self._at:
            self.reached.set()
            assert self._released.wait(LIMIT)

    def release(self) -> None:
        """Let the disk continue; it does not pause again."""
        self._released.set()
        self._observers.remove(self)

    async def comes_before(self, turn: "asyncio.Task[object]") -> bool:
        """Return whether the disk pauses before the turn is over."""
        waiting = asyncio.ensure_future(asyncio.to_thread(self.reached.wait, LIMIT))
        await asyncio.wait([turn, waiting], return_when=asyncio.FIRST_COMPLETED)
        is_reached = self.reached.is_set()
        self.reached.set()  # so that the thread ends
        await waiting
        return is_reached


async def say(stage: Stage, agent: str, number: int) -> str:
    """Take a turn that edits memory; return its failure, or ""."""
    fact = f"Fact {number}."
    stage.lines.extend([call("memory_insert", label="human", new_string=fact), "Noted."])
    answer = await stage.say(agent, f"Message {number}", otids=[f"otid-{number}"])
    return answer.failure.message if answer.failure else ""


async def stored(stage: Stage, agent: str, number: int) -> tuple[int, int]:
    """Return how often the message and the fact of this number are stored."""
    said = [message.text for message in await stage.history(agent) if message.role == "user"]
    fact = (await stage.block(agent, "human")).count(f"Fact {number}.")
    return said.count(f"Message {number}"), fact


async def close_others(stage: Stage) -> None:
    """Close runs of expired leases, as this server does, or another server on PostgreSQL."""
    if isinstance(stage.store, SqliteStore):
        await close_expired_runs(stage.runtime)
    else:
        await stage.store.write(close_expired)


@pytest.mark.parametrize("step", short_and_long(6, 1))
async def test_a_disk_that_stands_still_at_any_write_of_a_turn_loses_and_doubles_nothing(
    step: int,
    store: SqlStore,
    clock: ManualClock,
    stage: Stage,
    record_property: RecordProperty,
) -> None:
    stalls = 0
    other = await stage.agent(("human", "Ben."))
    for number in itertools.count():
        agent = await stage.agent(("human", "Ada."))
        stall = Stall(store, number * step + 1)
        turn = asyncio.ensure_future(say(stage, agent, number))
        has_stalled = await stall.comes_before(turn)
        if has_stalled:
            # Requests that only read are answered, however long the pause lasts.
            assert (await soon(stage.history(other)))[0].role == "system"
            clock.advance(LEASE / SECOND + 1)
            swept = asyncio.ensure_future(close_others(stage))
            await asyncio.sleep(0)
        stall.release()
        if has_stalled:
            await soon(swept)
        failure = await soon(turn)
        counts = await stored(stage, agent, number)
        assert max(counts) <= 1
        assert failure or counts == (1, 1)
        await stage.require_sound(agent)
        await stage.require_sound(other)
        if not has_stalled:
            assert not failure
            break
        stalls += 1
    assert stalls
    record_property("writes", stalls)


@pytest.mark.soak
async def test_turns_on_a_disk_that_is_slow_at_every_write_are_answered_once(
    store: SqlStore, stage: Stage, record_property: RecordProperty
) -> None:
    agents = [await stage.agent(("human", "Ada.")) for _ in range(_AGENTS)]
    writes = 0

    def wait(_sql: str) -> None:
        nonlocal writes
        writes += 1
        time.sleep(_SLOW)

    # In each turn the model answers first with the call, and then with the text.
    script: LineOf = lambda request: (  # noqa: E731 - one expression for each line
        "Noted."
        if request.messages[-1].role == "tool"
        else call("memory_insert", label="human", new_string="A fact.")
    )
    stage.lines.extend([script] * 2 * _AGENTS * _TURNS)
    store.statements.observers.append(wait)

    async def talk(agent: str) -> None:
        for number in range(_TURNS):
            answer = await stage.say(agent, f"Message {number}", otids=[f"{agent}-{number}"])
            assert answer.failure is None

    await asyncio.gather(*(talk(agent) for agent in agents))
    store.statements.observers.remove(wait)
    for agent in agents:
        said = [message.text for message in await stage.history(agent) if message.role == "user"]
        assert said == [f"Message {number}" for number in range(_TURNS)]
        await stage.require_sound(agent)
    assert writes > _AGENTS * _TURNS
    record_property("writes", writes)
