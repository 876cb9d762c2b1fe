"""Agents that other tables name are found by their ids, not among all of the organization."""

from typing import Any

from sqlalchemy import event, select
from sqlalchemy.engine import Engine

from ricordo.domain.scope import Scope
from ricordo.storage import agent_access, agent_lookup, users
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import agents_users
from tests.seams import make

DATABASES = ("sqlite",)


async def test_agents_that_another_table_names_are_found_by_their_ids(store: SqliteStore) -> None:
    ids = [(await make.stored_agent(store, make.agent(f"A{n}"))).agent.id for n in range(5)]
    seen: list[tuple[str, Any]] = []

    def see(_connection: Any, _cursor: Any, statement: str, values: Any, *_given: Any) -> None:
        seen.append((statement, values))

    def find(tx: Transaction) -> tuple[list[str], list[str], list[str]]:
        user = users.find_or_make(tx, Scope(), "ada")
        for id in ids[:2]:
            agent_access.attach_user(tx, id, user.id)
        named = select(agents_users.c.agent_id).where(agents_users.c.user_id == user.id)
        event.listen(Engine, "before_cursor_execute", see)
        among = agent_lookup.ids_among(tx, user.organization_id, named, limit=10)
        page = agent_lookup.page_of_ids(tx, Scope(), Page(order="asc"), named)
        event.remove(Engine, "before_cursor_execute", see)
        others = agent_lookup.ids_among(tx, "org-other", named, limit=10)
        assert others == []
        plans = [
            row[3]
            for statement, values in seen
            for row in tx.connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)
        ]
        return among, page, plans

    among, page, plans = await store.write(find)
    assert sorted(among) == sorted(ids[:2])
    assert page == ids[:2]
    read_agents = [line for line in plans if line.startswith(("SEARCH agents ", "SCAN agents"))]
    assert len(read_agents) == 2
    assert all("(id=?)" in line for line in read_agents), plans
