"""Vectors in PostgreSQL, beyond the contract of every index.

The tests cover approximate indexes, kills, and databases without pgvector.
"""

import asyncio
import logging
import math
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import text

from ricordo.errors import Unavailable
from ricordo.search import pgvector
from ricordo.search.index import PassageFilter, insert_passages
from ricordo.search.pgvector import PREFIX, BuildPlan, PgVectorIndex, VectorGroup, index_of
from ricordo.search.vector_index import VectorFilter, VectorRecord
from ricordo.storage import archives
from ricordo.storage.engine.postgres import PostgresStore, open_postgres
from tests.seams import make
from tests.seams.stores import ManualClock
from tests.support.library import Library
from tests.support.postgres import name_in, server

DATABASES = ("postgresql",)
LIMIT = 60  # seconds
ANY = VectorFilter()
# Indexes are built from forty vectors on. With SLOW a test calls `build` itself; with QUICK a
# search starts the build.
SLOW = BuildPlan(min_vectors=40, quiet_seconds=3600, retry_seconds=3600)
QUICK = BuildPlan(min_vectors=40, quiet_seconds=0, retry_seconds=0)
Rows = list[tuple[Any, ...]]


def unit(seed: int, dimension: int = 8) -> list[float]:
    numbers = random.Random(seed)  # noqa: S311 - nothing secret
    values = [numbers.gauss(0, 1) for _ in range(dimension)]
    length = math.sqrt(sum(value * value for value in values))
    return [value / length for value in values]


def records(count: int, dimension: int = 8) -> list[VectorRecord]:
    """Return this number of records, of which only the last ten have a tag."""
    return [
        VectorRecord(n, unit(n, dimension), n, tags=("rare",) if n > count - 10 else ())
        for n in range(1, count + 1)
    ]


def run(sql: str) -> Rows:
    return server().run(sql, name_in(server().shared_database()))


def indexes() -> dict[str, bool]:
    ours = (
        "SELECT relname, indisvalid FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid "
        "WHERE relname ^@ "
    )
    return dict(run(f"{ours}'{PREFIX}' ORDER BY relname"))


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT):
        while not await asyncio.to_thread(is_so):  # noqa: ASYNC110 - in the database
            await asyncio.sleep(0.01)


async def documents(
    index: PgVectorIndex,
    partition: str = "archive-1",
    seed: int = 1,
    limit: int = 10,
    wanted: VectorFilter = ANY,
) -> list[int]:
    return [
        document
        for document, _ in await index.search(partition, "model", unit(seed), limit, wanted)
    ]


@pytest.fixture
def _no_index_stays() -> Iterator[None]:
    yield
    for name in indexes():
        run(f'DROP INDEX "{name}"')


@pytest.fixture
async def index(store: PostgresStore, _no_index_stays: None) -> AsyncIterator[PgVectorIndex]:
    made = PgVectorIndex(store, SLOW)
    yield made
    await made.close()


@pytest.fixture
async def asked(store: PostgresStore) -> list[str]:
    """A list that grows with each search of the store.

    A search adds "near" if its statement can use the index, else "exact".
    """
    seen: list[str] = []

    def note(sql: str) -> None:
        if "ORDER BY embedding" in sql:
            seen.append("near" if "halfvec" in sql else "exact")

    store.statements.observers.append(note)
    return seen


# --- the approximate index ---


async def test_a_partition_that_has_grown_and_is_quiet_gets_an_index(
    store: PostgresStore, index: PgVectorIndex, asked: list[str]
) -> None:
    await index.upsert("archive-1", "model", records(50))
    assert (await documents(index))[0] == 1  # the records were written a moment ago
    # This new object is like an index after a restart: nothing was written through it.
    other = PgVectorIndex(store, QUICK)
    assert (await documents(other))[0] == 1
    await until(lambda: list(indexes().values()) == [True])
    assert (await documents(other))[0] == 1
    await other.upsert("archive-2", "model", records(39))
    assert (await documents(other, "archive-2"))[0] == 1
    assert other._task
    assert not await other._task  # too few vectors
    assert list(indexes()) == [VectorGroup("archive-1", "model", 8).index]
    assert asked == ["exact", "exact", "near", "exact"]
    await other.close()


async def test_the_index_finds_what_an_exact_search_finds_with_equal_similarities(
    index: PgVectorIndex, asked: list[str]
) -> None:
    await index.upsert("archive-1", "model", records(400))
    before = [
        await index.search("archive-1", "model", unit(-seed), 10, ANY) for seed in range(1, 21)
    ]
    assert await index.build("archive-1", "model", 8)
    after = [
        await index.search("archive-1", "model", unit(-seed), 10, ANY) for seed in range(1, 21)
    ]
    assert asked == ["exact"] * 20 + ["near"] * 20
    found = sum(len(set(one) & set(other)) for one, other in zip(before, after, strict=True))
    assert found >= 195  # pairs of a document and its similarity
    assert all(one == sorted(one, key=lambda hit: (-hit[1], hit[0])) for one in after)


async def test_filters_and_limits_decide_between_the_index_and_an_exact_search(
    index: PgVectorIndex, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await index.upsert("archive-1", "model", records(3000))
    assert await index.build("archive-1", "model", 8)
    values = pgvector._parameters(group := VectorGroup("archive-1", "model", 8), unit(1), 10, ANY)
    for statement, is_by_index in ((pgvector._near(8), True), (pgvector._NEAREST, False)):
        explained = text("EXPLAIN " + statement.element.text)  # type: ignore[attr-defined]
        plan = await index._store.read(
            lambda tx, sql=explained: tx.connection.execute(sql, values).all()
        )  # type: ignore[misc]
        assert (group.index in str(plan)) == is_by_index
    # The approximate index finds enough of these documents.
    half = await documents(index, wanted=VectorFilter(start=1500))
    assert len(half) == 10
    assert min(half) >= 1500
    assert asked == ["near"]
    for few in (
        VectorFilter(tags=("rare",)),
        VectorFilter(tags=("rare",), all_tags=True),
        VectorFilter(start=2991),
    ):
        assert sorted(await documents(index, wanted=few)) == list(range(2991, 3001))
    assert len(set(await documents(index, limit=700))) == 700
    assert asked == ["near"] + ["exact"] * 4
    # With `_ENOUGH` = 0 the index is always tried first. It finds too few documents, so an exact
    # search follows.
    monkeypatch.setattr(pgvector, "_ENOUGH", 0)
    assert sorted(await documents(index, limit=20, wanted=VectorFilter(tags=("rare",)))) == list(
        range(2991, 3001)
    )
    assert asked[-2:] == ["near", "exact"]


async def test_any_name_of_a_partition_or_model_is_safe_in_the_index(
    index: PgVectorIndex,
) -> None:
    for name in (
        "it's",
        'a "quoted" one',
        "50% of %s",
        "back\\slash",
        "'; DROP TABLE agents; --",
        "è",
    ):
        await index.upsert(name, name, records(50))
        assert await index.build(name, name, 8)
        assert (await index.search(name, name, unit(3), 10, ANY))[0][0] == 3
        await index.drop(name, name)
        assert indexes() == {}
    assert run("SELECT count(*) FROM agents") == [(0,)]


async def test_after_a_change_of_dimension_the_new_vectors_are_searched_and_the_old_index_goes(
    index: PgVectorIndex,
) -> None:
    await index.upsert("archive-1", "model", records(50))
    assert await index.build("archive-1", "model", 8)
    await index.upsert("archive-1", "model", records(45, dimension=12))
    assert (await index.search("archive-1", "model", unit(2, 12), 60, ANY))[0][0] == 2
    assert len(await index.search("archive-1", "model", unit(2, 12), 60, ANY)) == 45
    assert sorted(await documents(index, limit=60)) == [46, 47, 48, 49, 50]
    await index.remove("archive-1", "model", list(range(46, 51)))
    assert await index.build("archive-1", "model", 12)
    assert list(indexes()) == [VectorGroup("archive-1", "model", 12).index]


# --- kills, and several at once ---


async def test_an_unfinished_index_is_removed_and_built_again(
    store: PostgresStore, index: PgVectorIndex, asked: list[str]
) -> None:
    await index.upsert("archive-1", "model", records(50))
    index._not_before.clear()
    with psycopg.connect(server().url(name_in(server().shared_database()))) as old:
        # The build waits for this older transaction, so the index is closed in the middle of the
        # build.
        old.execute("SELECT count(*) FROM search_pgvector")
        old.execute("LOCK TABLE search_pgvector IN ROW EXCLUSIVE MODE")
        assert (await documents(index))[0] == 1
        await until(lambda: list(indexes().values()) == [False])
        await asyncio.wait_for(index.close(), LIMIT)
    assert list(indexes().values()) == [False]
    other = PgVectorIndex(store, SLOW)
    assert (await documents(other))[0] == 1
    await until(lambda: list(indexes().values()) == [True])
    assert asked == ["exact", "exact"]
    await other.close()


async def test_of_two_servers_one_builds_the_index_and_both_can_search(
    store: PostgresStore, index: PgVectorIndex, clock: ManualClock, tmp_path: Path
) -> None:
    other_store = open_postgres(
        server().shared_database(), connections=2, clock=clock, backups=tmp_path
    )
    other = PgVectorIndex(other_store, SLOW)
    await asyncio.gather(
        *(
            each.upsert("archive-1", "model", list(reversed(records(300))))
            for each in (index, other, index, other)
        )
    )
    outcomes = await asyncio.gather(
        *(each.build("archive-1", "model", 8) for each in (index, other))
    )
    assert any(outcomes)
    assert list(indexes().values()) == [True]
    assert len(await documents(other, limit=400)) == 300
    await other.close()
    await other_store.close()


async def test_a_failed_build_is_logged_and_searches_continue(
    index: PgVectorIndex, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pgvector, "_LINKS", 1)  # PostgreSQL requires at least two
    await index.upsert("archive-1", "model", records(50))
    with pytest.raises(Unavailable, match=r"pgvector failed: value 1 out of bounds"):
        await index.build("archive-1", "model", 8)
    index._not_before.clear()
    with caplog.at_level(logging.WARNING, "ricordo.search.pgvector"):
        assert (await documents(index))[0] == 1
        await until(lambda: "an index of vectors was not built" in caplog.text)
    assert (await documents(index))[0] == 1


# --- values ---


async def test_zero_and_very_long_vectors_are_handled_and_invalid_ones_refused(
    store: PostgresStore, index: PgVectorIndex
) -> None:
    await index.upsert("archive-1", "model", [*records(60), VectorRecord(99, [0.0] * 8, 1)])
    for _ in range(2):
        assert 99 not in await documents(index, limit=100)
        assert await index.search("archive-1", "model", [0.0] * 8, 10, ANY) == []
        assert await index.build("archive-1", "model", 8)
    with pytest.raises(Unavailable, match=r"pgvector failed: NaN not allowed in vector\. See that"):
        await index.upsert(
            "archive-2", "model", [VectorRecord(1, unit(1), 1), VectorRecord(2, [math.nan] * 8, 1)]
        )
    assert await documents(index, "archive-2") == []
    # A vector too long for an index is searched exactly.
    other = PgVectorIndex(store, BuildPlan(min_vectors=1, quiet_seconds=0, retry_seconds=0))
    await other.upsert("archive-3", "model", [VectorRecord(1, unit(1, 4001), 1)])
    assert [hit[0] for hit in await other.search("archive-3", "model", unit(1, 4001), 5, ANY)] == [
        1
    ]
    await other.close()
    assert len(indexes()) == 1
    # A search does not change how later transactions are planned.
    plans = await asyncio.gather(
        *(
            store.read(
                lambda tx: tx.connection.exec_driver_sql("SHOW plan_cache_mode").scalar_one()
            )
            for _ in range(8)
        )
    )
    assert set(plans) == {"auto"}


# --- databases that lack the extension ---


@pytest.fixture
def humble() -> Iterator[str]:
    """Make a database whose user may create tables but no extension; return its address."""
    server().run("CREATE ROLE humble LOGIN")
    server().run("CREATE DATABASE humble OWNER humble")
    yield server().url("humble").replace("postgres@", "humble@")
    server().run("DROP DATABASE humble WITH (FORCE)")
    server().run("DROP ROLE humble")


async def test_without_the_extension_the_database_works_and_uses_it_once_installed(
    humble: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_postgres(humble, connections=2, backups=tmp_path)
    with caplog.at_level(logging.INFO, "ricordo.search.pgvector"):
        assert await index_of(store) == {}
    assert "let an administrator run CREATE EXTENSION vector" in caplog.text
    with pytest.raises(Unavailable, match="pgvector failed"):
        await PgVectorIndex(store).upsert("archive-1", "model", records(1))
    server().run("CREATE EXTENSION vector", "humble")
    found = await asyncio.gather(index_of(store), index_of(store))
    assert [list(one) for one in found] == [["pgvector"], ["pgvector"]]
    index = found[0]["pgvector"]
    await index.upsert("archive-1", "model", records(3))
    assert (await index.search("archive-1", "model", unit(2), 1, ANY))[0][0] == 2
    for one in found:
        await one["pgvector"].close()
    await store.close()


async def test_an_outdated_or_unreachable_extension_is_not_used_and_the_log_says_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old, apart = server().new_database(), server().new_database(empty=True)
    server().run(
        "UPDATE pg_extension SET extversion = '0.7.4' WHERE extname = 'vector'", name_in(old)
    )
    server().run("CREATE SCHEMA apart", name_in(apart))
    server().run("CREATE EXTENSION vector SCHEMA apart", name_in(apart))
    for url, said in (
        (old, "pgvector 0.7.4 is too old"),
        (apart, "lies in a schema of the search path"),
    ):
        store = open_postgres(url, connections=1, backups=tmp_path)
        with caplog.at_level(logging.INFO, "ricordo.search.pgvector"):
            assert await index_of(store) == {}
        assert said in caplog.text
        await store.close()
        server().drop(url)


# --- archives with pgvector, from setting to search ---


async def test_an_archive_with_pgvector_is_searched_by_meaning(
    store: PostgresStore, tmp_path: Path
) -> None:
    available = await index_of(store)
    library = Library(store, tmp_path, available)
    state = await make.stored_agent(store)
    texts = [f"note {n} on tea" for n in range(60)]
    archive = make.archive("Outside", vector_db="pgvector")
    passages = [make.passage(archive, text) for text in texts]
    await store.write(lambda tx: archives.insert_one(tx, archive, owner=state.agent.id))
    await store.write(lambda tx: insert_passages(tx, archive, passages))
    await library.index(archive.id)
    assert run("SELECT count(*), min(partition) FROM search_pgvector") == [(60, archive.id)]

    async def found(query: str) -> Sequence[Any]:
        return await library.recall.passages(query, PassageFilter((archive.id,)), 3, "vector")

    hits = await found("note 17 on tea")
    assert hits[0].passage.text == texts[17]
    assert {hit.relevance.mode for hit in hits} == {"vector"}
    run("DELETE FROM search_pgvector")
    # A search by words only is better than no answer.
    assert {hit.relevance.mode for hit in await found("note 17 on tea")} == {"fts"}
    await available["pgvector"].close()
