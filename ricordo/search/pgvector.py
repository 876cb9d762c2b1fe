"""Vectors in the store's PostgreSQL database, searched by its extension pgvector.

Archives choose it as `pgvector`. A small partition is searched exactly. When an exact search meets
a partition with many vectors, an approximate index for it is built in the background. The table
holds vectors in full precision, the index in half precision. Results of the index are sorted by the
full vectors. A kill may leave an unfinished index. PostgreSQL never uses it, and the next pass
removes it.
"""

import asyncio
import hashlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Any, TypeVar

from sqlalchemy import Connection, TextualSelect, column, text
from sqlalchemy.exc import DBAPIError

from ricordo.errors import DatabaseFailed, RicordoError, Unavailable
from ricordo.search.vector_index import VectorFilter, VectorIndex, VectorRecord, portions
from ricordo.storage import migrations
from ricordo.storage.engine.failures import reason_of
from ricordo.storage.engine.store import SqlStore, Store, Transaction

T = TypeVar("T")
Work = Callable[[Transaction], T]
log = logging.getLogger(__name__)
NAME = "pgvector"
# Rows of one transaction; with an index, writing a row takes some milliseconds.
_AT_ONCE = 25
_REMOVED_AT_ONCE = 500
# A search for more results than this is exact, since the index would not be faster.
_MAX_FROM_INDEX = 500
_MAX_RESULTS = 1_000_000
# The fewest and the most candidates of a search in the index (hnsw.ef_search), and the most vectors
# that it visits for a filter (hnsw.max_scan_tuples).
_CANDIDATES = 300
_MAX_CANDIDATES = 1000
_MAX_VISITED = 20_000
# Measured: the index is faster if a filter admits at least this many times the limit. Below that,
# reading all admitted vectors is faster and exact.
_ENOUGH = 20
PREFIX = "search_pgvector_"
# The database-wide lock for building or removing an approximate index.
BUILDING_LOCK = int.from_bytes(b"pgvector", signed=True)
_MAX_DIMENSIONS = 4000  # limit for a halfvec in an index
# The parameters m and ef_construction of the index. Measured with 300,000 vectors of 256
# dimensions: with 200 candidates it finds 0.968 of the ten nearest, with 400 it finds 0.986.
_LINKS = 16
_LINKS_WEIGHED = 100
# PostgreSQL's codes for a full disk and a full memory. While an index is built, both may mean that
# the shared memory of parallel workers is full.
_OUT_OF_ROOM = ("53100", "53200")
_MAX_GROUPS = 10_000

# The index's predicate contains names that users chose, so PostgreSQL itself writes them as
# literals.
_STATEMENT = text(
    "SELECT format('CREATE INDEX CONCURRENTLY %I ON search_pgvector"
    " USING hnsw ((embedding::halfvec(%s)) halfvec_cosine_ops)"
    " WITH (m = %s, ef_construction = %s)"
    " WHERE partition = %L AND model = %L AND dimension = %s',"
    " CAST(:name AS text), CAST(:dimension AS int), CAST(:links AS int), CAST(:weighed AS int),"
    " CAST(:partition AS text), CAST(:model AS text), CAST(:dimension AS int))"
)
_OURS = text(
    "SELECT relname, indisvalid, pg_get_expr(indpred, indrelid) AS predicate FROM pg_index"
    " JOIN pg_class ON pg_class.oid = indexrelid"
    " WHERE indrelid = to_regclass('search_pgvector') AND relname ^@ :prefix"
    " AND indpred IS NOT NULL"
)
_IS_BUILT = text(
    "SELECT EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass(:name) AND indisvalid)"
)
_COUNT = text(
    "SELECT count(*) FROM (SELECT FROM search_pgvector"
    " WHERE partition = :partition AND model = :model AND dimension = :dimension"
    " LIMIT CAST(:limit AS bigint)) AS limited"
)
_MEMORY = "SELECT pg_size_bytes(current_setting('maintenance_work_mem'))"

_ADVICE = (
    " Install pgvector 0.8 or newer on the PostgreSQL server, let an administrator run"
    " {} EXTENSION vector{} in this database, then start Ricordo again."
)
_MISSING = (
    'The extension "vector" is not in this database, so archives cannot use pgvector.'
    + _ADVICE.format("CREATE", "")
)
_OLD = "pgvector {version} is too old; searching with filters needs 0.8." + _ADVICE.format(
    "ALTER", " UPDATE"
)
_UNUSABLE = (
    "The table search_pgvector could not be made, so archives cannot use pgvector. "
    "See that this database's user may create tables, and that the extension "
    '"vector" lies in a schema of the search path, then start Ricordo again.'
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
    f" VALUES ({', '.join(_CASTS.get(name, f':{name}') for name in _COLUMNS)})"
    " ON CONFLICT (partition, model, document)"
    f" DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _COLUMNS[3:])}"
)
_REMOVE = text(
    "DELETE FROM search_pgvector WHERE partition = :partition AND model = :model"
    " AND document = ANY(CAST(:documents AS bigint[]))"
)
_DROP_SOME = text(
    "DELETE FROM search_pgvector WHERE ctid = ANY(ARRAY("
    "SELECT ctid FROM search_pgvector WHERE partition = :partition AND model = :model"
    " LIMIT :limit))"
)
# A prepared statement must still be planned for its parameters, since they decide which partial
# index fits.
_GET_READY = text(
    "SELECT EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass(:index) AND indisvalid)"
    " AS is_built,"
    " set_config('plan_cache_mode', 'force_custom_plan', true),"
    " set_config('hnsw.iterative_scan', 'relaxed_order', true),"
    " set_config('hnsw.ef_search', CAST(:candidates AS text), true),"
    " set_config('hnsw.max_scan_tuples', CAST(:max_visited AS text), true)"
).columns(*(column(name) for name in ("is_built", "plans", "scan", "candidates", "max_visited")))
# The planner drops conditions whose parameter is NULL.
_CONDITIONS = """partition = :partition AND model = :model AND dimension = :dimension
    AND (CAST(:roles AS text[]) IS NULL OR role = ANY(CAST(:roles AS text[])))
    AND (CAST(:conversation AS text) IS NULL OR conversation = CAST(:conversation AS text))
    AND (CAST(:users AS text[]) IS NULL OR user_id = ANY(CAST(:users AS text[])))
    AND (CAST(:any_tags AS text[]) IS NULL OR tags && CAST(:any_tags AS text[]))
    AND (CAST(:all_tags AS text[]) IS NULL OR tags @> CAST(:all_tags AS text[]))
    AND (CAST(:start AS bigint) IS NULL OR created_at >= CAST(:start AS bigint))
    AND (CAST(:end AS bigint) IS NULL OR created_at <= CAST(:end AS bigint))"""
_EXPECTED = text(f"EXPLAIN (FORMAT JSON) SELECT FROM search_pgvector WHERE {_CONDITIONS}").columns(
    column("plans")
)
_RESULT_COLUMNS: tuple[Any, ...] = (column("document"), column("similarity"))
_FILTERS = ("roles", "conversation", "users", "any_tags", "all_tags", "start", "end")


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """The conditions for building an approximate index.

    Attributes:
        min_vectors: The least number of vectors in a group.
        quiet_seconds: A build starts after this time without new vectors in the group. With an
            index, each row takes three times as long to write.
        retry_seconds: The time after which a group is checked again.
        memory: The most memory in bytes that a build may take on the database server.
    """

    min_vectors: int = 20_000
    quiet_seconds: float = 10
    retry_seconds: float = 60
    memory: int = 2 * 1024**3


@dataclass(frozen=True, slots=True)
class VectorGroup:
    """The vectors of a partition with one model and dimension, searched together."""

    partition: str
    model: str
    dimension: int

    @property
    def index(self) -> str:
        digest = hashlib.sha256("\0".join((self.partition, self.model)).encode()).hexdigest()
        return f"{PREFIX}{digest[:24]}_{self.dimension}"


class PgVectorIndex:
    """The vectors in one PostgresStore.

    `plan` has the conditions for a partition's approximate index.
    """

    name = NAME

    def __init__(self, store: SqlStore, plan: BuildPlan | None = None) -> None:
        self._store = store
        self._plan = plan or BuildPlan()
        # The time before which a group is not checked again. New vectors and checks postpone it.
        self._not_before: dict[VectorGroup, float] = {}
        # Acquire it before the database's lock, so that builds of one process wait for each other.
        self._build_lock = asyncio.Lock()
        self._task: asyncio.Task[bool] | None = None
        self._connection: Any = None
        self._is_closed = False

    async def upsert(self, partition: str, model: str, records: Sequence[VectorRecord]) -> None:
        """Store these records; a stored document is replaced.

        Vectors of different dimensions are searched separately.

        Args:
            partition: The id of the owner: an agent, an archive or a folder.
            model: The handle of the model that made the vectors.
            records: The records; of several with one number the last counts.

        Raises:
            Unavailable: The database or the extension fails.
        """
        # Sorted, so that two writers cannot wait for each other in a cycle.
        latest = sorted({record.document: record for record in records}.items())
        rows = [_row(partition, model, record) for _, record in latest]
        for batch in portions(rows, _AT_ONCE):
            await self._ask(self._store.write, lambda tx, batch=batch: tx.run(_UPSERT, batch))  # type: ignore[misc]
        for dimension in {row["dimension"] for row in rows}:
            self._wait_with(VectorGroup(partition, model, dimension), self._plan.quiet_seconds)

    async def remove(self, partition: str, model: str, documents: Sequence[int]) -> None:
        """Remove these documents.

        Args:
            partition: The id of the owner.
            model: The handle of a model; vectors of other models stay.
            documents: The numbers (`seq`) of the documents. Missing ones are no error.

        Raises:
            Unavailable: The database or the extension fails.
        """
        for batch in portions(documents, _REMOVED_AT_ONCE):
            parameters = {"partition": partition, "model": model, "documents": list(batch)}
            await self._ask(self._store.write, partial(_remove, parameters=parameters))

    async def drop(self, partition: str, model: str) -> None:
        """Drop the partition's vectors of this model, and then the index over them.

        Args:
            partition: The id of the owner.
            model: The handle of the model.

        Raises:
            Unavailable: The database or the extension fails.
        """
        parameters = {"partition": partition, "model": model, "limit": _REMOVED_AT_ONCE}
        while await self._ask(self._store.write, lambda tx: tx.run(_DROP_SOME, parameters)):
            pass
        if not self._build_lock.locked():  # otherwise the next pass will remove the index
            with _translated_errors():
                async with self._build_lock:
                    await asyncio.to_thread(self._build_alone, None)

    async def search(
        self,
        partition: str,
        model: str,
        vector: Sequence[float],
        limit: int,
        conditions: VectorFilter,
    ) -> list[tuple[int, float]]:
        """Return the nearest documents, exactly or by the partition's index.

        The index is used only if it finds enough documents. A missing index is built in the
        background.

        Args:
            partition: The id of the owner.
            model: The handle of the model that made `vector`.
            vector: The query's vector. Only stored vectors with the same number of dimensions are
                compared.
            limit: The most documents. Below 1 there are none.
            conditions: The filter.

        Returns:
            The numbers of the documents, each with its cosine similarity, best first.

        Raises:
            Unavailable: The database or the extension fails.
        """
        if limit < 1:
            return []
        group = VectorGroup(partition, model, len(vector))
        parameters = _parameters(group, vector, min(limit, _MAX_RESULTS), conditions)
        rows, is_built = await self._ask(
            self._store.read, lambda tx: _search(tx, group, parameters)
        )
        if not is_built:
            self._ask_for_index(group)
        # A text without words may have a vector of zeros. Nothing is near such a vector, so its
        # similarity is NaN.
        return [
            (int(row.document), float(row.similarity))
            for row in rows
            if not math.isnan(row.similarity)
        ]

    async def build(self, partition: str, model: str, dimension: int) -> bool:
        """Build the partition's approximate index if it has enough vectors.

        Args:
            partition: The id of the owner.
            model: The handle of the model.
            dimension: The number of dimensions; vectors with another number have another index.

        Returns:
            True if the partition has the index now.

        Raises:
            Unavailable: The database fails.
        """
        group = VectorGroup(partition, model, dimension)
        with _translated_errors():
            async with self._build_lock:
                self._wait_with(group, self._plan.retry_seconds)
                return await asyncio.to_thread(self._build_alone, group)

    async def close(self) -> None:
        """Stop a running build. The next server removes what is left and builds again."""
        self._is_closed = True
        # Cancel repeatedly, since a cancel between two statements has no effect.
        while self._task and not self._task.done():
            if connection := self._connection:
                with suppress(Exception):  # it may end by itself meanwhile
                    await asyncio.to_thread(connection.cancel_safe, timeout=5)
            await asyncio.wait([self._task], timeout=0.2)

    def _wait_with(self, group: VectorGroup, seconds: float) -> None:
        if len(self._not_before) >= _MAX_GROUPS:
            self._not_before.clear()
        self._not_before[group] = max(self._not_before.get(group, 0), time.monotonic() + seconds)

    def _ask_for_index(self, group: VectorGroup) -> None:
        is_idle = self._task is None or self._task.done()
        is_due = is_idle and time.monotonic() >= self._not_before.get(group, 0)
        if is_due and not self._is_closed and group.dimension <= _MAX_DIMENSIONS:
            self._task = asyncio.create_task(
                self.build(group.partition, group.model, group.dimension), name="pgvector"
            )
            self._task.add_done_callback(_log_failure)

    def _build_alone(self, group: VectorGroup | None) -> bool:
        """Remove unused indexes, then build the group's index, under a lock of the session."""
        with self._store.engine.connect() as connection:
            self._connection = connection.connection.dbapi_connection
            try:
                is_alone = connection.exec_driver_sql(
                    f"SELECT pg_try_advisory_lock({BUILDING_LOCK})"
                ).scalar_one()
                if is_alone:
                    # A build waits for all transactions that began before it, but blocks none.
                    _run(connection, "SET lock_timeout = 0; SET statement_timeout = 0")
                    _tidy(connection)
                if group is None:
                    return False
                if connection.execute(_IS_BUILT, {"name": group.index}).scalar_one():
                    return True
                if not is_alone or self._is_closed:
                    return False
                min_vectors = self._plan.min_vectors
                if _count(connection, group, min_vectors) < min_vectors:
                    return False
                self._create(connection, group)
                return True
            finally:
                self._connection = None

    def _create(self, connection: Connection, group: VectorGroup) -> None:
        rows = _count(connection, group)
        # Give it memory for the whole graph, up to the plan's limit. With less memory a build takes
        # many times as long.
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
            # Parallel workers use shared memory, of which containers have little. One worker needs
            # none.
            _tidy(connection)
            _run(connection, "SET max_parallel_maintenance_workers = 0")
            _run(connection, statement)
        _run(connection, "ANALYZE search_pgvector")
        log.info("built an index of vectors", extra={"partition": group.partition, "vectors": rows})

    async def _ask(self, run: Callable[[Work[T]], Awaitable[T]], work: Work[T]) -> T:
        with _translated_errors():
            return await run(work)


async def index_of(store: Store) -> dict[str, VectorIndex]:
    """Return the index by its name; an empty dict if the store's database does not support it.

    If a PostgreSQL database does not support it, the reason and advice are logged.
    """
    if not isinstance(store, SqlStore) or store.engine.dialect.name != "postgresql":
        return {}
    if await store.read(missing_requirement):
        # The extension may have been installed after the migration, or by an administrator.
        try:
            await store.write(_make)
        except RicordoError as error:
            log.warning("the table of pgvector was not made", extra={"reason": error})
    if missing := await store.read(missing_requirement):
        log.info(missing)
        return {}
    return {NAME: PgVectorIndex(store)}


def missing_requirement(tx: Transaction) -> str | None:
    """Return the reason why this database cannot search vectors, with advice.

    Returns None if it can.
    """
    state = tx.first(_STATE)
    if state.version is None:
        return _MISSING
    if tuple(int(part) for part in state.version.split(".")[:2]) < (0, 8):
        return _OLD.format(version=state.version)
    return None if state.has_table else _UNUSABLE


def _make(tx: Transaction) -> None:
    # Imports psycopg, an optional extra.
    from ricordo.storage.engine.postgres import SCHEMA_LOCK

    tx.connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({SCHEMA_LOCK})")
    migrations.run_file(tx.connection, "pgvector")


def _search(
    tx: Transaction, group: VectorGroup, parameters: dict[str, Any]
) -> tuple[Sequence[Any], bool]:
    """Return the nearest rows, and True if the group has an approximate index."""
    limit = parameters["limit"]
    settings = {
        "index": group.index,
        "candidates": min(max(_CANDIDATES, 2 * limit), _MAX_CANDIDATES),
        "max_visited": _MAX_VISITED,
    }
    is_built = tx.first(_GET_READY, settings).is_built
    if is_built and limit <= _MAX_FROM_INDEX and _admits_enough(tx, parameters):
        rows = tx.all(_near(group.dimension), parameters)
        # If there are fewer rows than the limit, there are no more, or the index did not find them.
        if len(rows) == limit:
            return rows, True
    return tx.all(_NEAREST, parameters), bool(is_built)


def _admits_enough(tx: Transaction, parameters: dict[str, Any]) -> bool:
    """Return whether the filter admits enough vectors for the index to be faster.

    The number is PostgreSQL's estimate.
    """
    if all(parameters[name] is None for name in _FILTERS):
        return True
    (explanation,) = tx.first(_EXPECTED, parameters).plans
    return bool(explanation["Plan"]["Plan Rows"] >= _ENOUGH * parameters["limit"])


_NEAREST = text(
    "SELECT document,"  # noqa: S608 - names of our own
    " 1 - (embedding <=> CAST(:vector AS vector)) AS similarity"
    " FROM search_pgvector"
    f" WHERE {_CONDITIONS} ORDER BY embedding <=> CAST(:vector AS vector), document LIMIT :limit"
).columns(*_RESULT_COLUMNS)


@cache
def _near(dimension: int) -> TextualSelect:
    """Return the statement that can use a group's index.

    Its expression and predicate equal those of the index.
    """
    half = f"halfvec({dimension:d})"
    return text(
        "SELECT document,"  # noqa: S608 - names of our own
        " 1 - (embedding <=> CAST(:vector AS vector)) AS similarity FROM ("
        f"SELECT document, embedding FROM search_pgvector WHERE {_CONDITIONS}"
        f" ORDER BY CAST(embedding AS {half}) <=> CAST(CAST(:vector AS vector) AS {half})"
        " LIMIT :limit"
        ") AS near ORDER BY embedding <=> CAST(:vector AS vector), document"
    ).columns(*_RESULT_COLUMNS)


def _count(connection: Connection, group: VectorGroup, limit: int | None = None) -> int:
    return int(connection.execute(_COUNT, {**asdict(group), "limit": limit}).scalar_one())


def _remove(tx: Transaction, parameters: dict[str, Any]) -> None:
    tx.run(_REMOVE, parameters)


def _tidy(connection: Connection) -> None:
    """Remove indexes that are unfinished or no longer have vectors."""
    for name, is_valid, predicate in connection.execute(_OURS, {"prefix": PREFIX}).all():
        # PostgreSQL itself wrote the predicate, with its literals quoted.
        rows = f"SELECT EXISTS (SELECT FROM search_pgvector WHERE {predicate})"  # noqa: S608
        if not is_valid or not _run(connection, rows).scalar_one():
            _run(connection, f'DROP INDEX CONCURRENTLY IF EXISTS "{name}"')


def _log_failure(task: asyncio.Task[bool]) -> None:
    # Searches are still exact, so only time is lost. The next check tries again.
    if not task.cancelled() and (error := task.exception()):
        log.warning("an index of vectors was not built", extra={"reason": error})


def _run(connection: Connection, statement: str) -> Any:
    # Without parameters, the driver does not take a % in a name for a placeholder.
    return connection.exec_driver_sql(statement, execution_options={"no_parameters": True})


def _row(partition: str, model: str, record: VectorRecord) -> dict[str, Any]:
    key = {
        "partition": partition,
        "model": model,
        "document": record.document,
        "dimension": len(record.vector),
    }
    return {**key, **record.fields(), "embedding": _literal(record.vector)}


def _parameters(
    group: VectorGroup, vector: Sequence[float], limit: int, conditions: VectorFilter
) -> dict[str, Any]:
    tags = list(conditions.tags) or None
    return {
        **asdict(group),
        "vector": _literal(vector),
        "limit": limit,
        "conversation": conditions.conversation,
        "start": conditions.start,
        "end": conditions.end,
        "roles": list(conditions.roles) or None,
        "users": list(conditions.users) or None,
        "all_tags": tags if conditions.all_tags else None,
        "any_tags": None if conditions.all_tags else tags,
    }


def _literal(vector: Sequence[float]) -> str:
    return f"[{','.join(f'{number:.8g}' for number in vector)}]"


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Turn an error of the extension or its tables into Unavailable with a sentence.

    For example, the extension may have been removed. Other failures that the store has translated
    pass unchanged; any error of the driver becomes Unavailable.
    """
    import psycopg

    try:
        yield
    except (psycopg.Error, DBAPIError, DatabaseFailed) as failure:
        error: BaseException = failure
        if isinstance(failure, DatabaseFailed):
            if failure.kind != "schema" or failure.__cause__ is None:
                raise
            error = failure.__cause__
        advice = (
            'See that the extension "vector" is 0.8 or newer, '
            "and that the model's vectors are finite numbers."
        )
        raise Unavailable(f"pgvector failed: {reason_of(error)}. {advice}") from None
