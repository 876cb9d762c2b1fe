"""The save of a step whose PostgreSQL connection is lost, which is tried again."""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Connection

from ricordo.agents import step_save
from ricordo.agents import turn as turns
from ricordo.agents.turn import collect
from ricordo.agents.turn_start import LEASE
from ricordo.domain.clock import SECOND, Backoff
from ricordo.domain.message import TextPart
from ricordo.domain.model import ModelReply
from ricordo.domain.scope import LOCAL_ORGANIZATION
from ricordo.domain.usage import Usage
from ricordo.errors import Conflict
from ricordo.storage import runs
from ricordo.storage.engine import postgres
from ricordo.storage.engine.postgres import PostgresStore
from tests.seams.stage import LIMIT, Hooks, Line, Stage, call, soon, text_of
from tests.seams.stores import ManualClock

DATABASES = ("postgresql",)
_NO_PAUSE = Backoff(0.001, 1, 0.001)


@pytest.fixture
async def stage(store: PostgresStore, tmp_path: Path) -> AsyncIterator[Stage]:
    opened = await Stage(store, tmp_path, Hooks()).open()
    yield opened
    await opened.close()


class Cut:
    """Loses the connection at the commit of the next transaction that runs `statement`.

    `commits` tells whether the commit takes effect before that.
    """

    def __init__(self, stage: Stage, statement: str, *, commits: bool) -> None:
        self._statement = statement
        self._commits = commits
        self._is_due = False
        self.count = 0
        self._original: Callable[[Connection, str], None] = postgres._command
        stage.store.statements.observers.append(self._note)

    def _note(self, sql: str) -> None:
        self._is_due |= not self.count and sql.startswith(self._statement)

    def command(self, connection: Connection, sql: str) -> None:
        if sql == "COMMIT" and self._is_due and not self.count:
            self.count += 1
            if self._commits:
                self._original(connection, sql)
            connection.connection.driver_connection.close()  # type: ignore[union-attr]
            connection.invalidate()
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        self._original(connection, sql)


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize(
    ("lines", "cut_at"),
    [
        (["Noted."], "INSERT INTO steps"),
        ([call("memory_insert", label="human", new_string="Tea."), "Noted."], "INSERT INTO steps"),
    ],
    ids=["last step", "first step"],
)
async def test_a_step_whose_commit_was_lost_is_saved_once(
    stage: Stage,
    monkeypatch: pytest.MonkeyPatch,
    lines: list[Line],
    cut_at: str,
    commits: bool,
) -> None:
    monkeypatch.setattr(step_save, "_SAVE_BACKOFF", _NO_PAUSE)
    agent = await stage.agent(("human", "Ada."))
    stage.lines += lines
    cut = Cut(stage, cut_at, commits=commits)
    monkeypatch.setattr(postgres, "_command", cut.command)
    answer = await stage.say(agent)
    assert cut.count == 1
    assert (answer.run.status, text_of(answer)) == ("completed", "Noted.")
    assert answer.run.step_count == len(lines)
    said = [message.text for message in await stage.history(agent)]
    assert said.count("Noted.") == 1
    assert (await stage.block(agent, "human")).count("Tea.") == len(lines) - 1
    await stage.require_sound(agent)


async def test_a_save_is_tried_again_within_a_lease_that_was_renewed_during_the_model_call(
    stage: Stage, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "RENEWAL", 0.005)
    agent = await stage.agent()
    turn, gate = await stage.asked(agent, line="Noted.")
    clock.advance(2 * LEASE / SECOND)
    ends: set[int] = set()
    async with asyncio.timeout(LIMIT):
        while len(ends) < 3:  # the turn knows the renewals before the last one
            await asyncio.sleep(0.005)
            (run,) = await stage.runs(agent)
            if run.lease_expires_at > clock.now():
                ends.add(run.lease_expires_at)
    cut = Cut(stage, "INSERT INTO steps", commits=False)
    monkeypatch.setattr(postgres, "_command", cut.command)
    gate.open()
    answer = await soon(collect(turn))
    assert (cut.count, text_of(answer)) == (1, "Noted.")


@pytest.mark.parametrize("commits", [True, False])
async def test_tokens_are_paid_once_if_the_commit_of_a_turns_end_was_lost(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, commits: bool
) -> None:
    monkeypatch.setattr(turns, "CLOSE_AGAIN", _NO_PAUSE)
    monkeypatch.setattr(step_save.runs, "insert_step", _fail)
    agent = await stage.agent()
    stage.lines.append(ModelReply((TextPart("Never saved."),), Usage(100, 200)))
    cut = Cut(stage, "INSERT INTO expenses", commits=commits)
    monkeypatch.setattr(postgres, "_command", cut.command)
    turn = await stage.begin(agent)
    await soon(turn.wait())
    assert cut.count == 1
    await soon(asyncio.gather(*stage.runtime.unended.values()))
    used = partial(runs.used_since, organization_id=LOCAL_ORGANIZATION, since=0)
    assert await stage.store.read(used) == 300
    monkeypatch.undo()
    await stage.require_sound(agent)


def _fail(_tx: object, _row: object) -> None:
    raise Conflict("The step cannot be stored.")


async def refused(stage: Stage, agent: str, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Let each save of a step fail from now on; return an event that is set at the first one."""
    is_refused = asyncio.Event()
    loop = asyncio.get_running_loop()

    def refuse(_tx: object, _row: object) -> None:
        loop.call_soon_threadsafe(is_refused.set)
        raise psycopg.OperationalError("sorry, too many clients already")

    monkeypatch.setattr(step_save.runs, "insert_step", refuse)
    monkeypatch.setattr(postgres, "_is_lost", lambda _cause: False)
    return is_refused


async def test_a_cancel_ends_a_turn_whose_save_is_tried_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_save, "_SAVE_BACKOFF", Backoff(1, 1, 1))
    agent = await stage.agent()
    is_refused = await refused(stage, agent, monkeypatch)
    stage.lines.append("Never saved.")
    turn = await stage.begin(agent)
    await soon(is_refused.wait())
    await soon(turn.cancel())
    assert [run.status for run in await stage.runs(agent)] == ["cancelled"]
    monkeypatch.undo()
    await stage.require_sound(agent)


async def test_a_save_is_not_tried_again_when_the_lease_is_about_to_end(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_save, "LEASE_MARGIN", LEASE)
    agent = await stage.agent()
    await refused(stage, agent, monkeypatch)
    stage.lines.append("Never saved.")
    turn = await stage.begin(agent)
    answer = await soon(collect(turn))
    assert answer.failure
    assert "The database failed" in answer.failure.message
    monkeypatch.undo()
    await stage.require_sound(agent)
