"""Statements compiled once. The repositories build theirs when they are imported; here each is compiled for the database at its
first use and then goes straight to the driver, which takes half of what SQLAlchemy's own execution of it takes.

On PostgreSQL an insert of several rows is compiled once more, as one statement that takes them as arrays.
"""

from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Dialect, Executable, Float, Insert, LargeBinary, SelectBase
from sqlalchemy.sql.compiler import SQLCompiler

from ricordo.storage.arrays import Rows, at_once

Convert = Callable[[Any], Any]


class Prepared:
    """One statement as the driver takes it, with the conversions of its parameters and of its rows."""

    __slots__ = ("_as_they_are", "_converts", "_defaults", "_names", "_positional", "_reads", "_row", "cursor", "sql")

    def __init__(self, statement: Executable, compiled: SQLCompiler, dialect: Dialect) -> None:
        self.sql = str(compiled)
        self._positional = compiled.positional
        self._names = tuple(compiled.positiontup or () if compiled.positional else compiled.binds)
        self._defaults = {name: bind.value for name, bind in compiled.binds.items() if not bind.required}
        converts = (
            (name, bind.type.dialect_impl(dialect).bind_processor(dialect))
            for name, bind in compiled.binds.items()
            if not isinstance(bind.type, LargeBinary)  # every driver takes bytes as they are
        )
        self._converts: dict[str, Convert] = {name: convert for name, convert in converts if convert}
        # Of several names this gives a tuple of their values, of one the value alone.
        is_plain = compiled.positional and len(self._names) > 1 and not (self._converts or self._defaults)
        self._as_they_are = itemgetter(*self._names) if is_plain else None
        columns = list(statement.selected_columns) if isinstance(statement, SelectBase) else []
        # As text PostgreSQL writes two characters for each byte; of what holds no bytes, text is as quick and always understood.
        has_bytes = any(isinstance(column.type, LargeBinary) for column in columns)
        self.cursor: dict[str, Any] = {"binary": True} if has_bytes and dialect.name == "postgresql" else {}
        row: Any = namedtuple("Row", [column.name for column in columns], rename=True)  # type: ignore[misc]
        self._row = row._make
        # Floats come as they are, and what would convert them asks for a code that only a cursor with rows has.
        kinds = (None if isinstance(column.type, Float) else column.type for column in columns)
        reads = (kind.dialect_impl(dialect).result_processor(dialect, None) if kind else None for kind in kinds)
        self._reads = tuple((place, read) for place, read in enumerate(reads) if read)

    def bind_all(self, rows: Sequence[Mapping[str, Any]]) -> list[Any]:
        """The parameters of several rows as the driver takes them."""
        return list(map(self._as_they_are or self.bind, rows))

    def bind(self, values: Mapping[str, Any]) -> Any:
        """The parameters as the driver takes them: in order, or by name."""
        given = {**self._defaults, **values} if self._defaults else values
        converts = self._converts
        if self._positional:
            return tuple([converts[n](given[n]) if n in converts else given[n] for n in self._names])
        return {n: converts[n](given[n]) if n in converts else given[n] for n in self._names}

    def read(self, rows: Sequence[Sequence[Any]]) -> list[Any]:
        """The driver's rows, converted and with names."""
        if not self._reads:
            return [self._row(row) for row in rows]
        converted = []
        for row in rows:
            items = list(row)
            for place, read in self._reads:
                items[place] = read(items[place])
            converted.append(self._row(items))
        return converted


class AtOnce(Prepared):
    """An insert of several rows as one statement."""

    __slots__ = ("_rows",)

    def __init__(self, rows: Rows, dialect: Dialect) -> None:
        compiled: Any = rows.statement.compile(dialect=dialect)
        super().__init__(rows.statement, compiled, dialect)
        self._rows = rows

    def of(self, rows: Sequence[Mapping[str, Any]]) -> Any:
        """The parameters of these rows, for one execution."""
        return self.bind(self._rows.parameters(rows))


class Statements:
    """The prepared statements of one database. `observers` are told the SQL of each that runs."""

    def __init__(self, dialect: Dialect) -> None:
        self.observers: list[Callable[[str], None]] = []
        self._dialect = dialect
        self._prepared: WeakKeyDictionary[Executable, Prepared | None] = WeakKeyDictionary()
        self._at_once: WeakKeyDictionary[Executable, AtOnce | None] = WeakKeyDictionary()

    def prepare(self, statement: Executable, values: Mapping[str, Any]) -> Prepared | None:
        """The statement prepared; None where its SQL depends on the values, as that of a list of any length does."""
        try:
            return self._prepared[statement]
        except KeyError:
            prepared = self._prepared[statement] = self._compile(statement, values)
            return prepared

    def at_once(self, statement: Any, rows: Sequence[Mapping[str, Any]]) -> AtOnce | None:
        """The statement for these rows, prepared to take all of them at once; None where each must be a statement of its own."""
        # SQLite's driver is in this process: what a row costs there is not the statement.
        if self._dialect.name != "postgresql" or not isinstance(statement, Insert) or len(rows) < 2:
            return None
        try:
            return self._at_once[statement]
        except KeyError:
            found = at_once(statement, list(rows[0]), self._dialect)
            prepared = self._at_once[statement] = AtOnce(found, self._dialect) if found else None
            return prepared

    def _compile(self, statement: Any, values: Mapping[str, Any]) -> Prepared | None:
        is_insert = isinstance(statement, Insert)
        keys = list(values) if is_insert and statement.select is None else None
        # As for many rows, so that no database is asked for the new row's number: nobody reads it.
        compiled = statement.compile(dialect=self._dialect, column_keys=keys, for_executemany=is_insert)
        if compiled.post_compile_params or compiled.literal_execute_params:
            return None
        return Prepared(statement, compiled, self._dialect)
