"""Remove the bytes of deleted rows from database files, and look for a user in copies.

A database marks deleted rows as free, and keeps their bytes until they are overwritten. SQLite's
VACUUM and PostgreSQL's VACUUM FULL rewrite the files.
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

# A larger table is not rewritten while servers run, since all readers of the table would wait for
# seconds.
MOST_REWRITTEN = 256 * 1024 * 1024
# Every erasure deletes rows of these tables.
_ALWAYS = ("users", "conversations", "messages", "jobs", "search_")
# Tables that change with the rows of another table.
_WITH = {"passages": {"passages_tags", "archives"}, "blocks": {"blocks_tags", "agents_blocks"}}
_OUTSIDE = ("search_pgvector",)
_IDS = ("id", "user_id", "sender_id", "owner_id", "author_id", "created_by", "updated_by")


async def scrub(store: Store, tables: Iterable[str]) -> list[str]:
    """Rewrite the files of tables with deleted rows.

    Args:
        store: The store of the running server.
        tables: The names of the tables from which an erasure deleted rows.

    Returns:
        Sentences about the tables that could not be rewritten, and about copies outside of them.

    Raises:
        Unavailable: A long read uses SQLite's log, so the scrub must be repeated.
    """
    touched = set(tables)
    touched.update(*(_WITH.get(name, ()) for name in touched))
    names = [name for name in metadata.tables if name in touched or name.startswith(_ALWAYS)]
    remarks: list[str] = []

    def begin(tx: Transaction) -> None:
        cursor: Any = tx.connection.connection.cursor
        # VACUUM runs after the commit, in the thread of the writer. There no other write of this
        # server can hold the lock that it needs.
        if tx.connection.dialect.name == "sqlite":
            tx.after_commit.append(lambda: _scrub_sqlite(cursor()))
        else:
            names_to_scrub = [*names, *_OUTSIDE]
            tx.after_commit.append(
                lambda: remarks.extend(_scrub_postgres(cursor(), names_to_scrub))
            )

    begin.__qualname__ = "scrub: VACUUM after an erasure"
    await store.write(begin)
    return remarks


def holds(path: Path, user_id: str) -> bool | None:
    """Return True if a copy of an SQLite database contains this user's id.

    Returns None if the copy cannot be read.
    """
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as copy:
            columns = copy.execute(
                "SELECT m.name, c.name FROM sqlite_master AS m, pragma_table_info(m.name) AS c"
                " WHERE m.type = 'table'"
            )
            id_columns = [
                (table.replace('"', '""'), column) for table, column in columns if column in _IDS
            ]
            # The names come from the copy's own schema.
            statement = 'SELECT 1 FROM "{}" WHERE "{}" = ? LIMIT 1'
            return any(
                copy.execute(statement.format(*names), [user_id]).fetchone() for names in id_columns
            )
    except sqlite3.Error:
        return None


def is_half_copied(path: Path) -> bool:
    """Return True if an SQLite database was left by an interrupted move."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as copy:
            (version,) = copy.execute("SELECT max(version) FROM schema_versions").fetchone()
            return bool(version == HALF_COPIED)
    except sqlite3.Error:
        return False


def _scrub_sqlite(cursor: Any) -> None:
    # In memory, VACUUM's copy would be as large as the database.
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
    remarks = []
    # A statement that waits for a table also delays all later statements of the table, so it waits
    # only briefly.
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
                remarks.append(
                    f"The files of the table {name} are too large to be rewritten while servers "
                    "work. Bytes of deleted rows may stay there until other rows overwrite them. In "
                    f"a quiet hour run: VACUUM FULL {name}"
                )
        # The planner's statistics contain copies of stored texts.
        cursor.execute("VACUUM FULL pg_statistic")
    finally:
        cursor.execute("SET lock_timeout = '10s'")
    remarks.append(
        "PostgreSQL's own log of changes (pg_wal), archives of it, replicas and dumps are not "
        "Ricordo's: they hold what was deleted until you recycle or remove them."
    )
    return remarks
