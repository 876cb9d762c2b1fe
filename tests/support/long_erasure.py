"""Forgetting a user who said much, among others who said more: what each transaction of it costs those who want to write too.

Agents and archives are shared: of every so many rows one is hers. What is measured is the processor time of the thread that writes,
begin and commit with it, and how many rows change; the last step, which writes the files anew, is told apart.
"""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import text

from ricordo.domain.clock import SystemClock
from ricordo.domain.scope import Scope
from ricordo.features.erasure import queries
from ricordo.features.erasure.jobs import HANDLERS
from ricordo.features.erasure.service import forget
from ricordo.llm.registry import Models
from ricordo.memory import user_memory
from ricordo.plugins import Plugins
from ricordo.runtime import Runtime
from ricordo.search.index import insert_messages, insert_passages
from ricordo.settings import ProviderSettings, Settings
from ricordo.storage import conversations, jobs
from ricordo.storage.sqlite import SqliteStore, open_sqlite
from ricordo.storage.store import Transaction
from ricordo.tools.toolbox import Toolbox
from tests.support import make
from tests.support.search import flush

NEEDLE = "needle"
_FILES_ANEW = "scrub"
_AT_ONCE = 250


@dataclass(frozen=True)
class Size:
    """How much there is: her messages and passages, in so many shared agents, each with `others` times as many of others'."""

    messages: int
    passages: int
    agents: int = 2
    others: int = 2


@dataclass(frozen=True)
class Write:
    """One transaction: what it did, its processor time in milliseconds, and how many rows it changed."""

    work: str
    cpu: float
    rows: int


@dataclass
class Erasure:
    """What an erasure did: its transactions but the last, which writes the files anew, and rows of the index that are left."""

    writes: list[Write] = field(default_factory=list)
    left: int = 0

    def slowest(self, count: int = 5) -> list[Write]:
        """Those that took longest, the longest first."""
        return sorted(self.writes, key=lambda one: -one.cpu)[:count]


async def erase(folder: Path, size: Size) -> Erasure:
    """Lay out such a database, forget her, and tell how that went."""
    store = open_sqlite(folder / "ricordo.db", clock=SystemClock())
    try:
        runtime = _runtime(store, folder)
        await _fill(store, size)
        await forget(runtime, Scope(), "ada")
        job = await store.write(lambda tx: jobs.claim_one(tx, "worker", _job_id(tx)))
        assert job is not None
        done = Erasure()
        store._write = _measured(store, done)  # type: ignore[method-assign]
        await HANDLERS[0].run(runtime, job, lambda _done, _total: None)
        done.left = await store.read(_left)
    finally:
        await store.close()
    return done


def _runtime(store: SqliteStore, folder: Path) -> Runtime:
    settings = Settings.model_construct(data_dir=folder, find_local_models=False)
    models = Models(settings, ProviderSettings.model_construct())
    return Runtime(settings, store, models, Toolbox([]), Plugins([]))


async def _fill(store: SqliteStore, size: Size) -> None:
    """The user with a thread and passages at each agent, and what others have there, packed as after a quiet while."""
    words = Words()

    def make_user(tx: Transaction) -> str:
        owned = user_memory.open_memory(tx, Scope(), "ada", makes=True)
        user_memory.put(tx, owned, "human", "Ada.", owned.actor)
        return owned.user.id

    user_id = await store.write(make_user)
    for number in range(size.agents):
        state = await make.stored_agent(store, make.agent(f"Agent {number}"))
        archive = await make.stored_archive(store, state.agent)
        hers, theirs = (make.conversation(state.agent, id=f"conv-{who}-{number}", user_id=id) for who, id in
                        (("ada", user_id), ("others", None)))  # fmt: skip
        await store.write(lambda tx, new=(hers, theirs): [conversations.insert_one(tx, one) for one in new])  # type: ignore[misc]
        for portion in _portions(size.messages // size.agents, size.others):
            new = [
                make.message(
                    state.agent,
                    words.text(is_hers=is_hers),
                    conversation_id=(hers if is_hers else theirs).id,
                    user_id=user_id if is_hers else None,
                )
                for is_hers in portion
            ]
            await store.write(lambda tx, new=new: insert_messages(tx, new))  # type: ignore[misc]
        for portion in _portions(size.passages // size.agents, size.others):
            filed = [
                make.passage(archive, words.text(is_hers=is_hers), user_id=user_id if is_hers else None)
                for is_hers in portion
            ]
            await store.write(lambda tx, filed=filed, to=archive: insert_passages(tx, to, filed))  # type: ignore[misc]
        for kind, owner in (("messages", state.agent.id), ("passages", archive.id)):
            while await store.write(lambda tx, kind=kind, owner=owner: flush(tx, kind, owner)):  # type: ignore[misc]
                pass
    # Merges of a running server are done by its worker, and there is none here.
    await store.write(_end_merges)


def _portions(hers: int, others: int) -> Iterator[list[bool]]:
    turns = [place % (others + 1) == 0 for place in range(hers * (others + 1))]
    for start in range(0, len(turns), _AT_ONCE):
        yield turns[start : start + _AT_ONCE]


class Words:
    """Texts of some twenty words, of which some are said all the time and most seldom, as people do."""

    def __init__(self) -> None:
        self._chance = random.Random(5)  # noqa: S311 - no secret
        self._many = [f"w{number}" for number in range(20_000)]
        self._often = [1 / (number + 5) for number in range(20_000)]
        self._count = 0

    def text(self, *, is_hers: bool) -> str:
        """One text; each of hers has a word of its own."""
        self._count += 1
        own = [f"{NEEDLE}{self._count}"] if is_hers else []
        return " ".join([*self._chance.choices(self._many, self._often, k=20), *own])


def _measured(store: SqliteStore, done: Erasure) -> Callable[[Callable[[Transaction], Any]], Any]:
    write = type(store)._write

    def measured(work: Callable[[Transaction], Any]) -> Any:
        counted: list[int] = []

        def counting(tx: Transaction) -> Any:
            driver: Any = tx.connection.connection.driver_connection
            before = driver.total_changes
            result = work(tx)
            counted.append(driver.total_changes - before)
            return result

        began = time.thread_time()
        result = write(store, counting)
        name = getattr(work, "__qualname__", "")
        if not name.startswith(_FILES_ANEW):
            done.writes.append(Write(name, 1000 * (time.thread_time() - began), counted[0]))
        return result

    return measured


def _job_id(tx: Transaction) -> str:
    return next(job.id for job, _ in queries.known(tx))


def _end_merges(tx: Transaction) -> None:
    tx.run(text("DELETE FROM jobs"))


def _left(tx: Transaction) -> int:
    names = (("search_postings", "term"), ("search_terms", "term"))
    like = f"'{NEEDLE}%'"
    counts = [tx.all(text(f"SELECT count(*) FROM {table} WHERE {column} LIKE {like}"))[0][0] for table, column in names]  # noqa: S608
    return int(sum(counts)) + int(tx.all(text("SELECT count(*) FROM search_buffer"))[0][0])
