"""A SQL function that has different names in the two databases."""

from typing import Any

from sqlalchemy import Integer
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement


class byte_length(FunctionElement[Any]):  # noqa: N801 - reads as SQL does: select(byte_length(column))
    """The bytes of a text in UTF-8."""

    type = Integer()
    name = "byte_length"
    inherit_cache = True


@compiles(byte_length)
def _bytes(element: byte_length, compiler: Any, **options: Any) -> str:
    column = compiler.process(element.clauses, **options)
    # The oldest supported SQLite has no octet_length.
    if compiler.dialect.name == "sqlite":
        return f"length(CAST({column} AS BLOB))"
    return f"octet_length(CAST({column} AS text))"
