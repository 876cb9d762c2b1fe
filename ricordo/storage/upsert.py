"""Two ways to insert a row that may be there already, for every database."""

from typing import Any

from sqlalchemy import Insert, Table
from sqlalchemy.ext.compiler import compiles


class Appending(Insert):
    """Insert rows; the `data` of one that is there already grows by the new row's."""

    inherit_cache = False


class Missing(Insert):
    """Insert the rows that are not there yet."""

    inherit_cache = False


@compiles(Appending)
def _append(insert: Any, compiler: Any, **options: Any) -> str:
    table: Table = insert.table
    joined = f"{table.name}.data || excluded.data"
    if compiler.dialect.name == "sqlite":
        joined = f"CAST({joined} AS BLOB)"  # there || makes text even of blobs; NUL bytes survive it
    keys = ", ".join(column.name for column in table.primary_key)
    return f"{compiler.visit_insert(insert, **options)} ON CONFLICT ({keys}) DO UPDATE SET data = {joined}"


@compiles(Missing)
def _skip(insert: Any, compiler: Any, **options: Any) -> str:
    return f"{compiler.visit_insert(insert, **options)} ON CONFLICT DO NOTHING"
