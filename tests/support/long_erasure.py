"""Forgetting a user who said much, among others who said more: how many rows each transaction of it changes.

Agents and archives are shared: of every so many rows one is hers. The last step, which writes the files anew, is left out.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import text

from ricordo.domain.clock import SystemClock
from ricordo.domain.scope import Scope
from ricordo.features.erasure import queries
from ricordo.features.erasure.jobs import HANDLERS
from ricordo.features.erasure.service import forget
from ricordo.memory import user_memory
from ricordo.search.index import insert_messages, insert_passages
from ricordo.storage import conversations, jobs
from ricordo.storage.engine.sqlite import SqliteStore, open_sqlite
from ricordo.storage.engine.store import Transaction
from tests.seams import make
from tests.seams.jobs import runtime_on
from tests.seams.stores import flush

_NEEDLE = "needle"
_AT_ONCE = 250
# Of texts of some twenty words, most are said seldom and some all the time, as people do.
_WORDS = [f"w{number}" for number in range(20_000)]
_OFTEN = [1 / (number + 5) for number in range(20_000)]


@dataclass(frozen=True)
class Size:
    """How much there is: her messages and passages, in so many shared agents, each with `others` times as many of others'."""

    messages: int
    passages: int
    agents: int = 2
    others: int = 2


async def erase(folder: Path, size: Size) -> tuple[list[tuple[str, int]], int]:
    """Lay out such a database and forget her. Returns each transaction with the rows it changed, and rows of the index left."""
    store = open_sqlite(folder / "ricordo.db", clock=SystemClock())
    writes: list[tuple[str, int]] = []
    try:
        await _fill(store, size)
        runtime = runtime_on(store, folder)
        await forget(runtime, Scope(), "ada")
        job = await store.write(lambda tx: jobs.claim_one(tx, "worker", queries.known(tx)[0][0].id))
        assert job is not None
        store._write = _counted(store, writes)  # type: ignore[method-assign]
        await HANDLERS[0].run(runtime, job, lambda _done, _total: None)
        return writes, await store.read(_left)
    finally:
        await store.close()


async def _fill(store: SqliteStore, size: Size) -> None:
    """The user with a conversation and passages at each agent, and what others have there, packed as after a quiet while."""
    chance, user_id = random.Random(5), await store.write(_user)  # noqa: S311 - no secret

    def said(number: int) -> tuple[str, bool]:
        """A text and whether it is hers; each of hers has a word of its own."""
        is_hers = number % (size.others + 1) == 0
        own = [f"{_NEEDLE}{chance.getrandbits(48)}"] if is_hers else []
        return " ".join([*chance.choices(_WORDS, _OFTEN, k=20), *own]), is_hers

    async def store_all(owner: str, new: list[Any], insert: Callable[[Transaction, list[Any]], Any]) -> None:
        for start in range(0, len(new), _AT_ONCE):
            await store.write(lambda tx, some=new[start : start + _AT_ONCE]: insert(tx, some))  # type: ignore[misc]
        while await store.write(lambda tx: flush(tx, owner)):
            pass

    rows = [number // size.agents * (size.others + 1) for number in (size.messages, size.passages)]
    for number in range(size.agents):
        agent = (await make.stored_agent(store, make.agent(f"Agent {number}"))).agent
        archive = await make.stored_archive(store, agent)
        own = make.conversation(agent, id=f"conv-ada-{number}", user_id=user_id)
        theirs = make.conversation(agent, id=f"conv-others-{number}")
        await store.write(lambda tx, new=(own, theirs): [conversations.insert_one(tx, one) for one in new])  # type: ignore[misc]
        messages = [
            make.message(
                agent, words, conversation_id=(own if is_hers else theirs).id, user_id=user_id if is_hers else None
            )
            for words, is_hers in map(said, range(rows[0]))
        ]
        await store_all(agent.id, messages, insert_messages)
        passages = [
            make.passage(archive, words, user_id=user_id if is_hers else None)
            for words, is_hers in map(said, range(rows[1]))
        ]
        await store_all(archive.id, passages, lambda tx, new, into=archive: insert_passages(tx, into, new))  # type: ignore[misc]
    # Flushes of a running server are done by its worker, and there is none here.
    await store.write(lambda tx: tx.run(text("DELETE FROM jobs")))


def _user(tx: Transaction) -> str:
    owned = user_memory.open_memory(tx, Scope(), "ada", makes=True)
    user_memory.put(tx, owned, "human", "Ada.", owned.actor)
    return owned.user.id


def _counted(store: SqliteStore, writes: list[tuple[str, int]]) -> Callable[[Callable[[Transaction], Any]], Any]:
    write = type(store)._write

    def counted(work: Callable[[Transaction], Any]) -> Any:
        name = getattr(work, "__qualname__", "")

        def counting(tx: Transaction) -> Any:
            driver: Any = tx.connection.connection.driver_connection
            before = driver.total_changes
            result = work(tx)
            if not name.startswith("scrub"):
                writes.append((name, driver.total_changes - before))
            return result

        return write(store, counting)

    return counted


def _left(tx: Transaction) -> int:
    like = f"LIKE '{_NEEDLE}%'"
    counted = (f"search_postings WHERE term {like}", f"search_terms WHERE term {like}", "search_buffer")
    return sum(int(tx.all(text(f"SELECT count(*) FROM {rows}"))[0][0]) for rows in counted)  # noqa: S608
