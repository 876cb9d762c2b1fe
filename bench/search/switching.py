"""A change of the embedding model on live data.

`python -m bench.search.switching '{"rows": 10000}'` searches without a pause during the change. An
archive is embedded by one model and then by another, as after a change of the setting. During the
change every search must be answered, by meaning too. Afterwards the answers must equal those of an
archive that only the new model embedded. The environment names the database, as for a server.
"""

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from bench.report import Figure
from bench.search.filling import BATCH, insert_passages
from bench.search.places import Place
from ricordo.domain.job import Job
from ricordo.domain.scope import LOCAL_ORGANIZATION
from ricordo.llm.chat import Embedder
from ricordo.llm.embedding import embedded
from ricordo.llm.embedding.embedded import EmbeddedModel
from ricordo.llm.scripted import ScriptedEmbedder
from ricordo.memory.recall import FoundPassage, Recall
from ricordo.search import partitions
from ricordo.search.index import PassageFilter
from ricordo.search.indexer import Indexer
from ricordo.settings import load_settings
from ricordo.storage import archives
from ricordo.storage.engine.database import open_store
from ricordo.storage.engine.store import Store
from tests.seams import make
from tests.seams.stores import flush

SEED = 17
SEARCHERS = 4
QUESTIONS = 200
LIMIT = 10


@dataclass(frozen=True)
class Switched:
    """The searches during the change, and their results after it.

    `poor` searches were answered by words alone, or with fewer hits than exist. The answers after
    the change are compared with those of an archive that only the new model embedded. `same` is the
    share of questions with the same answer. `same_before` is that share before the change. Times
    are wall milliseconds.
    """

    searches: int
    errors: int
    poor: int
    p50: float
    p95: float
    seconds: float
    same: float
    same_before: float


class Models:
    """Two models. The first one is the default, as if the setting named it."""

    def __init__(self, *models: Embedder) -> None:
        self._models = {model.handle: model for model in models}
        self.default = models[0].handle

    def get(self, handle: str) -> Embedder:
        return self._models[handle]

    def default_handle(self) -> str:
        return self.default


class Switch:
    """Changes an archive's model under load, and compares with an archive of the new model."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._old, self._new = ScriptedEmbedder(dimensions=128), EmbeddedModel()
        self._errors: list[Exception] = []
        self._poor = 0
        self._took: list[float] = []

    async def run(self, texts: Sequence[str], questions: Sequence[str]) -> Switched:
        """Run the whole comparison."""
        changing, settled = [await self._archive(texts, name) for name in ("Changing", "Settled")]
        await self._embed(changing, Models(self._old))
        await self._embed(settled, Models(self._new))
        expected = await self._answers(settled, questions)
        before = await self._answers(changing, questions)
        searching = [
            asyncio.create_task(self._search(changing, questions[at::SEARCHERS]))
            for at in range(SEARCHERS)
        ]
        began = time.monotonic()
        await self._embed(changing, Models(self._new, self._old))
        seconds = time.monotonic() - began
        for task in searching:
            task.cancel()
        await asyncio.gather(*searching, return_exceptions=True)
        after = await self._answers(changing, questions)
        for error in self._errors[:3]:
            print(repr(error), file=sys.stderr)
        return Switched(
            len(self._took),
            len(self._errors),
            self._poor,
            statistics.median(self._took),
            sorted(self._took)[int(len(self._took) * 0.95)],
            seconds,
            _same(after, expected),
            _same(before, expected),
        )

    async def _archive(self, texts: Sequence[str], name: str) -> str:
        archive = make.archive(name)
        await self._store.write(lambda tx: archives.insert_one(tx, archive))
        for start in range(0, len(texts), BATCH):
            some = list(texts[start : start + BATCH])
            await self._store.write(
                lambda tx, some=some, at=start: insert_passages(tx, archive.id, some, at)
            )  # type: ignore[misc]
        while await self._store.write(lambda tx: flush(tx, archive.id)):
            pass
        return archive.id

    async def _embed(self, archive_id: str, models: Models) -> None:
        """Do the embedding job. It changes the archive's model if the default model changed."""
        work = Indexer(self._store, models, {})  # type: ignore[arg-type]
        await work.embed(
            Job(partitions.EMBED, LOCAL_ORGANIZATION, {"owner_id": archive_id}),
            lambda _done, _total: None,
        )

    def _recall(self) -> Recall:
        return Recall(self._store, Models(self._new, self._old), payer=None)  # type: ignore[arg-type]

    async def _ask(self, recall: Recall, archive_id: str, question: str) -> list[FoundPassage]:
        return await recall.passages(question, PassageFilter((archive_id,)), LIMIT)

    async def _answers(self, archive_id: str, questions: Sequence[str]) -> list[list[str]]:
        recall = self._recall()
        return [
            [hit.passage.text for hit in await self._ask(recall, archive_id, one)]
            for one in questions
        ]

    async def _search(self, archive_id: str, questions: Sequence[str]) -> None:
        """Ask one question after the other until the task is cancelled."""
        recall = self._recall()
        while True:
            for question in questions:
                began = time.perf_counter()
                try:
                    hits = await self._ask(recall, archive_id, question)
                except Exception as error:
                    self._errors.append(error)
                    continue
                self._took.append((time.perf_counter() - began) * 1000)
                self._poor += len(hits) < LIMIT or any(
                    hit.relevance.mode != "hybrid" for hit in hits
                )


def measure_switching(place: Place, rows: int) -> list[Figure]:
    """Change the model of an archive with this number of passages.

    Returns no figures if no embedding model is installed.
    """
    if not embedded.is_installed():
        return []
    switched = Switched(**place.run("bench.search.switching", {"rows": rows}))
    return [
        Figure(
            f"{place.name}: searches while the model of {rows} passages changes: errors",
            switched.errors,
            "",
            0,
        ),
        Figure(
            "  answered poorly: by words alone, or by fewer than there are", switched.poor, "", 0
        ),
        Figure("  searches", switched.searches, ""),
        Figure(f"  p50, {SEARCHERS} at once", switched.p50, "ms"),
        Figure("  p95", switched.p95, "ms"),
        Figure("  the change took", switched.seconds, "s"),
        Figure(
            "  then answered as if by the new model from the first",
            switched.same,
            "",
            0.99,
            more_is_better=True,
        ),
        Figure("  before the change answered so", switched.same_before, ""),
    ]


def _same(answers: Sequence[list[str]], expected: Sequence[list[str]]) -> float:
    return statistics.fmean(one == other for one, other in zip(answers, expected, strict=True))


async def _main(texts: Sequence[str], questions: Sequence[str]) -> None:
    settings, _ = load_settings()
    store = open_store(settings)
    try:
        switched = await Switch(store).run(texts, questions)
    finally:
        await store.close()
    print(json.dumps(asdict(switched)))


if __name__ == "__main__":
    from bench.search.subjects import Author

    author = Author(SEED)
    told = author.texts(json.loads(sys.argv[1])["rows"])
    asyncio.run(_main(told, author.questions(told, QUESTIONS)))
