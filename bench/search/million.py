"""A million passages in one archive whose vectors are in pgvector.

The bench measures how long a search takes, and whether it finds the nearest passages.
"""

import asyncio
import statistics
import time
from dataclasses import asdict
from functools import partial

import httpx2
import numpy as np
import numpy.typing as npt
import psutil

from bench.report import Figure
from bench.search import asking
from bench.search.asking import LIMIT, Target, post
from bench.search.database_cpu import database_memory
from bench.search.loading import DIMENSION, Load, Loaded, kept_in
from bench.search.places import Place
from bench.servers import Server
from bench.waiting import wait_for_index
from ricordo.llm.embedding.embedded import EmbeddedModel
from ricordo.search import pgvector
from ricordo.search.pgvector import PREFIX

# An operator of such a large archive would choose these settings. With them the index and the
# vectors fit into memory, and both processors build the index.
SETTINGS = {
    "shared_buffers": "2GB",
    "maintenance_work_mem": "2GB",
    "max_parallel_maintenance_workers": "1",
}
_QUESTIONS = 100
_P50 = 60
_COMPARED = 20_000
# The order in which products are added changes a similarity by at most this. Passages with equal
# texts may replace each other.
_EQUAL = 1e-5
_MODES = (("by meaning alone", "vector"), ("as shipped", "hybrid"), ("words alone", "fts"))


def measure_million(place: Place, model_url: str, rows: int) -> list[Figure]:
    """Fill, search by meaning alone and as shipped, and compare with an exact search."""
    with place.server(model_url, RICORDO_EMBEDDING="none") as server:
        archive = asyncio.run(_make_archive(server))
    loaded = Loaded(
        **place.run("bench.search.loading", asdict(Load(archive, rows, str(place.folder))))
    )
    # The questions are taken from all parts of the archive.
    questions = loaded.questions[:: max(len(loaded.questions) // _QUESTIONS, 1)][:_QUESTIONS]
    figures = _loading_figures(place, loaded, rows)
    with place.server(model_url) as server:
        with httpx2.Client(base_url=server.url, timeout=60, trust_env=False) as client:
            wait_for_index(client, 3600)
        figures.append(
            Figure("  resident memory of the server before the first search", server.memory(), "MB")
        )
        searched, found = asyncio.run(_search(place, server, archive, questions))
        figures += searched
        figures.append(
            Figure("  resident memory of the server after all of them", server.memory(), "MB")
        )
        figures.append(Figure("  memory of PostgreSQL", database_memory(psutil.Process()), "MB"))
    began = time.monotonic()
    recall = _recall(place, questions, found)
    figures.append(
        Figure(
            f"{rows} passages: recall@{LIMIT} against exact", recall, "", 0.95, more_is_better=True
        )
    )
    figures.append(Figure("  comparing all vectors for that", time.monotonic() - began, "s"))
    return figures


async def _make_archive(server: Server) -> str:
    async with _client(server) as client:
        body = {"name": "A million", "vector_db_provider": pgvector.NAME}
        return str((await post(client, "/v1/archives/", body))["id"])


async def _search(
    place: Place, server: Server, archive: str, questions: list[str]
) -> tuple[list[Figure], list[list[str]]]:
    """Return the search times, and the passages that each question finds by meaning alone."""
    target = Target("passages", {"archive_id": archive})
    figures = []
    async with _client(server) as client:
        began = time.perf_counter()
        await target.ask(client, questions[0], search_mode="vector")
        figures.append(
            Figure("the first search of so large an archive", time.perf_counter() - began, "s")
        )
        for name, mode in _MODES:
            times = await asking.measure(
                client, partial(place.cpu, server), target, questions, search_mode=mode
            )
            budget = _P50 if mode == "vector" else None
            figures += [
                Figure(f"search of one archive so large, {name}: p50", times.p50, "ms", budget),
                Figure("  p95", times.p95, "ms"),
                Figure("  processor time", times.cpu, "ms"),
            ]
        hits = [await target.ask(client, question, search_mode="vector") for question in questions]
    return figures, [[hit["passage"]["id"] for hit in found] for found in hits]


def _loading_figures(place: Place, loaded: Loaded, rows: int) -> list[Figure]:
    names = {
        "storing": "stored, with their words and tags",
        "merging": "their words merged, 8,192 passages at a time",
        "embedding": "embedded and sent to pgvector",
        "building": "the index of vectors built",
    }
    sizes = place.ask(
        "SELECT pg_table_size('search_pgvector'), pg_total_relation_size('search_postings'),"  # noqa: S608 - names of our own
        " sum(pg_relation_size(indexrelid)) FROM pg_index WHERE indrelid = "
        f"'search_pgvector'::regclass AND indexrelid::regclass::text ^@ '{PREFIX}'"
    )
    vectors, words, index = (float(size) / 1e6 for size in sizes[0])
    return [
        *(
            Figure(f"{rows} passages: {name}", loaded.seconds[part], "s")
            for part, name in names.items()
        ),
        Figure("  most memory of the process that did it", loaded.memory, "MB"),
        Figure("  size of the index of vectors", index, "MB"),
        Figure("  size of the table of vectors", vectors, "MB"),
        Figure("  size of the postings of words", words, "MB"),
    ]


def _recall(place: Place, questions: list[str], found: list[list[str]]) -> float:
    """Return the mean share of the ten nearest passages that was found.

    A passage counts if it is as similar as the tenth.
    """
    kept = kept_in(place.folder)
    asked = np.array(
        asyncio.run(EmbeddedModel().embed(questions, purpose="query")), dtype=np.float32
    )
    best: npt.NDArray[np.float32] = np.full((len(asked), LIMIT), -1, dtype=np.float32)
    for start in range(0, len(kept.vectors), _COMPARED):
        similar = asked @ kept.vectors[start : start + _COMPARED].T
        best = np.partition(np.hstack([best, similar]), -LIMIT, axis=1)[:, -LIMIT:]
    ids = ",".join(f"'{id}'" for some in found for id in some)
    numbers = dict(place.ask(f"SELECT id, seq FROM passages WHERE id IN ({ids})"))  # noqa: S608 - ids of our own
    rows = {int(number): row for row, number in enumerate(kept.numbers)}
    shares = []
    for query, nearest, some in zip(asked, best, found, strict=True):
        vectors = kept.vectors[[rows[numbers[id]] for id in some]].reshape(-1, DIMENSION)
        shares.append(np.count_nonzero(vectors @ query >= nearest.min() - _EQUAL) / LIMIT)
    return statistics.fmean(shares)


def _client(server: Server) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=server.url, timeout=300, trust_env=False)
