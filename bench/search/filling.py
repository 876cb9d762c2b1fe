"""Fills a database before its server starts, in a process of its own.

`python -m bench.search.filling '{"agent_id": …}'`.

The large agent and the large archive are stored, indexed, merged and embedded by the functions that
a server uses. So are a few of the others; the rest are copies of those in SQL, with ids and numbers
of their own, as a million more would take too long. Which database it is says the environment, as
for a server.
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
    """What is to be filled.

    The agent and the archive that get `rows` each, and how many rows others have in all. With
    answers, every second message of the agent is long.
    """

    agent_id: str
    archive_id: str
    rows: int
    others: int
    kinds: tuple[str, ...] = ("messages", "passages")
    with_answers: bool = False


@dataclass
class Filled:
    """What was done: questions that its texts answer, and what it took.

    Costs are processor milliseconds a row.

    `stored` is all of the storing, `indexed` its part for the index, `database` what PostgreSQL
    took for storing and merging, `embedded` what the vectors took. `text_bytes` and `index_bytes`
    are the bytes of a row's text, and of all that the index keeps of it.
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
    """Stores texts by the functions of a server, and counts what that takes."""

    def __init__(self, store: Store, wanted: Wanted) -> None:
        self.filled = Filled()
        self._store = store
        self._wanted = wanted
        self._writer = Writer(SEED)

    async def fill(self) -> Filled:
        """All of it.

        The others first, so that the large ones meet a database that is full already.
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
        """One merge, as the job does it; False where nothing was left to merge."""
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
        """Give the space its vectors, as the job does.

        False where no embedding model is installed.
        """
        if not embedded.is_installed():
            return False
        work = Indexer(self._store, Only(), {})  # type: ignore[arg-type]
        await work.embed(Job(partitions.EMBED, LOCAL_ORGANIZATION, {"owner_id": owner_id}), _ignore)
        return True


def index_bytes(tx: Transaction, owner_id: str) -> int:
    """All bytes that the index keeps of an owner's documents, without what a database adds."""
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
    """The embedded model as all there is."""

    def __init__(self) -> None:
        self._model = EmbeddedModel()

    def get(self, _handle: str) -> EmbeddedModel:
        return self._model

    def default_handle(self) -> str:
        return self._model.handle


def _ignore(_done: int, _total: int) -> None:
    """Nobody watches how far it is."""


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
    """Store passages, numbered from `first` on, the later the newer.

    With hours between them none is a neighbour of another.
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
    """Count what indexing takes of the storing: the call by which rows are made findable."""
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
