"""Fills a database before its server starts, in a separate process.

`python -m bench.search.filling '{"agent_id": …}'` uses a server's functions to store, index, merge
and embed the large agent, the large archive, and a few of the others. Storing a million rows this
way would take too long. So the others are copies of those few, made in SQL with new ids and
numbers. The environment names the database, as for a server.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import psutil
from sqlalchemy import func, select

from bench.search.copying import Copies
from bench.search.database_cpu import database_cpu
from bench.search.texts import SPEAKERS, Writer
from ricordo.domain.job import Job
from ricordo.domain.scope import LOCAL_ORGANIZATION, Scope
from ricordo.llm.embedding import embedded
from ricordo.llm.embedding.embedded import EmbeddedModel
from ricordo.search import index, partitions
from ricordo.search.flush import pack_rows, write_rows
from ricordo.search.indexer import Indexer
from ricordo.settings import load_settings
from ricordo.storage import agents, archives
from ricordo.storage.engine.database import open_store
from ricordo.storage.engine.store import Store, Transaction
from ricordo.storage.schema.core_tables import (
    search_documents,
    search_partitions,
    search_postings,
    search_terms,
    search_vectors,
)
from tests.seams import make
from tests.seams.stores import START, flush

BATCH = 500
OTHERS_ROWS = 1_000
TEMPLATES = 5
TAGS = 20
MINUTES_APART = 5
_MINUTE = 60_000_000
_QUESTIONS = 300
SEED = 11


@dataclass(frozen=True)
class Wanted:
    """The content of the database.

    The agent and the archive get `rows` each, and others have `others` rows in all. With answers,
    every second message of the agent is long.
    """

    agent_id: str
    archive_id: str
    rows: int
    others: int
    kinds: tuple[str, ...] = ("messages", "passages")
    with_answers: bool = False


@dataclass
class Filled:
    """The results: questions that the texts answer, and the costs of filling.

    Costs are processor milliseconds a row. `stored` is the whole cost of storing, and `indexed` is
    the part for the index. `database` is PostgreSQL's cost of storing and merging, `embedded` the
    cost of vectors. `text_bytes` and `index_bytes` are the bytes of a row's text, and the bytes of
    the index for it.
    """

    questions: list[str] = field(default_factory=list)
    seconds: float = 0.0
    stored: dict[str, float] = field(default_factory=dict)
    indexed: dict[str, float] = field(default_factory=dict)
    merged: dict[str, float] = field(default_factory=dict)
    database: dict[str, float] = field(default_factory=dict)
    embedded: dict[str, float] = field(default_factory=dict)
    text_bytes: dict[str, float] = field(default_factory=dict)
    index_bytes: dict[str, float] = field(default_factory=dict)
    slowest_merge: float = 0.0
    embedded_a_second: float = 0.0


class Filler:
    """Stores texts with a server's functions, and counts the costs."""

    def __init__(self, store: Store, wanted: Wanted) -> None:
        self.filled = Filled()
        self._store = store
        self._wanted = wanted
        self._writer = Writer(SEED)

    async def fill(self) -> Filled:
        """Fill the database.

        The rows of others are stored first, so that the large agent and archive are added to a full
        database.
        """
        began = time.monotonic()
        for kind in self._wanted.kinds:
            await self._others(kind, self._wanted.others // len(self._wanted.kinds) // OTHERS_ROWS)
        for kind in self._wanted.kinds:
            owner_id = self._wanted.agent_id if kind == "messages" else self._wanted.archive_id
            texts = await self._large(kind, owner_id)
            self.filled.questions += self._writer.questions(texts, _QUESTIONS)
        self.filled.seconds = time.monotonic() - began
        return self.filled

    async def _large(self, kind: str, owner_id: str) -> list[str]:
        with_answers = self._wanted.with_answers and kind == "messages"
        texts = self._writer.texts(self._wanted.rows, with_answers=with_answers)
        cpu = {"stored": 0.0, "indexed": 0.0, "merged": 0.0}
        before = database_cpu(psutil.Process().parent())
        with _counting(cpu):
            for start in range(0, len(texts), BATCH):
                began = time.process_time()
                await self._store_batch(kind, owner_id, texts[start : start + BATCH], start)
                cpu["stored"] += time.process_time() - began
                began = time.process_time()
                while await self._merge(owner_id):
                    pass
                cpu["merged"] += time.process_time() - began
        for name, seconds in cpu.items():
            getattr(self.filled, name)[kind] = seconds / len(texts) * 1000
        self.filled.database[kind] = (
            (database_cpu(psutil.Process().parent()) - before) / len(texts) * 1000
        )
        began, cpu_began = time.monotonic(), time.process_time()
        if await self._embed(owner_id):
            self.filled.embedded_a_second = len(texts) / (time.monotonic() - began)
            self.filled.embedded[kind] = (time.process_time() - cpu_began) / len(texts) * 1000
        self.filled.text_bytes[kind] = sum(len(text.encode()) for text in texts) / len(texts)
        stored = await self._store.read(lambda tx: index_bytes(tx, owner_id))
        self.filled.index_bytes[kind] = stored / len(texts)
        return texts

    async def _merge(self, owner_id: str) -> bool:
        """Do one merge, as the job does; return False if nothing was left to merge."""
        packed = await self._store.read(lambda tx: pack_rows(tx, owner_id))
        if packed is None:
            return False
        moment = time.monotonic()
        await self._store.write(lambda tx: write_rows(tx, packed))
        self.filled.slowest_merge = max(
            self.filled.slowest_merge, (time.monotonic() - moment) * 1000
        )
        return True

    async def _others(self, kind: str, owners: int) -> None:
        templates: list[str] = []
        for _ in range(min(TEMPLATES, owners)):
            templates.append(await self._template(kind))
        for number in range(owners - len(templates)):
            copies = Copies(templates[number % len(templates)], number)
            await self._store.write(copies.of_agent if kind == "messages" else copies.of_archive)

    async def _template(self, kind: str) -> str:
        if kind == "messages":
            owner_id = (await make.stored_agent(self._store)).agent.id
        else:
            archive = make.archive(f"Others {self._writer.texts(1)[0][:20]}")
            owner_id = archive.id
            await self._store.write(lambda tx: archives.insert_one(tx, archive))
        texts = self._writer.texts(OTHERS_ROWS)
        for start in range(0, len(texts), BATCH):
            await self._store_batch(kind, owner_id, texts[start : start + BATCH], start)
        while await self._store.write(lambda tx: flush(tx, owner_id)):
            pass
        await self._embed(owner_id)
        return owner_id

    async def _store_batch(self, kind: str, owner_id: str, texts: list[str], first: int) -> None:
        work = _insert_messages if kind == "messages" else insert_passages
        await self._store.write(lambda tx: work(tx, owner_id, texts, first))

    async def _embed(self, owner_id: str) -> bool:
        """Compute the vectors of the partition, as the job does.

        Returns False if no embedding model is installed.
        """
        if not embedded.is_installed():
            return False
        work = Indexer(self._store, Only(), {})  # type: ignore[arg-type]
        await work.embed(Job(partitions.EMBED, LOCAL_ORGANIZATION, {"owner_id": owner_id}), _ignore)
        return True


def index_bytes(tx: Transaction, owner_id: str) -> int:
    """Return the bytes of the index for an owner's documents, without the database's overhead."""
    sizes = [
        _length(search_documents.c.data, owner_id),
        _length(search_postings.c.data, owner_id),
        _length(search_postings.c.term, owner_id),
        _length(search_terms.c.term, owner_id),
        _length(search_vectors.c.data, owner_id),
    ]
    return sum(int(tx.first(size)[0] or 0) for size in sizes)


def _length(column: Any, owner_id: str) -> Any:
    owned = select(search_partitions.c.seq).where(search_partitions.c.owner_id == owner_id)
    return select(func.sum(func.length(column))).where(
        column.table.c.partition == owned.scalar_subquery()
    )


class Only:
    """A registry with only the embedded model."""

    def __init__(self) -> None:
        self._model = EmbeddedModel()

    def get(self, _handle: str) -> EmbeddedModel:
        return self._model

    def default_handle(self) -> str:
        return self._model.handle


def _ignore(_done: int, _total: int) -> None:
    """Ignore the progress."""


def _insert_messages(tx: Transaction, agent_id: str, texts: list[str], first: int) -> None:
    agent = agents.load(tx, Scope(), agent_id).agent
    new = [
        make.message(
            agent,
            text,
            "assistant" if number % 2 else "user",
            name=SPEAKERS[number % 2],
            created_at=START - (1_000_000 - number) * MINUTES_APART * _MINUTE,
        )
        for number, text in enumerate(texts, first)
    ]
    index.insert_messages(tx, new)


def insert_passages(
    tx: Transaction,
    archive_id: str,
    texts: list[str],
    first: int,
    minutes_apart: int = MINUTES_APART,
) -> None:
    """Store passages, numbered from `first` on; later numbers have later times.

    Passages that are hours apart are no neighbours.
    """
    archive = archives.get(tx, Scope(), archive_id)
    new = [
        make.passage(
            archive,
            text,
            tags=(f"tag {number % TAGS}", f"part {number // 10_000}"),
            created_at=START - (1_000_000 - number) * minutes_apart * _MINUTE,
        )
        for number, text in enumerate(texts, first)
    ]
    index.insert_passages(tx, archive, new)


@contextmanager
def _counting(cpu: dict[str, float]) -> Iterator[None]:
    """Count the part of the storing time that indexing takes."""
    kept: dict[str, Callable[..., Any]] = {"_put": index._put}

    def counted(work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> None:
            began = time.process_time()
            work(*arguments)
            cpu["indexed"] += time.process_time() - began

        return run

    for name, work in kept.items():
        setattr(index, name, counted(work))
    try:
        yield
    finally:
        for name, work in kept.items():
            setattr(index, name, work)


async def _main(wanted: Wanted) -> None:
    settings, _ = load_settings()
    store = open_store(settings)
    try:
        filled = await Filler(store, wanted).fill()
    finally:
        await store.close()
    print(json.dumps(asdict(filled)))


if __name__ == "__main__":
    asyncio.run(_main(Wanted(**json.loads(sys.argv[1]))))
