"""Vectors in the same PostgreSQL as everything else, searched by its extension pgvector: archives choose it as `pgvector`.

A partition is searched exactly while it is small; one with many vectors gets an approximate index of its own, built behind the
searches (`pgvector_building.py`). Vectors are kept whole; the index holds them in half precision, and what it finds is put in
order by the whole ones. Who else needs a vector gets it from the model again: this is a cache, like every other index.
"""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import TextualSelect, column, text
from sqlalchemy.exc import DBAPIError

from ricordo.errors import RicordoError, Unavailable
from ricordo.search.pgvector_builder import BuildPlan, IndexBuilder, VectorGroup, prefix_of
from ricordo.search.vector_index import VectorFilter, VectorIndex, VectorRecord
from ricordo.storage import migrations
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.engine.store import Store, Transaction, reason_of

if TYPE_CHECKING:
    from ricordo.storage.engine.postgres import PostgresStore

T = TypeVar("T")
log = logging.getLogger(__name__)
NAME = "pgvector"
# Rows of one transaction: with an index that must be kept, each costs some milliseconds.
_AT_ONCE = 25
_REMOVED_AT_ONCE = 500
# More than this is found by an exact search: no index is faster at that.
_MOST_FROM_INDEX = 500
_MOST_RESULTS = 1_000_000
# How many candidates the index keeps in view, and how many vectors it looks at before it gives up on a filter.
_IN_VIEW, _MOST_IN_VIEW = 300, 1000
_LOOKED_AT = 20_000
# Measured: the index pays where a filter admits this many times the limit. Below, reading all that it admits is faster, and exact.
_ENOUGH = 20

_MISSING = (
    'The extension "vector" is not in this database, so archives cannot use pgvector. Install pgvector 0.8 or newer on the '
    "PostgreSQL server, let an administrator run CREATE EXTENSION vector in this database, then start Ricordo again."
)
_OLD = (
    "pgvector {version} is too old; searching with filters needs 0.8. Install it on the PostgreSQL server, let an administrator "
    "run ALTER EXTENSION vector UPDATE in this database, then start Ricordo again."
)
_UNUSABLE = (
    "The table search_pgvector could not be made, so archives cannot use pgvector. See that this database's user may create "
    'tables, and that the extension "vector" lies in a schema of the search path, then start Ricordo again.'
)
_STATE = text(
    "SELECT (SELECT extversion FROM pg_extension WHERE extname = 'vector') AS version,"
    " to_regclass('search_pgvector') IS NOT NULL AS has_table"
)
_COLUMNS = (
    "partition",
    "model",
    "document",
    "dimension",
    "created_at",
    "role",
    "conversation",
    "user_id",
    "tags",
    "embedding",
)
_CASTS = {"tags": "CAST(:tags AS text[])", "embedding": "CAST(:embedding AS vector)"}
_UPSERT = text(
    f"INSERT INTO search_pgvector ({', '.join(_COLUMNS)})"  # noqa: S608 - names of our own
    f" VALUES ({', '.join(_CASTS.get(name, f':{name}') for name in _COLUMNS)}) ON CONFLICT (partition, model, document)"
    f" DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _COLUMNS[3:])}"
)
_REMOVE = text(
    "DELETE FROM search_pgvector WHERE partition = :partition AND model = :model AND document = ANY(CAST(:documents AS bigint[]))"
)
_DROP_SOME = text(
    "DELETE FROM search_pgvector WHERE ctid = ANY(ARRAY("
    "SELECT ctid FROM search_pgvector WHERE partition = :partition AND model = :model LIMIT :most))"
)
_HAS_INDEX = text(
    "SELECT EXISTS (SELECT FROM pg_indexes WHERE tablename = 'search_pgvector' AND indexname ^@ :prefix) AS has_index"
).columns(column("has_index"))
# A statement that is prepared once must still be planned for the values: only they tell which partial index fits.
_GET_READY = text(
    "SELECT EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass(:index) AND indisvalid) AS is_built,"
    " set_config('plan_cache_mode', 'force_custom_plan', true), set_config('hnsw.iterative_scan', 'relaxed_order', true),"
    " set_config('hnsw.ef_search', CAST(:in_view AS text), true),"
    " set_config('hnsw.max_scan_tuples', CAST(:looked_at AS text), true)"
).columns(*(column(name) for name in ("is_built", "plans", "scan", "in_view", "looked_at")))
# Conditions with a NULL in them are deleted once it is planned.
_WANTED = """partition = :partition AND model = :model AND dimension = :dimension
    AND (CAST(:roles AS text[]) IS NULL OR role = ANY(CAST(:roles AS text[])))
    AND (CAST(:conversation AS text) IS NULL OR conversation = CAST(:conversation AS text))
    AND (CAST(:user_id AS text) IS NULL OR user_id = CAST(:user_id AS text))
    AND (CAST(:any_tags AS text[]) IS NULL OR tags && CAST(:any_tags AS text[]))
    AND (CAST(:all_tags AS text[]) IS NULL OR tags @> CAST(:all_tags AS text[]))
    AND (CAST(:start AS bigint) IS NULL OR created_at >= CAST(:start AS bigint))
    AND (CAST(:end AS bigint) IS NULL OR created_at <= CAST(:end AS bigint))"""

_EXPECTED = text(f"EXPLAIN (FORMAT JSON) SELECT FROM search_pgvector WHERE {_WANTED}").columns(column("plans"))
_FOUND: tuple[Any, ...] = (column("document"), column("similarity"))
_FILTERS = ("roles", "conversation", "user_id", "any_tags", "all_tags", "start", "end")


class PgVectorIndex:
    """The vectors of one PostgresStore. `plan` says when a partition gets an approximate index."""

    name = NAME

    def __init__(self, store: "PostgresStore", plan: BuildPlan | None = None) -> None:
        self._store = store
        self._builder = IndexBuilder(store, plan or BuildPlan())

    async def upsert(self, partition: str, model: str, records: Sequence[VectorRecord]) -> None:
        """Keep these. Vectors of another dimension than a partition's others are kept beside them."""
        # In one order everywhere, so that two writers never wait for each other in a ring.
        rows = sorted((_row(partition, model, record) for record in records), key=lambda row: row["document"])
        latest = list({row["document"]: row for row in rows}.values())
        for start in range(0, len(latest), _AT_ONCE):
            some = latest[start : start + _AT_ONCE]
            await self._write(lambda tx, some=some: tx.run(_UPSERT, some))  # type: ignore[misc]
        for dimension in {row["dimension"] for row in latest}:
            self._builder.written(VectorGroup(partition, model, dimension))

    async def remove(self, partition: str, model: str, documents: Sequence[int]) -> None:
        """Remove these documents."""
        for start in range(0, len(documents), _REMOVED_AT_ONCE):
            some = list(documents[start : start + _REMOVED_AT_ONCE])
            values = {"partition": partition, "model": model, "documents": some}
            await self._write(lambda tx, values=values: tx.run(_REMOVE, values))  # type: ignore[misc]

    async def drop(self, partition: str, model: str) -> None:
        """Drop the partition's vectors of this model, and then the index over them."""
        values = {"partition": partition, "model": model, "most": _REMOVED_AT_ONCE}
        while await self._write(lambda tx: tx.run(_DROP_SOME, values)):
            pass
        prefix = {"prefix": prefix_of(partition, model)}
        if await self._read(lambda tx: tx.first(_HAS_INDEX, prefix).has_index):
            with _translated_errors():
                await self._builder.tidy()

    async def search(
        self, partition: str, model: str, vector: Sequence[float], limit: int, wanted: VectorFilter
    ) -> list[tuple[int, float]]:
        """The nearest documents: exactly, or by the partition's index where it has one that finds enough of them."""
        if limit < 1:
            return []
        group = VectorGroup(partition, model, len(vector))
        values = _values(group, vector, min(limit, _MOST_RESULTS), wanted)
        rows, is_built = await self._read(lambda tx: _search(tx, group, values))
        if not is_built:
            self._builder.searched(group)
        # Nothing is near a vector of zeros, as a text without words may have; its similarity is no number.
        return [(int(row.document), float(row.similarity)) for row in rows if not math.isnan(row.similarity)]

    async def build(self, partition: str, model: str, dimension: int) -> bool:
        """Build the partition's approximate index now, without waiting for quiet; tells whether it has one. Raises Unavailable."""
        with _translated_errors():
            return await self._builder.build(VectorGroup(partition, model, dimension))

    async def close(self) -> None:
        await self._builder.close()

    async def _read(self, work: Callable[[Transaction], T]) -> T:
        with _translated_errors():
            return await self._store.read(work)

    async def _write(self, work: Callable[[Transaction], T]) -> T:
        with _translated_errors():
            return await self._store.write(work)


async def index_of(store: Store) -> dict[str, VectorIndex]:
    """The index by its name, where the store's database can have it; else nothing, and the log says what it takes."""
    if isinstance(store, SqliteStore):
        return {}
    from ricordo.storage.engine.postgres import PostgresStore  # brings psycopg

    if not isinstance(store, PostgresStore):
        return {}
    if await store.read(what_is_missing):
        # An extension that came after the migration, or with an administrator's help.
        try:
            await store.write(_make)
        except RicordoError as error:
            log.warning("the table of pgvector was not made", extra={"reason": str(error)})
    if missing := await store.read(what_is_missing):
        log.info(missing)
        return {}
    return {NAME: PgVectorIndex(store)}


def what_is_missing(tx: Transaction) -> str | None:
    """Why this database cannot search vectors, with what to do; None where it can."""
    state = tx.first(_STATE)
    if state.version is None:
        return _MISSING
    if tuple(int(part) for part in state.version.split(".")[:2]) < (0, 8):
        return _OLD.format(version=state.version)
    return None if state.has_table else _UNUSABLE


def _make(tx: Transaction) -> None:
    from ricordo.storage.engine.postgres import SCHEMA_LOCK

    tx.connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({SCHEMA_LOCK})")
    migrations.run_file(tx.connection, "pgvector")


def _search(tx: Transaction, group: VectorGroup, values: dict[str, Any]) -> tuple[Sequence[Any], bool]:
    """The rows found, and whether the group has an approximate index."""
    limit = values["limit"]
    in_view = min(max(_IN_VIEW, 2 * limit), _MOST_IN_VIEW)
    settings = {"index": group.index, "in_view": in_view, "looked_at": _LOOKED_AT}
    is_built = tx.first(_GET_READY, settings).is_built
    if is_built and limit <= _MOST_FROM_INDEX and _admits_enough(tx, values):
        found = tx.all(_near(group.dimension), values)
        # Fewer than were wanted: there are no more, or the index did not come upon them.
        if len(found) == limit:
            return found, True
    return tx.all(_NEAREST, values), bool(is_built)


def _admits_enough(tx: Transaction, values: dict[str, Any]) -> bool:
    """Whether the filter admits as many as make the index worth asking, by what PostgreSQL knows of the values."""
    if all(values[name] is None for name in _FILTERS):
        return True
    (explained,) = tx.first(_EXPECTED, values).plans
    return bool(explained["Plan"]["Plan Rows"] >= _ENOUGH * values["limit"])


_NEAREST = text(
    "SELECT document, 1 - (embedding <=> CAST(:vector AS vector)) AS similarity FROM search_pgvector"  # noqa: S608 - our own
    f" WHERE {_WANTED} ORDER BY embedding <=> CAST(:vector AS vector), document LIMIT :limit"
).columns(*_FOUND)


@cache
def _near(dimension: int) -> TextualSelect:
    """The statement that a group's index serves: its expression and its predicate are the index's."""
    half = f"halfvec({dimension:d})"
    return text(
        "SELECT document, 1 - (embedding <=> CAST(:vector AS vector)) AS similarity FROM ("  # noqa: S608
        f"SELECT document, embedding FROM search_pgvector WHERE {_WANTED}"
        f" ORDER BY CAST(embedding AS {half}) <=> CAST(CAST(:vector AS vector) AS {half}) LIMIT :limit"
        ") AS near ORDER BY embedding <=> CAST(:vector AS vector), document"
    ).columns(*_FOUND)


def _row(partition: str, model: str, record: VectorRecord) -> dict[str, Any]:
    key = {"partition": partition, "model": model, "document": record.document, "dimension": len(record.vector)}
    return {**key, **record.fields(), "embedding": _literal(record.vector)}


def _values(group: VectorGroup, vector: Sequence[float], limit: int, wanted: VectorFilter) -> dict[str, Any]:
    # A condition whose value is None is left out of the plan.
    conditions = {name: getattr(wanted, name) for name in ("conversation", "user_id", "start", "end")}
    tags, no_tags = ("all_tags", "any_tags") if wanted.all_tags else ("any_tags", "all_tags")
    lists = {"roles": list(wanted.roles) or None, tags: list(wanted.tags) or None, no_tags: None}
    return {**group.values, "vector": _literal(vector), "limit": limit, **conditions, **lists}


def _literal(vector: Sequence[float]) -> str:
    return f"[{','.join(f'{value:.8g}' for value in vector)}]"


@contextmanager
def _translated_errors() -> Iterator[None]:
    """What the database refuses, as when the extension was taken away, becomes a sentence."""
    import psycopg

    try:
        yield
    except (psycopg.Error, DBAPIError) as error:
        raise Unavailable(f"pgvector did not do it: {reason_of(error)}. {_ADVICE}") from None


_ADVICE = 'See that the extension "vector" is 0.8 or newer, and that the model\'s vectors are finite numbers.'
