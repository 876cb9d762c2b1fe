"""Round trips to PostgreSQL of a turn and of reading an agent, as libpq traces them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from psycopg.pq import Trace

from ricordo.domain.scope import Scope
from ricordo.storage import agents
from ricordo.storage.agents import _STATE, _STATE_FOR_ONE
from ricordo.storage.engine.postgres import PostgresStore, open_postgres
from tests.seams.stage import Hooks, Stage, text_of
from tests.support.postgres import server

DATABASES = ("postgresql",)
_LONGEST = 4096  # Bytes; psycopg caches the parsed form of statements up to this size.


@pytest.fixture
def one(store: PostgresStore, tmp_path: Path) -> Iterator[PostgresStore]:
    """A store with one connection, so that one trace shows all of its traffic."""
    opened = open_postgres(
        server().shared_database(), connections=1, clock=store.clock, backups=tmp_path
    )
    yield opened
    opened._close()


Traced = Callable[[], list[str]]


@contextmanager
def traced(store: PostgresStore, folder: Path) -> Iterator[Traced]:
    """Trace the messages to and from PostgreSQL; yield a function that reads them."""
    (connection,) = store._connections
    driver: Any = connection.connection.driver_connection
    path = folder / "trace"
    with path.open("w") as file:
        driver.pgconn.trace(file.fileno())
        driver.pgconn.set_trace_flags(Trace.SUPPRESS_TIMESTAMPS)
        yield lambda: path.read_text().splitlines()
        driver.pgconn.untrace()


def trips(lines: list[str]) -> int:
    """Count the messages by which PostgreSQL says that it waits for the next request."""
    return sum("ReadyForQuery" in line for line in lines)


@pytest.fixture
async def stage(one: PostgresStore, tmp_path: Path) -> Any:
    opened = await Stage(one, tmp_path, Hooks()).open()
    yield opened
    await opened.close()


async def test_reading_an_agent_takes_five_round_trips_and_a_plain_turn_sixteen(
    stage: Stage, one: PostgresStore, tmp_path: Path
) -> None:
    agent = await stage.agent(("human", "Ada."))
    for _ in range(3):  # Preparing the statements takes round trips too.
        stage.lines.append("Here.")
        await stage.say(agent)
    with traced(one, tmp_path) as lines:
        await one.read(lambda tx: agents.load(tx, Scope(), agent))
    # One statement each for the state, the blocks and the tools; two for the unit of work.
    assert trips(lines()) == 5
    stage.lines.append("Here.")
    with traced(one, tmp_path) as lines:
        assert text_of(await stage.say(agent)) == "Here."
    assert trips(lines()) == 16  # twelve statements in two units


def test_the_statements_of_an_agents_state_fit_psycopgs_cache(one: PostgresStore) -> None:
    parameters = dict.fromkeys(("agent_id", "organization_id", "user_id", "conversation_id"), "")
    for statement in (_STATE, _STATE_FOR_ONE):
        prepared = one.statements.prepare(statement, parameters)
        assert prepared is not None
        assert len(prepared.sql.encode()) <= _LONGEST
