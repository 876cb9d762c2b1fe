"""Leaving nothing of deleted rows in the database's files, and looking for a user in copies of the database.

A database marks deleted rows as free and keeps their bytes until something else is written there. SQLite's VACUUM and PostgreSQL's
VACUUM FULL rewrite the files.
"""

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from ricordo.errors import Unavailable
from ricordo.storage.engine.store import Store, Transaction
from ricordo.storage.migrations import HALF_COPIED
from ricordo.storage.schema.columns import metadata

# A larger table is not rewritten while servers work: all who read it would wait for seconds.
MOST_REWRITTEN = 256 * 1024 * 1024
# Of these every erasure leaves something behind.
_ALWAYS = ("users", "conversations", "messages", "jobs", "search_")
# What is deleted, or changes, with the rows of another table.
_WITH = {"passages": {"passages_tags", "archives"}, "blocks": {"blocks_tags", "agents_blocks"}}
_OUTSIDE = ("search_pgvector",)
_IDS = ("id", "user_id", "sender_id", "owner_id", "author_id", "created_by", "updated_by")


async def scrub(store: Store, tables: Iterable[str]) -> list[str]:
    """Rewrite files where rows of these tables were deleted; returns what could not be done. Raises Unavailable: do it again."""
    touched = set(tables)
    touched.update(*(_WITH.get(name, ()) for name in touched))
    wanted = [name for name in metadata.tables if name in touched or name.startswith(_ALWAYS)]
    left: list[str] = []

    def begin(tx: Transaction) -> None:
        cursor: Any = tx.connection.connection.cursor
        # After the commit, in the thread that writes: there nothing else waits for the lock that this takes.
        if tx.connection.dialect.name == "sqlite":
            tx.after_commit.append(lambda: _scrub_sqlite(cursor()))
        else:
            tx.after_commit.append(
                lambda: left.extend(_scrub_postgres(cursor(), [*wanted, *_OUTSIDE]))
            )

    begin.__qualname__ = "scrub: VACUUM after an erasure"
    await store.write(begin)
    return left


def holds(path: Path, user_id: str) -> bool | None:
    """Whether a copy of an SQLite database names this user anywhere; None where that cannot be told."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as copy:
            columns = copy.execute(
                "SELECT m.name, c.name FROM sqlite_master AS m, pragma_table_info(m.name) AS c WHERE m.type = 'table'"
            )
            wanted = [
                (table.replace('"', '""'), column) for table, column in columns if column in _IDS
            ]
            statement = (
                'SELECT 1 FROM "{}" WHERE "{}" = ? LIMIT 1'  # names of the copy's own schema
            )
            return any(
                copy.execute(statement.format(*names), [user_id]).fetchone() for names in wanted
            )
    except sqlite3.Error:
        return None


def is_half_copied(path: Path) -> bool:
    """Return whether an SQLite database is what an interrupted move left."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as copy:
            (version,) = copy.execute("SELECT max(version) FROM schema_versions").fetchone()
            return bool(version == HALF_COPIED)
    except sqlite3.Error:
        return False


def _scrub_sqlite(cursor: Any) -> None:
    # In memory the copy that VACUUM makes would be as large as the database.
    cursor.execute("PRAGMA temp_store = FILE")
    try:
        cursor.execute("VACUUM")
    finally:
        cursor.execute("PRAGMA temp_store = MEMORY")
    if cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
        raise Unavailable(
            "The database's log could not be emptied, since a long read uses it. It is retried."
        )


def _scrub_postgres(cursor: Any, tables: Iterable[str]) -> list[str]:
    left = []
    # Whoever comes after one that waits for a table waits with it.
    cursor.execute("SET lock_timeout = '2s'")
    try:
        for name in tables:
            cursor.execute("SELECT pg_total_relation_size(to_regclass(%s))", (name,))
            size = cursor.fetchone()[0]
            if size is None:
                continue
            is_small = size <= MOST_REWRITTEN
            cursor.execute(f'VACUUM ({"FULL, " if is_small else ""}ANALYZE) "{name}"'.encode())
            if not is_small:
                left.append(
                    f"The files of the table {name} are too large to be rewritten while servers work. Bytes of deleted rows may "
                    f"stay there until others take their place; in a quiet hour run: VACUUM FULL {name}"
                )
        # What the planner remembers of values is taken from them word for word.
        cursor.execute("VACUUM FULL pg_statistic")
    finally:
        cursor.execute("SET lock_timeout = '10s'")
    left.append(
        "PostgreSQL's own log of changes (pg_wal), archives of it, replicas and dumps are not Ricordo's: they hold what was "
        "deleted until you recycle or remove them."
    )
    return left
