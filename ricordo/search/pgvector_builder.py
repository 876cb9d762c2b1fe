"""Approximate indexes for partitions with many vectors, built behind the searches: one at a time, on a connection of their own.

Building cannot run in a transaction, so a kill may leave half an index, which PostgreSQL never uses; the next pass removes it, as
it does those whose partition is deleted. Until an index stands, and wherever building fails, the partition is searched exactly.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from ricordo.storage.engine.store import SqlStore, reason_of

log = logging.getLogger(__name__)
PREFIX = "search_pgvector_"
# The lock of the whole database for building or removing such an index.
BUILDING_LOCK = int.from_bytes(b"pgvector", signed=True)
_MOST_DIMENSIONS = 4000  # of a halfvec in an index
# Measured at 300,000 vectors of 256 dimensions: this finds 0.968 of the nearest ten with 200 in view, and 0.986 with 400.
_LINKS, _LINKS_WEIGHED = 16, 100
_OUT_OF_ROOM = ("53100", "53200")  # disk or memory, which here is the shared memory of parallel workers
_MOST_LOOKED = 10_000

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
_IS_BUILT = text("SELECT EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass(:name) AND indisvalid)")
_IN_PLACE = "partition = :partition AND model = :model AND dimension = :dimension"
_COUNT_UP_TO = text(
    f"SELECT count(*) FROM (SELECT FROM search_pgvector WHERE {_IN_PLACE} LIMIT :most) AS few"  # noqa: S608 - our own
)
_COUNT = text(f"SELECT count(*) FROM search_pgvector WHERE {_IN_PLACE}")  # noqa: S608


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """When an approximate index is built, and how.

    From `least` vectors on, once none came for `quiet` seconds: a row costs three times as much once the index must be kept.
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
        return f"{prefix_of(self.partition, self.model)}{self.dimension}"

    @property
    def values(self) -> dict[str, Any]:
        return {"partition": self.partition, "model": self.model, "dimension": self.dimension}


def prefix_of(partition: str, model: str) -> str:
    digest = hashlib.sha256("\0".join((partition, model)).encode()).hexdigest()
    return f"{PREFIX}{digest[:24]}_"


class IndexBuilder:
    """Builds what is asked for and removes what is not needed any more, one thing after the other, until it is closed."""

    def __init__(self, store: SqlStore, plan: BuildPlan) -> None:
        self._store = store
        self._plan = plan
        self._due: dict[VectorGroup, float] = {}
        self._looked: dict[VectorGroup, float] = {}
        self._changed = asyncio.Event()
        # Before the database's lock, so that those of one process wait for each other.
        self._alone_here = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._connection: Any = None
        self._is_closed = False

    def written(self, group: VectorGroup) -> None:
        self._ask(group, max(time.monotonic() + self._plan.quiet, self._looked.get(group, 0) + self._plan.again))

    def searched(self, group: VectorGroup) -> None:
        """Look at the group now, as it was searched exactly; not where it was looked at a moment ago."""
        if time.monotonic() - self._looked.get(group, -self._plan.again) >= self._plan.again:
            self._ask(group, time.monotonic())

    async def build(self, group: VectorGroup) -> bool:
        """Build the group's index if it has enough vectors; tells whether it has one now. Not while another server builds one."""
        if len(self._looked) >= _MOST_LOOKED:
            self._looked.clear()
        async with self._alone_here:
            self._looked[group] = time.monotonic()
            return await asyncio.to_thread(self._build, group)

    async def tidy(self) -> bool:
        async with self._alone_here:
            return await asyncio.to_thread(self._tidy_alone)

    async def close(self) -> None:
        """Stop what is being built: the next server removes what is left of it, and starts over."""
        self._is_closed = True
        self._due.clear()
        self._changed.set()
        if self._task:
            # Asked again and again, for one may come between two statements.
            while not self._task.done():
                if connection := self._connection:
                    with suppress(Exception):  # it may end by itself meanwhile
                        await asyncio.to_thread(connection.cancel_safe, timeout=5)
                await asyncio.wait([self._task], timeout=0.2)

    def _ask(self, group: VectorGroup, due: float) -> None:
        if self._is_closed or group.dimension > _MOST_DIMENSIONS:
            return
        self._due[group] = due
        self._changed.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work(), name="pgvector")

    async def _work(self) -> None:
        while self._due:
            group = min(self._due, key=self._due.__getitem__)
            wait = self._due[group] - time.monotonic()
            if wait > 0:
                self._changed.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), wait)
                continue
            del self._due[group]
            try:
                await self.build(group)
            except Exception as error:
                # Searches go on exactly, so that nothing is lost but time; the next look tries again.
                reason = reason_of(error)
                log.warning("an index of vectors was not built", extra={"partition": group.partition, "reason": reason})

    def _build(self, group: VectorGroup) -> bool:
        with self._alone() as connection:
            if connection is None:
                return self._is_built(group)
            self._tidy(connection)
            if connection.execute(_IS_BUILT, {"name": group.index}).scalar_one():
                return True
            most = {**group.values, "most": self._plan.least}
            if connection.execute(_COUNT_UP_TO, most).scalar_one() < self._plan.least or self._is_closed:
                return False
            self._create(connection, group)
            return True

    def _create(self, connection: Connection, group: VectorGroup) -> None:
        started = time.monotonic()
        rows = connection.execute(_COUNT, group.values).scalar_one()
        self._allow_memory(connection, rows, group.dimension)
        values = {**group.values, "name": group.index, "links": _LINKS, "weighed": _LINKS_WEIGHED}
        statement = connection.execute(_STATEMENT, values).scalar_one()
        try:
            _run(connection, statement)
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) not in _OUT_OF_ROOM or self._is_closed:
                raise
            # Parallel workers share memory, of which a container has little: one alone needs none of it.
            self._tidy(connection)
            _run(connection, "SET max_parallel_maintenance_workers = 0")
            _run(connection, statement)
        _run(connection, "ANALYZE search_pgvector")
        seconds = round(time.monotonic() - started, 1)
        log.info("built an index of vectors", extra={"partition": group.partition, "vectors": rows, "seconds": seconds})

    def _allow_memory(self, connection: Connection, rows: int, dimension: int) -> None:
        """Let the whole graph fit, up to the plan's limit: where it does not, building takes many times as long."""
        needed = int(rows * (2 * dimension + 1000) * 1.2)
        allowed = connection.exec_driver_sql(
            "SELECT pg_size_bytes(current_setting('maintenance_work_mem'))"
        ).scalar_one()
        if (bounded := min(needed, self._plan.memory)) > allowed:
            _run(connection, f"SET maintenance_work_mem = '{bounded // 1024}kB'")

    def _is_built(self, group: VectorGroup) -> bool:
        with self._store.engine.connect() as connection:
            return bool(connection.execute(_IS_BUILT, {"name": group.index}).scalar_one())

    def _tidy_alone(self) -> bool:
        with self._alone() as connection:
            if connection is not None:
                self._tidy(connection)
            return connection is not None

    def _tidy(self, connection: Connection) -> None:
        for name, is_valid, predicate in connection.execute(_OURS, {"prefix": PREFIX}).all():
            # The predicate is what PostgreSQL itself wrote of it, with its literals quoted.
            rows = f"SELECT EXISTS (SELECT FROM search_pgvector WHERE {predicate})"  # noqa: S608
            if not is_valid or not _run(connection, rows).scalar_one():
                _run(connection, f'DROP INDEX CONCURRENTLY IF EXISTS "{name}"')

    @contextmanager
    def _alone(self) -> Iterator[Connection | None]:
        """A connection with the lock for building, or None while another has it. The lock ends with the session."""
        with self._store.engine.connect() as connection:
            if not connection.exec_driver_sql(f"SELECT pg_try_advisory_lock({BUILDING_LOCK})").scalar_one():
                yield None
                return
            # Building waits for transactions that began before it, however long they take, and blocks no other.
            _run(connection, "SET lock_timeout = 0; SET statement_timeout = 0")
            self._connection = connection.connection.dbapi_connection
            try:
                yield connection
            finally:
                self._connection = None


def _run(connection: Connection, statement: str) -> Any:
    # Without parameters, or the driver would take a % in a name for a placeholder.
    return connection.exec_driver_sql(statement, execution_options={"no_parameters": True})
