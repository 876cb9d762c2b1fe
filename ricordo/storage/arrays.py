"""Many rows by one statement: PostgreSQL takes them as arrays, one for each column.

A statement for each of them costs both sides several times as much, also where the driver waits for no answer in between.
"""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    JSON,
    BindParameter,
    Boolean,
    Dialect,
    Float,
    Insert,
    Integer,
    LargeBinary,
    String,
    bindparam,
    cast,
    column,
    func,
    select,
)
from sqlalchemy.sql.visitors import iterate, replacement_traverse
from sqlalchemy.types import TypeEngine, UserDefinedType

_HEAD = struct.Struct(
    "!iiIii"
).pack  # dimensions, whether there are nulls, the items' type, how many, the first one's number
_LENGTH = struct.Struct("!i").pack
_NULL = _LENGTH(-1)
_PLACE = "place"


class Encoded(bytes):
    """An array as PostgreSQL's binary format has it."""


class _Array(UserDefinedType[Encoded]):
    """The type of an array that goes to the driver as it is."""

    cache_ok = True

    def __init__(self, item: str) -> None:
        self.item = item

    def get_col_spec(self, **_: Any) -> str:
        return f"{self.item}[]"


# By the type of a column: the items' type in PostgreSQL, its number there, and how an item is written.
_KINDS: Sequence[tuple[Any, str, int, Callable[[Any], bytes]]] = (
    (String, "TEXT", 25, str.encode),
    (JSON, "JSON", 114, str.encode),
    (Boolean, "BOOLEAN", 16, lambda flag: b"\1" if flag else b"\0"),
    (Integer, "BIGINT", 20, lambda number: int(number).to_bytes(8, "big", signed=True)),
    (LargeBinary, "BYTEA", 17, bytes),
    (Float, "DOUBLE PRECISION", 701, struct.Struct("!d").pack),
)


class Column:
    """How the values of one column become an array."""

    def __init__(self, kind: TypeEngine[Any], dialect: Dialect) -> None:
        """Raises LookupError for a type that has no such form."""
        known = next((known for known in _KINDS if isinstance(kind, known[0])), None)
        if known is None:
            raise LookupError(kind)
        _, self.item, self._number, self._write = known
        self._convert: Any = kind.bind_processor(dialect) if isinstance(kind, JSON) else None  # type: ignore[no-untyped-call]
        # Zero and minus zero are equal, and not the same.
        self._is_told_apart = not isinstance(kind, Float)

    def encoded(self, values: list[Any]) -> Encoded:
        """These values. Raises OverflowError for a number of more than 64 bits, UnicodeEncodeError for half a character."""
        if self._convert:
            values = list(map(self._convert, values))
        first, count = values[0], len(values)
        # Most columns of rows that are stored together hold one value: it is written once.
        is_one = self._is_told_apart and values.count(first) == count
        items = self._items(values[:1]) * count if is_one else self._items(values)
        return Encoded(_HEAD(1, None in values, self._number, count, 1) + items)

    def _items(self, values: list[Any]) -> bytes:
        write = self._write
        return b"".join([_NULL if value is None else _LENGTH(len(item := write(value))) + item for value in values])


class Rows:
    """An insert of any number of rows at once, and how these become its parameters."""

    def __init__(self, statement: Insert, columns: Mapping[str, Column]) -> None:
        self.statement = statement
        self._columns = columns

    def parameters(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Encoded]:
        """The values of these rows, an array for each name."""
        return {name: column.encoded([row[name] for row in rows]) for name, column in self._columns.items()}


def at_once(statement: Insert, names: Sequence[str], dialect: Dialect) -> Rows | None:
    """The insert of one row with these names as one of many, in their order; None where it has no such form."""
    if statement._values or statement._returning:
        return None
    table: Any = statement.table
    chosen: Any = statement.select
    if chosen is None:
        kinds = {name: table.c[name].type for name in names}
    else:
        kinds = {bind.key: bind.type for bind in _parts(chosen) if _is_value(bind)}
    try:
        columns = {name: Column(kind, dialect) for name, kind in kinds.items()}
    except LookupError:
        return None
    given = _given({name: (kind, _Array(columns[name].item)) for name, kind in kinds.items()})
    if chosen is None:
        targets, found = list(names), select(*[given.c[name] for name in names])
    else:
        targets = list(statement._select_names or ())
        found = replacement_traverse(chosen, {}, _exchange(given))
    # Without an order the database might number them as it likes.
    many = type(statement)(table).from_select(targets, found.order_by(given.c[_PLACE]), include_defaults=False)
    return Rows(many, columns)


def _parts(chosen: Any) -> Iterable[Any]:
    return iterate(chosen)


def _exchange(given: Any) -> Any:
    """Puts the column of the given rows in the place of each value."""

    def exchange(part: Any, **_: Any) -> Any:
        return given.c[part.key] if _is_value(part) else None

    return exchange


def _is_value(part: Any) -> bool:
    """Whether this part of a statement is one of a row's values."""
    return isinstance(part, BindParameter) and part.required


def _given(kinds: Mapping[str, tuple[TypeEngine[Any], _Array]]) -> Any:
    """The rows as a table with a column for each name, and their places; by name the type of a value, and of its array."""
    arrays = [cast(bindparam(name, type_=array), array) for name, (_, array) in kinds.items()]
    columns = [column(name, kind) for name, (kind, _) in kinds.items()]
    given = func.unnest(*arrays).table_valued(*columns, with_ordinality=_PLACE)
    return given.render_derived()
