"""Weeks of simulated time, in which every due run happens exactly once.

Users come and go. Servers are down or killed, or two servers run at once.
"""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from ricordo.domain import cron
from ricordo.domain.agent import Agent
from ricordo.domain.clock import DAY, SECOND, to_datetime
from ricordo.domain.job import Job
from ricordo.domain.scope import Scope, User
from ricordo.features.tutor.courses.queries import courses
from ricordo.features.tutor.tasks import queries, service
from ricordo.features.tutor.tasks.jobs import _finish, carry_out
from ricordo.features.tutor.tasks.models import TaskRequest
from ricordo.storage import agents, conversations
from ricordo.storage.engine.postgres import PostgresStore
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Store, Transaction
from ricordo.storage.schema.columns import metadata
from ricordo.storage.users import ROWS
from tests.seams import make
from tests.seams.stage import Hooks, Stage
from tests.seams.stores import START, ManualClock

DATABASES = ("postgresql",)  # only PostgreSQL has several servers
EXPRESSION, IDLE = "0 */6 * * *", 12 * 60


class Killed(Exception):
    """The server was killed in the middle of a transaction."""


@dataclass
class World:
    """Users who talk sometimes, two tasks, and the expected runs."""

    store: Store
    clock: ManualClock
    chance: random.Random
    agent: Agent = field(default_factory=make.agent)
    last: dict[str, int] = field(default_factory=dict)
    expected: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    looked_at: int = 0

    async def begin(self, users: int) -> None:
        def work(tx: Transaction) -> None:
            metadata.create_all(tx.connection, tables=[courses, queries.tasks, queries.task_runs])
            agents.insert_one(tx, self.agent, [])
            for number in range(users):
                user = User(
                    f"user-{number}", self.agent.organization_id, f"U{number}", f"u{number}", START
                )
                ROWS.insert(tx, user)
                talk = make.conversation(self.agent, id=f"conv-{number}", user_id=user.id)
                conversations.insert_one(tx, talk)
                self.talk(tx, number)
            for name, trigger in (
                ("cron", {"type": "cron", "schedule": EXPRESSION}),
                ("idle", {"type": "idle", "idle_minutes": IDLE}),
            ):
                given: Any = {
                    "name": name,
                    "agent_id": self.agent.id,
                    "instructions": "Look.",
                    "trigger": trigger,
                }
                service.put(
                    tx,
                    Scope(),
                    self.agent.id,
                    TaskRequest.model_validate({**given, "active_days": 5}),
                )
            self.looked_at = tx.clock.now()

        await self.store.write(work)

    def talk(self, tx: Transaction, number: int) -> None:
        now = tx.clock.now()
        conversations.change(tx, f"conv-{number}", last_run_ended_at=now)
        self.last[f"user-{number}"] = now

    async def pass_hours(self, hours: int) -> None:
        """Let time pass.

        Some users talk. If a server runs, two servers look for due tasks, and one may be killed
        meanwhile.
        """
        self.clock.advance(hours * 3600)
        talking = [
            number for number in range(len(self.last)) if self.chance.random() < 0.03 * hours
        ]
        await self.store.write(lambda tx: [self.talk(tx, number) for number in talking])
        if self.chance.random() < 0.3:
            return  # no server runs
        self.foresee(self.clock.now())
        await asyncio.gather(*(self.look(is_killed=self.chance.random() < 0.3) for _ in range(2)))
        await self.look(is_killed=False)

    def foresee(self, now: int) -> None:
        active = [id for id, at in self.last.items() if at >= now - 5 * DAY]
        due = cron.parse(EXPRESSION).next_after(self.looked_at)
        if due and due <= now:
            self.expected.update(("cron", id, due) for id in active)
        self.looked_at = now
        idle = [id for id in active if self.last[id] <= now - IDLE * 60 * SECOND]
        self.expected.update(
            {
                ("idle", id, self.last[id]): 1
                for id in idle
                if ("idle", id, self.last[id]) not in self.expected
            }
        )

    async def look(self, *, is_killed: bool) -> None:
        for id in await self.store.read(queries.enabled_ids):

            def work(tx: Transaction, id: str = id) -> None:
                service.look(tx, id)
                if is_killed:
                    raise Killed

            try:
                await self.store.write(work)
            except Killed:
                return

    async def runs(self) -> list[queries.TaskRun]:
        def read(tx: Transaction) -> list[queries.TaskRun]:
            named = [queries.get(tx, Scope(), name) for name in ("cron", "idle")]
            return [
                run
                for task in named
                for run in queries.RUNS.page(tx, Scope(), Page(limit=1_000_000), task_id=task.id)
            ]

        return await self.store.read(read)

    async def finish(self) -> None:
        """Let two servers do all waiting work, and kill each sometimes between steps."""

        async def server() -> None:
            for _ in range(1_000_000):
                run = await self.store.read(lambda tx: queries.next_open(tx, []))
                if run is None:
                    return
                begun = await self.store.write(
                    lambda tx: service.begin(tx, run.id, lambda _: "conv-x")  # noqa: B023
                )
                if begun is None or self.chance.random() < 0.2:
                    continue  # killed
                await self.store.write(lambda tx: _end(tx, begun[1]))  # noqa: B023

        await asyncio.gather(server(), server())


def _end(tx: Transaction, run: queries.TaskRun) -> None:
    _finish(tx, replace(run, status="done"))


async def simulate(
    store: Store, clock: ManualClock, *, users: int, days: int, seed: int, hours: int = 1
) -> None:
    """Let these users live for some days in steps, and check the work done for them."""
    world = World(store, clock, random.Random(seed))  # noqa: S311 - chance for a test
    await world.begin(users)
    for _ in range(days * 24 // hours):
        await world.pass_hours(hours)
    runs = await world.runs()
    found = Counter((run.trigger, run.user_id, run.window) for run in runs)
    assert found.most_common(1)[0][1] == 1
    # The clock moves with every call, so an expected time may be some microseconds beyond the limit
    # of five days.
    assert found == world.expected, [
        (kind, id, str(to_datetime(at)))
        for kind, id, at in (found - world.expected) + (world.expected - found)
    ][:10]
    await world.finish()
    assert {run.status for run in await world.runs()} == {"done"}


async def test_every_due_task_runs_exactly_once_despite_kills(
    store: Store, clock: ManualClock
) -> None:
    await simulate(store, clock, users=4, days=3, seed=1, hours=6)


async def test_two_servers_execute_each_task_run_once(
    store: PostgresStore, clock: ManualClock, tmp_path: Path
) -> None:
    stages = [await Stage(store, tmp_path / name, Hooks()).open() for name in ("one", "two")]
    for stage in stages:
        stage.lines.extend(["Done."] * 8)
    world = World(store, clock, random.Random(3))  # noqa: S311 - chance for a test
    await world.begin(8)
    started = await store.write(lambda tx: service.start(tx, Scope(), "cron", None))
    assert len(started) == 8
    job = Job(service.RUN, "")
    await asyncio.gather(
        *(carry_out(stage.runtime, job, lambda _done, _all: None) for stage in stages)
    )
    ended = await world.runs()
    assert [run.status for run in ended] == ["done"] * 8
    assert (
        len({run.run_id for run in ended})
        == sum(len(stage.model.requests) for stage in stages)
        == 8
    )
    for stage in stages:
        await stage.close()


@pytest.mark.soak
async def test_a_simulated_month_of_a_hundred_users_runs_every_due_task(
    store: Store, clock: ManualClock
) -> None:
    await simulate(store, clock, users=100, days=30, seed=2)


async def test_finding_the_next_run_reads_no_ended_runs(
    store: PostgresStore, clock: ManualClock
) -> None:
    world = World(store, clock, random.Random(4))  # noqa: S311 - chance for a test
    await world.begin(30)
    for _ in range(12):
        clock.advance(6 * 3600)
        await store.write(lambda tx: [world.talk(tx, number) for number in range(30)])
        await world.look(is_killed=False)
    open_runs = [run for run in await world.runs() if run.ended_at is None]
    await store.write(lambda tx: [_end(tx, run) for run in open_runs[20:]])

    def rows_read(tx: Transaction) -> int:
        """Return the rows of runs that this connection read since the last update of statistics."""
        count = (
            "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = "
            "'task_runs'"
        )
        return int(tx.connection.exec_driver_sql(count).scalar_one())

    def read(tx: Transaction) -> tuple[bool, int]:
        # The counts may still include earlier transactions of this connection, so the test compares
        # the difference.
        before = rows_read(tx)
        run = queries.next_open(tx, [])
        return run is not None, rows_read(tx) - before

    assert len(open_runs) > 300
    is_found, count = await store.read(read)
    assert is_found
    assert count < len(open_runs) / 4  # Dead rows that PostgreSQL has not removed yet.
