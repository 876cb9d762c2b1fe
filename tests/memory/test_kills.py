"""An owner's operations, killed at any statement.

Memory is then unchanged, and the next attempt succeeds.
"""

from collections.abc import Callable
from typing import Any

import pytest

from ricordo.domain.scope import Scope
from ricordo.memory import approval, user_memory
from ricordo.memory.user_memory import PutOptions, UserMemory
from ricordo.storage import history
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import users
from ricordo.storage.schema.memory_tables import (
    blobs,
    blocks,
    blocks_log,
    chains,
    commits,
    proposals,
)
from tests.memory.steps import ADA, TUTOR
from tests.seams.stores import Killed, count_statements, killed_at

TABLES = (users, chains, blocks, commits, blobs, proposals, blocks_log)


async def all_rows(store: SqliteStore) -> list[Any]:
    return await store.read(
        lambda tx: [tuple(map(tuple, tx.all(table.select()))) for table in TABLES]
    )


async def prepare_memory(store: SqliteStore) -> tuple[UserMemory, str, str]:
    """Make a memory with two blocks, a deleted one and a proposal.

    Returns its owner, the first version's id and the proposal's id.
    """

    def work(tx: Transaction) -> tuple[UserMemory, str, str]:
        owned = user_memory.open_memory(tx, Scope(), "ada", makes=True)
        for label in ("human", "goals", "old"):
            user_memory.put(tx, owned, label, "tea\n\nmaths", ADA, PutOptions(title=label))
        user_memory.delete(tx, owned, "old", ADA)
        first = history.page(tx, owned.chain.id)[-1].id.hex()
        proposal = user_memory.propose_edit(tx, owned, "human", "tea", "rum", TUTOR)
        user_memory.put(tx, owned, "human", "tea\n\nphysics", ADA)
        return owned, first, proposal.id

    return await store.write(work)


OPERATIONS: dict[str, Callable[[Transaction, UserMemory, str, str], object]] = {
    "put of a new user": lambda tx, _o, _f, _p: user_memory.put(
        tx, user_memory.open_memory(tx, Scope(), "bob", makes=True), "human", "x", ADA
    ),
    "put with settings": lambda tx, owned, _f, _p: user_memory.put(
        tx, owned, "human", "x", ADA, PutOptions(title="You")
    ),
    "put of a new block": lambda tx, owned, _f, _p: user_memory.put(tx, owned, "new", "x", ADA),
    "delete": lambda tx, owned, _f, _p: user_memory.delete(tx, owned, "human", ADA),
    "restore": lambda tx, owned, first, _p: user_memory.restore(tx, owned, "human", first, ADA),
    "restore of a deleted block": lambda tx, owned, _f, _p: user_memory.restore(
        tx, owned, "old", history.page(tx, owned.chain.id, label="old")[1].id.hex(), ADA
    ),
    "rename": lambda tx, owned, _f, _p: user_memory.rename(tx, owned, "human", "profile", ADA),
    "propose": lambda tx, owned, _f, _p: user_memory.propose_edit(
        tx, owned, "human", "physics", "art", TUTOR
    ),
    "approve": lambda tx, _o, _f, proposal: approval.approve(tx, Scope(), proposal, ADA),
    "settle": lambda tx, _o, _f, proposal: approval.approve(tx, Scope(), proposal, ADA, body="gin"),
    "reject": lambda tx, _o, _f, proposal: approval.reject(tx, Scope(), proposal, ADA, reason="No"),
}


@pytest.mark.parametrize("name", OPERATIONS)
async def test_an_operation_killed_at_any_statement_changes_nothing_and_can_be_repeated(
    store: SqliteStore, name: str
) -> None:
    owned, first, proposal = await prepare_memory(store)
    before = await all_rows(store)

    def work(tx: Transaction) -> object:
        return OPERATIONS[name](tx, owned, first, proposal)

    def work_and_stop(tx: Transaction) -> None:
        work(tx)
        raise Killed

    with count_statements(store) as counted, pytest.raises(Killed):
        await store.write(work_and_stop)
    assert await all_rows(store) == before
    for place in range(1, len(counted.statements) + 1):
        with killed_at(store, place), pytest.raises(Killed):
            await store.write(work)
    assert await all_rows(store) == before
    await store.write(work)
    assert await all_rows(store) != before
