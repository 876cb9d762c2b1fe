"""Forgetting a user with many messages.

Every transaction of it is short, so that other writers do not wait. Agents and archives are shared,
and have rows of this user and of others. The last step, which rewrites the files, is left out.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from ricordo.domain.clock import SystemClock
from ricordo.domain.scope import Scope
from ricordo.features.memory_care.erasure import queries
from ricordo.features.memory_care.erasure.jobs import HANDLERS
from ricordo.features.memory_care.erasure.service import forget
from ricordo.memory import user_memory
from ricordo.search.index import insert_messages, insert_passages
from ricordo.storage import conversations, jobs
from ricordo.storage.engine.sqlite import SqliteStore, open_sqlite
from ricordo.storage.engine.store import Transaction
from tests.campaigns.sizes import short_and_long
from tests.seams import make
from tests.seams.jobs import runtime_on
from tests.seams.stores import flush

MOST_ROWS = 500
NEEDLE = "needle"


@dataclass(frozen=True)
class Size:
    """The user's messages and passages in shared agents; others have `others` times as many."""

    messages: int
    passages: int
    agents: int = 2
    others: int = 2


async def fill(store: SqliteStore, size: Size) -> None:
    """Store Ada's and others' data at each agent, flushed as after a quiet time.

    Each of her texts has a unique word.
    """
    chance = random.Random(5)  # noqa: S311 - no secret
    user_id = (
        await store.write(lambda tx: user_memory.open_memory(tx, Scope(), "ada", makes=True))
    ).user.id

    def said(count: int) -> Iterator[tuple[str, str | None]]:
        for number in range(count // size.agents * (size.others + 1)):
            # Most words are rare.
            words = [f"w{int(20_000 ** chance.random())}" for _ in range(20)]
            is_hers = number % (size.others + 1) == 0
            own = [f"{NEEDLE}{chance.getrandbits(48)}"] if is_hers else []
            yield " ".join([*words, *own]), user_id if is_hers else None

    async def store_all(
        owner: str, new: list[Any], insert: Callable[[Transaction, list[Any]], Any]
    ) -> None:
        for start in range(0, len(new), 250):
            await store.write(lambda tx, some=new[start : start + 250]: insert(tx, some))  # type: ignore[misc]
        while await store.write(lambda tx: flush(tx, owner)):
            pass

    for number in range(size.agents):
        agent = (await make.stored_agent(store, make.agent(f"Agent {number}"))).agent
        archive = await make.stored_archive(store, agent)
        threads = {
            who: make.conversation(agent, id=f"conv-{who}-{number}", user_id=who)
            for who in (user_id, None)
        }
        for thread in threads.values():
            await store.write(lambda tx, thread=thread: conversations.insert_one(tx, thread))  # type: ignore[misc]
        messages = [
            make.message(agent, words, conversation_id=threads[who].id, user_id=who)
            for words, who in said(size.messages)
        ]
        await store_all(agent.id, messages, insert_messages)
        passages = [make.passage(archive, words, user_id=who) for words, who in said(size.passages)]
        await store_all(
            archive.id, passages, lambda tx, new, into=archive: insert_passages(tx, into, new)
        )  # type: ignore[misc]
    # Flushes of a running server are done by its worker, and there is none here.
    await store.write(lambda tx: tx.run(text("DELETE FROM jobs")))


def counted(
    store: SqliteStore, writes: list[tuple[str, int]]
) -> Callable[[Callable[[Transaction], Any]], Any]:
    write = type(store)._write

    def counted_write(work: Callable[[Transaction], Any]) -> Any:
        name = getattr(work, "__qualname__", "")

        def counting(tx: Transaction) -> Any:
            driver: Any = tx.connection.connection.driver_connection
            before = driver.total_changes
            result = work(tx)
            if not name.startswith("scrub"):
                writes.append((name, driver.total_changes - before))
            return result

        return write(store, counting)

    return counted_write


def left(tx: Transaction) -> int:
    like = f"LIKE '{NEEDLE}%'"
    tables = (
        f"search_postings WHERE term {like}",
        f"search_terms WHERE term {like}",
        "search_buffer",
    )
    return sum(int(tx.all(text(f"SELECT count(*) FROM {rows}"))[0][0]) for rows in tables)  # noqa: S608


@pytest.mark.parametrize(
    "size",
    short_and_long(
        Size(messages=260, passages=260, agents=2, others=1), Size(messages=20_000, passages=20_000)
    ),
)
async def test_no_transaction_of_an_erasure_changes_more_than_five_hundred_rows(
    tmp_path: Path, size: Size
) -> None:
    store = open_sqlite(tmp_path / "ricordo.db", clock=SystemClock())
    writes: list[tuple[str, int]] = []
    try:
        await fill(store, size)
        runtime = runtime_on(store, tmp_path)
        await forget(runtime, Scope(), "ada")
        job = await store.write(
            lambda tx: jobs.claim_one(tx, "worker", queries.known_with_jobs(tx)[0][0].id)
        )
        assert job is not None
        store._write = counted(store, writes)  # type: ignore[method-assign]
        await HANDLERS[0].run(runtime, job, lambda _done, _total: None)
        assert await store.read(left) == 0
    finally:
        await store.close()
    assert len(writes) > 20
    assert max(rows for _, rows in writes) <= MOST_ROWS, writes
