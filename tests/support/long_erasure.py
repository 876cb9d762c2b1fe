"""Forgetting a user who said much, among others who said more: what each transaction of it costs those who want to write too.

Agents and archives are shared: of every so many rows one is hers. What is measured is the processor time of the thread that writes,
begin and commit with it, and how many rows change; the last step, which writes the files anew, is left out.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import text

from ricordo.domain.clock import SystemClock
from ricordo.domain.scope import Scope
from ricordo.features.erasure import queries
from ricordo.features.erasure.jobs import HANDLERS
from ricordo.features.erasure.service import forget
from ricordo.llm.registry.models import Models
from ricordo.memory import user_memory
from ricordo.plugins import Plugins
from ricordo.runtime import Runtime
from ricordo.search.index import insert_messages, insert_passages
from ricordo.settings import ProviderSettings, Settings
from ricordo.storage import conversations, jobs
from ricordo.storage.engine.sqlite import SqliteStore, open_sqlite
from ricordo.storage.engine.store import Transaction
from ricordo.tools.toolbox import Toolbox
from tests.seams import make
from tests.seams.stores import flush

NEEDLE = "needle"
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
    done = Erasure()
    try:
        settings = Settings.model_construct(data_dir=folder, find_local_models=False)
        models = Models(settings, ProviderSettings.model_construct())
        runtime = Runtime(settings, store, models, Toolbox([]), Plugins([]))
        await _fill(store, size)
        await forget(runtime, Scope(), "ada")
        job = await store.write(lambda tx: jobs.claim_one(tx, "worker", queries.known(tx)[0][0].id))
        assert job is not None
        store._write = _measured(store, done)  # type: ignore[method-assign]
        await HANDLERS[0].run(runtime, job, lambda _done, _total: None)
        done.left = await store.read(_left)
    finally:
        await store.close()
    return done


async def _fill(store: SqliteStore, size: Size) -> None:
    """The user with a conversation and passages at each agent, and what others have there, packed as after a quiet while."""
    chance, user_id = random.Random(5), await store.write(_user)  # noqa: S311 - no secret

    def said(number: int) -> tuple[str, bool]:
        """A text and whether it is hers; each of hers has a word of its own."""
        is_hers = number % (size.others + 1) == 0
        own = [f"{NEEDLE}{chance.getrandbits(48)}"] if is_hers else []
        return " ".join([*chance.choices(_WORDS, _OFTEN, k=20), *own]), is_hers

    for number in range(size.agents):
        state = await make.stored_agent(store, make.agent(f"Agent {number}"))
        archive = await make.stored_archive(store, state.agent)
        own, theirs = (
            make.conversation(state.agent, id=f"conv-{who}-{number}", user_id=id)
            for who, id in (("ada", user_id), ("others", None))
        )

        def message(text: str, is_hers: bool, state: Any = state, own: Any = own, theirs: Any = theirs) -> Any:
            conversation = own if is_hers else theirs
            return make.message(state.agent, text, conversation_id=conversation.id, user_id=conversation.user_id)

        def passage(text: str, is_hers: bool, archive: Any = archive) -> Any:
            return make.passage(archive, text, user_id=user_id if is_hers else None)

        def insert(tx: Transaction, kind: str, new: list[Any], archive: Any = archive) -> None:
            if kind == "messages":
                insert_messages(tx, new)
            else:
                insert_passages(tx, archive, new)

        await store.write(lambda tx, new=(own, theirs): [conversations.insert_one(tx, one) for one in new])  # type: ignore[misc]
        for kind, owner, made, count in (
            ("messages", state.agent.id, message, size.messages),
            ("passages", archive.id, passage, size.passages),
        ):
            rows = [made(*said(place)) for place in range(count // size.agents * (size.others + 1))]
            for start in range(0, len(rows), _AT_ONCE):
                await store.write(lambda tx, k=kind, new=rows[start : start + _AT_ONCE], add=insert: add(tx, k, new))  # type: ignore[misc]
            while await store.write(lambda tx, kind=kind, owner=owner: flush(tx, kind, owner)):  # type: ignore[misc]
                pass
    # Flushes of a running server are done by its worker, and there is none here.
    await store.write(lambda tx: tx.run(text("DELETE FROM jobs")))


def _user(tx: Transaction) -> str:
    owned = user_memory.open_memory(tx, Scope(), "ada", makes=True)
    user_memory.put(tx, owned, "human", "Ada.", owned.actor)
    return owned.user.id


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
        if not name.startswith("scrub"):
            done.writes.append(Write(name, 1000 * (time.thread_time() - began), counted[0]))
        return result

    return measured


def _left(tx: Transaction) -> int:
    like = f"LIKE '{NEEDLE}%'"
    counted = ("search_postings WHERE term", "search_terms WHERE term")
    counts = [tx.all(text(f"SELECT count(*) FROM {table} {like}"))[0][0] for table in counted]  # noqa: S608
    return int(sum(counts)) + int(tx.all(text("SELECT count(*) FROM search_buffer"))[0][0])
