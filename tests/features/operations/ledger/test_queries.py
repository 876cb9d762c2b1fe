"""The ledger: sums of turns and other work, by any group.

The sums stay when agents and users are deleted.
"""

from typing import Any

from ricordo.agents.deletion import purge_portion
from ricordo.domain.agent import Agent
from ricordo.domain.clock import DAY
from ricordo.domain.run import Run
from ricordo.domain.scope import LOCAL_ORGANIZATION, Scope
from ricordo.domain.usage import Expense, Usage
from ricordo.storage import deletion, runs
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.ledger import Grouping, LedgerEntry, LedgerQuery, entries
from tests.seams import make
from tests.seams.stores import START, count_statements

ALL = (START - 10 * DAY, START + 10 * DAY)


async def turn(store: SqliteStore, agent: Agent, *usages: Usage, **fields: Any) -> Run:
    """Store an ended run with a step for each usage."""
    model = fields.pop("model", "scripted/model")
    total = sum(usages, Usage())
    run = make.run(agent, **{"ended_at": START, "usage": total} | fields)
    steps = [
        make.step(run, usage=usage, model_handle=model, created_at=run.created_at)
        for usage in usages
    ]
    await store.write(
        lambda tx: (runs.open_run(tx, run), [runs.insert_step(tx, step) for step in steps])
    )
    return run


async def ledger_entries(
    store: SqliteStore, group_by: Grouping = "day", **which: Any
) -> list[LedgerEntry]:
    query = LedgerQuery(*which.pop("between", ALL), group_by, **which)
    return await store.read(lambda tx: entries(tx, Scope(), query))


def short(entries: list[LedgerEntry]) -> list[tuple[str | None, str, int]]:
    return [(entry.key, entry.model, entry.usage.total_tokens) for entry in entries]


def expense(purpose: Any, tokens: int, **fields: Any) -> Expense:
    return Expense(
        LOCAL_ORGANIZATION, purpose, fields.pop("model", "a/embed"), Usage(tokens), **fields
    )


async def used_tokens(store: SqliteStore, agent_id: str | None = None, since: int = START) -> int:
    return await store.read(lambda tx: runs.used_since(tx, LOCAL_ORGANIZATION, since, agent_id))


async def test_usage_of_turns_and_other_calls_is_summed_by_every_group(store: SqliteStore) -> None:
    one, two = [(await make.stored_agent(store)).agent for _ in range(2)]
    await turn(store, one, Usage(10, 1), Usage(20, 2), user_id="user-a")
    await turn(
        store, two, Usage(100, 5), purpose="sleeptime", model="b/model", created_at=START + DAY
    )
    await store.write(
        lambda tx: runs.add_expense(tx, expense("embedding", 7, created_at=START + DAY))
    )

    first, second = (one.id, "scripted/model", 33), (two.id, "b/model", 105)
    expected: dict[Grouping, list[tuple[str | None, str, int]]] = {
        "day": [
            ("2026-01-01", *first[1:]),
            ("2026-01-02", "a/embed", 7),
            ("2026-01-02", *second[1:]),
        ],
        "agent": [second, first, (None, "a/embed", 7)],
        "user": [(None, "a/embed", 7), (None, *second[1:]), ("user-a", *first[1:])],
    }
    for group, rows in expected.items():
        assert short(await ledger_entries(store, group)) == rows, group
    assert [key for key, _, _ in short(await ledger_entries(store, "model"))] == [
        "b/model",
        "scripted/model",
        "a/embed",
    ]
    assert [key for key, _, _ in short(await ledger_entries(store, "purpose"))] == [
        "sleeptime",
        "turn",
        "embedding",
    ]


async def test_filters_and_times_limit_the_summed_usage(store: SqliteStore) -> None:
    one, two = [(await make.stored_agent(store)).agent for _ in range(2)]
    await turn(store, one, Usage(10), user_id="user-a")
    await turn(store, two, Usage(100), purpose="sleeptime", model="b/model", created_at=START + DAY)
    await store.write(
        lambda tx: runs.add_expense(tx, expense("compaction", 7, agent_id=one.id, created_at=START))
    )

    for which, expected in (
        ({"agent_id": one.id}, 17),
        ({"user_id": "user-a"}, 10),
        ({"purpose": "compaction"}, 7),
        ({"model": "b/model"}, 100),
        ({"between": (START, START + 1)}, 17),
        ({"between": (START + 1, START + DAY + 1)}, 100),
    ):
        entries_of = await ledger_entries(store, **which)  # type: ignore[arg-type]
        assert sum(entry.usage.total_tokens for entry in entries_of) == expected, which
    assert await store.read(lambda tx: entries(tx, Scope("org-2"), LedgerQuery(*ALL))) == []
    await turn(store, one, Usage(10, 4, 3, None, 2), purpose="other")
    await turn(store, one, Usage(1, 1), purpose="other")
    (entry,) = await ledger_entries(store, purpose="other")
    assert entry.usage == Usage(11, 5, 3, None, 2)


async def test_the_ledger_is_one_indexed_statement(store: SqliteStore) -> None:
    await turn(store, (await make.stored_agent(store)).agent, Usage(1))
    with count_statements(store) as counted:
        await ledger_entries(store)
    (statement,) = counted.statements
    if store.engine.dialect.name == "sqlite":
        values = (1,) * statement.count("?")
        plan = await store.read(
            lambda tx: tx.connection.exec_driver_sql(
                f"EXPLAIN QUERY PLAN {statement}", values
            ).all()
        )
        steps = " | ".join(row[-1] for row in plan)
        assert all(
            name in steps for name in ("runs_by_time", "steps_by_run", "expenses_by_time")
        ), steps
        assert not any(name in steps for name in ("SCAN runs", "SCAN steps")), steps


async def test_used_tokens_count_turns_and_other_calls_since_a_time(store: SqliteStore) -> None:
    one, two = [(await make.stored_agent(store)).agent for _ in range(2)]
    assert await used_tokens(store) == 0
    await turn(store, one, Usage(10, 5), created_at=START)
    await turn(store, one, Usage(1000), created_at=START - 1)
    await turn(store, two, Usage(100), created_at=START)
    await store.write(
        lambda tx: runs.add_expense(tx, expense("compaction", 7, agent_id=one.id, created_at=START))
    )
    assert [await used_tokens(store, id) for id in (None, one.id, two.id)] == [122, 22, 100]
    with count_statements(store) as counted:
        await used_tokens(store)
    assert len(counted.statements) == 1


async def test_purging_an_agent_in_portions_keeps_the_sums(
    store: SqliteStore, scope: Scope
) -> None:
    agent = (await make.stored_agent(store)).agent
    for _ in range(3):
        await turn(store, agent, *[Usage(1)] * 200, user_id="user-a")
    before = [
        await ledger_entries(store, group) for group in ("day", "agent", "user", "model", "purpose")
    ]
    await store.write(lambda tx: deletion.hide_agent(tx, scope, agent.id))
    seen = []
    while await store.write(lambda tx: purge_portion(tx, "agent", agent.id)):
        seen.append(
            (
                sum(entry.usage.total_tokens for entry in await ledger_entries(store)),
                await used_tokens(store),
            )
        )
    assert {tokens for tokens, _ in seen} == {600}
    assert max(counted for _, counted in seen) <= 600
    assert await used_tokens(store) == 600
    assert [
        await ledger_entries(store, group) for group in ("day", "agent", "user", "model", "purpose")
    ] == before
