"""Vectors in the same PostgreSQL as everything else, searched by its extension pgvector: archives choose it as `pgvector`.

A partition is searched exactly while it is small. An exact search of one with many vectors asks for an approximate index of its
own, which is built behind the searches. Vectors are kept whole; the index holds them in half precision, and what it finds is put
in order by the whole ones. A kill may leave half an index, which PostgreSQL never uses; the next pass removes it.
"""

import asyncio
import hashlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, TypeVar

from sqlalchemy import Connection, TextualSelect, column, text
from sqlalchemy.exc import DBAPIError

from ricordo.errors import RicordoError, Unavailable
from ricordo.search.vector_index import VectorFilter, VectorIndex, VectorRecord, portions
from ricordo.storage import migrations
from ricordo.storage.engine.failures import reason_of
from ricordo.storage.engine.store import SqlStore, Store, Transaction

T = TypeVar("T")
Work = Callable[[Transaction], T]
log = logging.getLogger(__name__)
NAME = "pgvector"
# Rows of one transaction: with an index that must be kept, each that is written costs some milliseconds.
_AT_ONCE, _REMOVED_AT_ONCE = 25, 500
# More than this is found by an exact search: no index is faster at that.
_MOST_FROM_INDEX = 500
_MOST_RESULTS = 1_000_000
# How many candidates the index keeps in view, and how many vectors it looks at before it gives up on a filter.
_IN_VIEW, _MOST_IN_VIEW, _LOOKED_AT = 300, 1000, 20_000
# Measured: the index pays where a filter admits this many times the limit. Below, reading all that it admits is faster, and exact.
_ENOUGH = 20
PREFIX = "search_pgvector_"
# The lock of the whole database for building or removing such an index.
BUILDING_LOCK = int.from_bytes(b"pgvector", signed=True)
_MOST_DIMENSIONS = 4000  # of a halfvec in an index
# Measured at 300,000 vectors of 256 dimensions: this finds 0.968 of the nearest ten with 200 in view, and 0.986 with 400.
_LINKS, _LINKS_WEIGHED = 16, 100
_OUT_OF_ROOM = (
    "53100",
    "53200",
)  # disk or memory, which here is the shared memory of parallel workers
_MOST_NOTED = 10_000

# The index's predicate holds names of others, so PostgreSQL itself writes them as literals.
_STATEMENT = text(
    "SELECT format('CREATE INDEX CONCURRENTLY %I ON search_pgvector USING hnsw ((embedding::halfvec(%s)) halfvec_cosine_ops)"
    " WITH (m = %s, ef_construction = %s) WHERE partition = %L AND model = %L AND dimension = %s', CAST(:name AS text),"
    " CAST(:dimension AS int), CAST(:links AS int), CAST(:weighed AS int), CAST(:partition AS text), CAST(:model AS text),"
    " CAST(:dimension AS int))"
)
_OURS = text(
    "SELECT relname, indisvalid, pg_get_expr(indpred, indrelid) AS predicate FROM pg_index"
    " JOIN pg_class ON pg_class.oid = indexrelid WHERE indrelid = to_regclass('search_pgvector') AND relname ^@ :prefix"
    " AND indpred IS NOT NULL"
)
_IS_BUILT = text(
    "SELECT EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass(:name) AND indisvalid)"
)
_COUNT = text(
    "SELECT count(*) FROM (SELECT FROM search_pgvector WHERE partition = :partition AND model = :model"
    " AND dimension = :dimension LIMIT CAST(:most AS bigint)) AS few"
)
_MEMORY = "SELECT pg_size_bytes(current_setting('maintenance_work_mem'))"

_ADVICE = (
    " Install pgvector 0.8 or newer on the PostgreSQL server, let an administrator run {} EXTENSION vector{} in this database,"
    " then start Ricordo again."
)
_MISSING = (
    'The extension "vector" is not in this database, so archives cannot use pgvector.'
    + _ADVICE.format("CREATE", "")
)
_OLD = "pgvector {version} is too old; searching with filters needs 0.8." + _ADVICE.format(
    "ALTER", " UPDATE"
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
    "partition model document dimension created_at role conversation user_id tags embedding".split()
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
    AND (CAST(:users AS text[]) IS NULL OR user_id = ANY(CAST(:users AS text[])))
    AND (CAST(:any_tags AS text[]) IS NULL OR tags && CAST(:any_tags AS text[]))
    AND (CAST(:all_tags AS text[]) IS NULL OR tags @> CAST(:all_tags AS text[]))
    AND (CAST(:start AS bigint) IS NULL OR created_at >= CAST(:start AS bigint))
    AND (CAST(:end AS bigint) IS NULL OR created_at <= CAST(:end AS bigint))"""
_EXPECTED = text(f"EXPLAIN (FORMAT JSON) SELECT FROM search_pgvector WHERE {_WANTED}").columns(
    column("plans")
)
_FOUND: tuple[Any, ...] = (column("document"), column("similarity"))
_FILTERS = ("roles", "conversation", "users", "any_tags", "all_tags", "start", "end")


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """When an approximate index is built, and how.

    From `least` vectors on, if none came for `quiet` seconds: a row costs three times as much once the index must be kept.
    A group is looked at again after `again` seconds. Building may take `memory` bytes of the database server's.
    """

    least: int = 20_000
    quiet: float = 10
    again: float = 60
    memory: int = 2 * 1024**3


@dataclass(frozen=True, slots=True)
class VectorGroup:
    """The vectors that are searched together: a partition's of one model and one dimension."""

    partition: str
    model: str
    dimension: int

    @property
    def index(self) -> str:
        digest = hashlib.sha256("\0".join((self.partition, self.model)).encode()).hexdigest()
        return f"{PREFIX}{digest[:24]}_{self.dimension}"


class PgVectorIndex:
    """The vectors of one PostgresStore. `plan` says when a partition gets an approximate index."""

    name = NAME

    def __init__(self, store: SqlStore, plan: BuildPlan | None = None) -> None:
        self._store = store
        self._plan = plan or BuildPlan()
        # When a group may be looked at next: not while vectors come, nor too soon again.
        self._not_before: dict[VectorGroup, float] = {}
        # Before the database's lock, so that those of one process wait for each other.
        self._alone_here = asyncio.Lock()
        self._task: asyncio.Task[bool] | None = None
        self._connection: Any = None
        self._is_closed = False

    async def upsert(self, partition: str, model: str, records: Sequence[VectorRecord]) -> None:
        """Keep these. Vectors of another dimension than a partition's others are kept beside them."""
        # In one order everywhere, so that two writers never wait for each other in a ring.
        latest = sorted({record.document: record for record in records}.items())
        rows = [_row(partition, model, record) for _, record in latest]
        for some in portions(rows, _AT_ONCE):
            await self._ask(self._store.write, lambda tx, some=some: tx.run(_UPSERT, some))  # type: ignore[misc]
        for dimension in {row["dimension"] for row in rows}:
            self._wait_with(VectorGroup(partition, model, dimension), self._plan.quiet)

    async def remove(self, partition: str, model: str, documents: Sequence[int]) -> None:
        """Remove these documents."""
        for some in portions(documents, _REMOVED_AT_ONCE):
            values = {"partition": partition, "model": model, "documents": list(some)}
            await self._ask(self._store.write, lambda tx, values=values: tx.run(_REMOVE, values))  # type: ignore[misc]

    async def drop(self, partition: str, model: str) -> None:
        """Drop the partition's vectors of this model, and then the index over them."""
        values = {"partition": partition, "model": model, "most": _REMOVED_AT_ONCE}
        while await self._ask(self._store.write, lambda tx: tx.run(_DROP_SOME, values)):
            pass
        if not self._alone_here.locked():  # else the next pass removes it
            with _translated_errors():
                async with self._alone_here:
                    await asyncio.to_thread(self._build_alone, None)

    async def search(
        self, partition: str, model: str, vector: Sequence[float], limit: int, wanted: VectorFilter
    ) -> list[tuple[int, float]]:
        """The nearest documents: exactly, or by the partition's index where it has one that finds enough of them."""
        if limit < 1:
            return []
        group = VectorGroup(partition, model, len(vector))
        values = _values(group, vector, min(limit, _MOST_RESULTS), wanted)
        rows, is_built = await self._ask(self._store.read, lambda tx: _search(tx, group, values))
        if not is_built:
            self._ask_for_index(group)
        # Nothing is near a vector of zeros, as a text without words may have; its similarity is no number.
        return [
            (int(row.document), float(row.similarity))
            for row in rows
            if not math.isnan(row.similarity)
        ]

    async def build(self, partition: str, model: str, dimension: int) -> bool:
        """Build the partition's approximate index if it has enough vectors; tells whether it has one now. Raises Unavailable."""
        group = VectorGroup(partition, model, dimension)
        with _translated_errors():
            async with self._alone_here:
                self._wait_with(group, self._plan.again)
                return await asyncio.to_thread(self._build_alone, group)

    async def close(self) -> None:
        """Stop what is being built: the next server removes what is left of it, and starts over."""
        self._is_closed = True
        # Asked again and again, for one may come between two statements.
        while self._task and not self._task.done():
            if connection := self._connection:
                with suppress(Exception):  # it may end by itself meanwhile
                    await asyncio.to_thread(connection.cancel_safe, timeout=5)
            await asyncio.wait([self._task], timeout=0.2)

    def _wait_with(self, group: VectorGroup, seconds: float) -> None:
        if len(self._not_before) >= _MOST_NOTED:
            self._not_before.clear()
        self._not_before[group] = max(self._not_before.get(group, 0), time.monotonic() + seconds)

    def _ask_for_index(self, group: VectorGroup) -> None:
        is_due = time.monotonic() >= self._not_before.get(group, 0) and (
            self._task is None or self._task.done()
        )
        if is_due and not self._is_closed and group.dimension <= _MOST_DIMENSIONS:
            self._task = asyncio.create_task(
                self.build(group.partition, group.model, group.dimension), name="pgvector"
            )
            self._task.add_done_callback(_log_failure)

    def _build_alone(self, group: VectorGroup | None) -> bool:
        """Remove what is not needed any more, then build the group's index, under a lock that ends with the session."""
        with self._store.engine.connect() as connection:
            self._connection = connection.connection.dbapi_connection
            try:
                is_alone = connection.exec_driver_sql(
                    f"SELECT pg_try_advisory_lock({BUILDING_LOCK})"
                ).scalar_one()
                if is_alone:
                    # Building waits for transactions that began before it, however long they take, and blocks no other.
                    _run(connection, "SET lock_timeout = 0; SET statement_timeout = 0")
                    _tidy(connection)
                if (
                    group is None
                    or connection.execute(_IS_BUILT, {"name": group.index}).scalar_one()
                ):
                    return group is not None
                most = self._plan.least
                if not is_alone or self._is_closed or _count(connection, group, most) < most:
                    return False
                self._create(connection, group)
                return True
            finally:
                self._connection = None

    def _create(self, connection: Connection, group: VectorGroup) -> None:
        rows = _count(connection, group)
        # Let the whole graph fit, up to the plan's limit: where it does not, building takes many times as long.
        needed = min(int(rows * (2 * group.dimension + 1000) * 1.2), self._plan.memory)
        if needed > connection.exec_driver_sql(_MEMORY).scalar_one():
            _run(connection, f"SET maintenance_work_mem = '{needed // 1024}kB'")
        shape = {"name": group.index, "links": _LINKS, "weighed": _LINKS_WEIGHED}
        statement = connection.execute(_STATEMENT, {**asdict(group), **shape}).scalar_one()
        try:
            _run(connection, statement)
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) not in _OUT_OF_ROOM or self._is_closed:
                raise
            # Parallel workers share memory, of which a container has little: one alone needs none of it.
            _tidy(connection)
            _run(connection, "SET max_parallel_maintenance_workers = 0")
            _run(connection, statement)
        _run(connection, "ANALYZE search_pgvector")
        log.info("built an index of vectors", extra={"partition": group.partition, "vectors": rows})

    async def _ask(self, run: Callable[[Work[T]], Awaitable[T]], work: Work[T]) -> T:
        with _translated_errors():
            return await run(work)


async def index_of(store: Store) -> dict[str, VectorIndex]:
    """The index by its name, where the store's database can have it; else nothing, and the log says what it takes."""
    if not isinstance(store, SqlStore) or store.engine.dialect.name != "postgresql":
        return {}
    if await store.read(what_is_missing):
        # An extension that came after the migration, or with an administrator's help.
        try:
            await store.write(_make)
        except RicordoError as error:
            log.warning("the table of pgvector was not made", extra={"reason": error})
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


def _search(
    tx: Transaction, group: VectorGroup, values: dict[str, Any]
) -> tuple[Sequence[Any], bool]:
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


def _count(connection: Connection, group: VectorGroup, most: int | None = None) -> int:
    return int(connection.execute(_COUNT, {**asdict(group), "most": most}).scalar_one())


def _tidy(connection: Connection) -> None:
    """Remove indexes that are half built, or have no vectors any more."""
    for name, is_valid, predicate in connection.execute(_OURS, {"prefix": PREFIX}).all():
        # The predicate is what PostgreSQL itself wrote of it, with its literals quoted.
        rows = f"SELECT EXISTS (SELECT FROM search_pgvector WHERE {predicate})"  # noqa: S608
        if not is_valid or not _run(connection, rows).scalar_one():
            _run(connection, f'DROP INDEX CONCURRENTLY IF EXISTS "{name}"')


def _log_failure(task: asyncio.Task[bool]) -> None:
    # Searches go on exactly, so that nothing is lost but time; the next look tries again.
    if not task.cancelled() and (error := task.exception()):
        log.warning("an index of vectors was not built", extra={"reason": error})


def _run(connection: Connection, statement: str) -> Any:
    # Without parameters, or the driver would take a % in a name for a placeholder.
    return connection.exec_driver_sql(statement, execution_options={"no_parameters": True})


def _row(partition: str, model: str, record: VectorRecord) -> dict[str, Any]:
    key = {
        "partition": partition,
        "model": model,
        "document": record.document,
        "dimension": len(record.vector),
    }
    return {**key, **record.fields(), "embedding": _literal(record.vector)}


def _values(
    group: VectorGroup, vector: Sequence[float], limit: int, wanted: VectorFilter
) -> dict[str, Any]:
    tags, no_tags = ("all_tags", "any_tags") if wanted.all_tags else ("any_tags", "all_tags")
    lists = {"roles": wanted.roles, "users": wanted.users, tags: wanted.tags, no_tags: ()}
    some = {name: list(values) or None for name, values in lists.items()}
    single = {"conversation": wanted.conversation, "start": wanted.start, "end": wanted.end}
    return {**asdict(group), "vector": _literal(vector), "limit": limit, **single, **some}


def _literal(vector: Sequence[float]) -> str:
    return f"[{','.join(f'{value:.8g}' for value in vector)}]"


@contextmanager
def _translated_errors() -> Iterator[None]:
    """What the database refuses, as when the extension was taken away, becomes a sentence."""
    import psycopg

    try:
        yield
    except (psycopg.Error, DBAPIError) as error:
        advice = 'See that the extension "vector" is 0.8 or newer, and that the model\'s vectors are finite numbers.'
        raise Unavailable(f"pgvector did not do it: {reason_of(error)}. {advice}") from None
