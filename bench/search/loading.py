"""Fills an archive whose vectors are in pgvector, in a separate process.

`python -m bench.search.loading '{"archive_id": …}'` stores passages, words and vectors with a
server's functions. Only the merges are larger than those of a server. A server makes many short
merges, which take several times as long in all. The environment names the database. The vectors are
also written to two files.
"""

import asyncio
import json
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bench.search.filling import SEED, Only, insert_passages
from bench.search.subjects import Author
from ricordo.domain.job import Job
from ricordo.domain.scope import LOCAL_ORGANIZATION
from ricordo.search import flush, partitions
from ricordo.search.indexer import Indexer
from ricordo.search.pgvector import NAME, BuildPlan, PgVectorIndex
from ricordo.search.reader import POSTING_CHUNK
from ricordo.search.vector_index import VectorRecord
from ricordo.settings import load_settings
from ricordo.storage.engine.database import open_store
from tests.seams import stores

if TYPE_CHECKING:
    from ricordo.storage.engine.postgres import PostgresStore

DIMENSION = 256
_BATCH = 1024
# Minutes between passages. They are so far apart that no passage raises the score of its neighbour.
# So a search by meaning has the order of similarity, like the exact search.
_APART = 4 * 60
_ASKED_OF_EACH = 50


@dataclass(frozen=True)
class Load:
    """The content of the archive: its number of passages, and the folder for the vectors' files."""

    archive_id: str
    rows: int
    folder: str


@dataclass
class Loaded:
    """The results: questions that the texts answer, and the seconds of each part."""

    questions: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    memory: float = 0.0  # largest memory of this process, in megabytes


class Kept:
    """Two files in a folder: the vectors in order, and the numbers of their documents."""

    def __init__(self, folder: Path, rows: int) -> None:
        self.vectors = _mapped(folder / "vectors", np.float32, (rows, DIMENSION))
        self.numbers = _mapped(folder / "numbers", np.int64, (rows,))


class _Noting(PgVectorIndex):
    """The index; it also writes its vectors to the files."""

    def __init__(self, store: "PostgresStore", kept: Kept) -> None:
        # The index is built after all vectors are stored, and not in a pause before.
        super().__init__(store, BuildPlan(quiet_seconds=24 * 60 * 60))
        self._kept = kept
        self._end = 0

    async def upsert(self, space: str, model: str, records: Sequence[VectorRecord]) -> None:
        await super().upsert(space, model, records)
        here = slice(self._end, self._end + len(records))
        self._kept.vectors[here] = [record.vector for record in records]
        self._kept.numbers[here] = [record.document for record in records]
        self._end += len(records)


class Loader:
    """Fills the archive, one part after the other."""

    def __init__(self, store: "PostgresStore", load: Load, author: Author) -> None:
        self.loaded = Loaded(
            seconds=dict.fromkeys(("storing", "merging", "embedding", "building"), 0.0)
        )
        self._store = store
        self._load = load
        self._author = author

    async def run(self) -> Loaded:
        """Fill the archive."""
        await self._words()
        await self._vectors()
        self.loaded.memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
        return self.loaded

    async def _words(self) -> None:
        archive_id = self._load.archive_id
        # With this limit every blob of postings is written once.
        flush.TERMS_WRITTEN_AT_ONCE = sys.maxsize
        for first in range(0, self._load.rows, POSTING_CHUNK):
            texts = self._author.texts(min(POSTING_CHUNK, self._load.rows - first))
            with self._timed("storing"):
                for start in range(0, len(texts), _BATCH):
                    some = texts[start : start + _BATCH]
                    await self._store.write(
                        lambda tx, some=some, at=first + start: insert_passages(
                            tx, archive_id, some, at, _APART
                        )  # type: ignore[misc]
                    )
            with self._timed("merging"):
                await self._store.write(lambda tx: stores.flush(tx, archive_id, POSTING_CHUNK))
            self.loaded.questions += self._author.questions(texts, _ASKED_OF_EACH)
            _tell("stored", first + len(texts), self._load.rows)

    async def _vectors(self) -> None:
        archive_id, model = self._load.archive_id, Only()
        index = _Noting(self._store, Kept(Path(self._load.folder), self._load.rows))
        work = Indexer(self._store, model, {NAME: index})  # type: ignore[arg-type]
        job = Job(partitions.EMBED, LOCAL_ORGANIZATION, {"owner_id": archive_id})
        with self._timed("embedding"):
            await work.embed(job, lambda done, total: _tell("embedded", done, total))
        _tell("building the index of vectors", 0, self._load.rows)
        with self._timed("building"):
            is_built = await index.build(archive_id, model.default_handle(), DIMENSION)
        assert is_built, "The archive is too small for an index of vectors."
        await index.close()

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.loaded.seconds[name] += time.monotonic() - began


def kept_in(folder: Path) -> Kept:
    """Open the files that a loader left in the folder."""
    return Kept(folder, (folder / "numbers").stat().st_size // np.dtype(np.int64).itemsize)


def _mapped(path: Path, kind: type, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    return np.memmap(path, kind, "r+" if path.exists() else "w+", shape=shape)


def _tell(what: str, done: int, total: int) -> None:
    """Print the progress now and then, since loading takes an hour."""
    if done % (POSTING_CHUNK * 2) == 0 or done == total:
        print(f"{time.strftime('%H:%M:%S')} {what}: {done} of {total}", file=sys.stderr, flush=True)


async def _main(load: Load, author: Author) -> None:
    settings, _ = load_settings()
    store = open_store(settings)
    try:
        loaded = await Loader(store, load, author).run()  # type: ignore[arg-type]
    finally:
        await store.close()
    print(json.dumps(asdict(loaded)))


if __name__ == "__main__":
    asyncio.run(_main(Load(**json.loads(sys.argv[1])), Author(SEED)))
