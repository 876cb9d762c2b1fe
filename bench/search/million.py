"""A million passages in one archive on PostgreSQL: how long a search takes, and whether it finds what comparing all would."""

import asyncio
import statistics
import sys
import time
from functools import partial

import httpx2

from bench.report import Figure
from bench.search import asking
from bench.search.asking import LIMIT, Target, post
from bench.search.filling import Wanted
from bench.search.places import Place
from bench.servers import Server
from bench.waiting import wait_for_index
from ricordo.llm.embedding.embedded import EmbeddedModel
from ricordo.storage import archives, search
from ricordo.storage.index import vectors
from ricordo.storage.index.remembering import Memory
from ricordo.storage.postgres import open_postgres
from ricordo.storage.search import PassageFilter, Query
from ricordo.storage.store import Transaction

_QUESTIONS = 100
_P50 = 60


def measure_million(place: Place, model_url: str, rows: int) -> list[Figure]:
    """Fill, search by meaning alone and as shipped, and compare with what is found where every vector is compared."""
    with place.server(model_url, RICORDO_EMBEDDING="none") as server:
        archive = asyncio.run(_make_archive(server))
    filled = place.fill(Wanted("", archive, rows, 0, ("passages",)))
    figures = [Figure(f"{rows} passages: filled in", filled.seconds, "s")]
    questions = filled.questions[:_QUESTIONS]
    with place.server(model_url) as server:
        with httpx2.Client(base_url=server.url, timeout=60, trust_env=False) as client:
            wait_for_index(client, 3600)
        figures += asyncio.run(_search(place, server, archive, questions))
        found = asyncio.run(_found(server, archive, questions))
        figures.append(Figure("  resident memory of the server", server.memory(), "MB"))
        began = time.monotonic()
        exact = asyncio.run(_exactly(place, archive, questions))
        seconds = time.monotonic() - began
    recall = statistics.fmean(len(set(ours) & set(best)) / len(best) for ours, best in zip(found, exact, strict=True))
    figures.append(Figure(f"{rows} passages: recall@{LIMIT} against exact", recall, "", 0.95, more_is_better=True))
    figures.append(Figure("  all questions exactly, reading the vectors with them", seconds, "s"))
    return figures


async def _make_archive(server: Server) -> str:
    async with _client(server) as client:
        return str((await post(client, "/v1/archives/", {"name": "A million"}))["id"])


async def _search(place: Place, server: Server, archive: str, questions: list[str]) -> list[Figure]:
    target = Target("passages", {"archive_id": archive})
    figures = []
    async with _client(server) as client:
        for name, mode in (("by meaning alone", "vector"), ("as shipped", "hybrid"), ("words alone", "fts")):
            times = await asking.measure(client, partial(place.cpu, server), target, questions, search_mode=mode)
            figures += [
                Figure(f"search of one archive so large, {name}: p50", times.p50, "ms", _P50),
                Figure("  p95", times.p95, "ms"),
                Figure("  processor time", times.cpu, "ms"),
            ]
    return figures


async def _found(server: Server, archive: str, questions: list[str]) -> list[list[str]]:
    target = Target("passages", {"archive_id": archive})
    async with _client(server) as client:
        hits = [await target.ask(client, question, search_mode="vector") for question in questions]
    return [[hit["passage"]["id"] for hit in found] for found in hits]


async def _exactly(place: Place, archive: str, questions: list[str]) -> list[list[str]]:
    """What the same search finds where it compares every vector, in this process and with all the memory it likes."""
    model, few = EmbeddedModel(), vectors.FEW
    store = open_postgres(place.environment["RICORDO_DATABASE_URL"], connections=2, backups=place.folder / "backups")
    vectors.FEW = sys.maxsize
    try:
        await store.read(lambda tx: tx.memory.setdefault(Memory, Memory(sys.maxsize)))
        asked = await model.embed(questions, purpose="query")
        wanted = PassageFilter((archive,))
        queries = [Query(text, "vector", {model.handle: vector}) for text, vector in zip(questions, asked, strict=True)]
        return [await store.read(lambda tx, query=query: _ids(tx, query, wanted)) for query in queries]  # type: ignore[misc]
    finally:
        vectors.FEW = few
        await store.close()


def _ids(tx: Transaction, query: Query, wanted: PassageFilter) -> list[str]:
    found = search.find_passages(tx, query, wanted, LIMIT)
    return [passage.id for passage in archives.passages_by_numbers(tx, [hit.document for hit in found.hits])]


def _client(server: Server) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=server.url, timeout=300, trust_env=False)
