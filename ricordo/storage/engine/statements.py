"""Statements that are compiled once and then run by the driver directly.

The repositories build their statements at import. Each is compiled for the database at its first
use. Running it by the driver takes half the time of SQLAlchemy's own execution.

On PostgreSQL an insert of several rows is compiled once more, as one statement with an array for
each column. A statement for each row costs the server and the database several times as much. This
is so even if the driver does not wait for answers in between.
"""

import re
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any
from weakref import WeakKeyDictionary

import sqlalchemy as sa
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.visitors import iterate, replacement_traverse
from sqlalchemy.types import TypeEngine, UserDefinedType

from ricordo.storage.schema.columns import NormalText

Convert = Callable[[Any], Any]
Row = Mapping[str, Any]
_POSITION = "position"


def _conversions_of_parameters(
    compiled: SQLCompiler, dialect: sa.Dialect
) -> Iterator[tuple[str, Convert]]:
    """Yield the name of each parameter that needs a conversion, with the conversion."""
    for name, bind in compiled.binds.items():
        # Drivers take bytes unchanged.
        if isinstance(bind.type, sa.LargeBinary):
            continue
        if convert := bind.type.dialect_impl(dialect).bind_processor(dialect):
            yield name, convert


def _conversions_of_rows(
    columns: Sequence[sa.ColumnElement[Any]], dialect: sa.Dialect
) -> Iterator[tuple[int, Convert]]:
    """Yield the index of each column whose values need a conversion, with the conversion."""
    for index, column in enumerate(columns):
        # Floats need no conversion. Asking for their processor needs a cursor with rows.
        if isinstance(column.type, sa.Float):
            continue
        if convert := column.type.dialect_impl(dialect).result_processor(dialect, None):
            yield index, convert


class PreparedStatement:
    """One statement for the driver, with conversions of its parameters and rows."""

    __slots__ = (
        "_converts",
        "_defaults",
        "_names",
        "_positional",
        "_reads",
        "_row",
        "bound",
        "is_binary",
        "sql",
    )

    def __init__(
        self, statement: sa.Executable, compiled: SQLCompiler, dialect: sa.Dialect
    ) -> None:
        self.sql = str(compiled)
        self._positional = compiled.positional
        self._names = tuple(compiled.positiontup or () if compiled.positional else compiled.binds)
        self._defaults = {
            name: bind.value for name, bind in compiled.binds.items() if not bind.required
        }
        self._converts = dict(_conversions_of_parameters(compiled, dialect))
        # For several names itemgetter gives a tuple, for a single name only its value.
        is_plain = (
            compiled.positional and len(self._names) > 1 and not (self._converts or self._defaults)
        )
        # Returns the parameters for the driver: in order, or by name.
        self.bound: Callable[[Row], Any] = itemgetter(*self._names) if is_plain else self._bind
        if isinstance(statement, sa.SelectBase):
            columns = list(statement.selected_columns)
        else:
            columns = []
        # Read rows with bytes in binary form, since as text PostgreSQL writes two characters for
        # each byte. Other rows are read as text, which is as fast.
        has_bytes = any(isinstance(column.type, sa.LargeBinary) for column in columns)
        self.is_binary = has_bytes and dialect.name == "postgresql"
        row: Any = namedtuple("Row", [column.name for column in columns], rename=True)  # type: ignore[misc]
        self._row = row._make
        self._reads = tuple(_conversions_of_rows(columns, dialect))

    def _bind(self, parameters: Row) -> Any:
        bound = {**self._defaults, **parameters} if self._defaults else parameters
        converts = self._converts
        if self._positional:
            return tuple(
                [
                    converts[name](bound[name]) if name in converts else bound[name]
                    for name in self._names
                ]
            )
        return {
            name: converts[name](bound[name]) if name in converts else bound[name]
            for name in self._names
        }

    def read(self, rows: Sequence[Sequence[Any]]) -> list[Any]:
        """Return the driver's rows, converted and with names.

        Args:
            rows: Rows as the driver returned them.
        """
        if not self._reads:
            return [self._row(row) for row in rows]
        converted = []
        for row in rows:
            columns = list(row)
            for index, read in self._reads:
                columns[index] = read(columns[index])
            converted.append(self._row(columns))
        return converted


class Statements:
    """The prepared statements of one database.

    `observers` get the SQL of each statement that the driver runs directly.
    """

    def __init__(self, dialect: sa.Dialect) -> None:
        self.observers: list[Callable[[str], None]] = []
        self.inserts_in_bulk = dialect.name == "postgresql"
        self._dialect = dialect
        self.prepared: WeakKeyDictionary[sa.Executable, PreparedStatement | None] = (
            WeakKeyDictionary()
        )
        self._bulk: WeakKeyDictionary[sa.Executable, BulkInsert | None] = WeakKeyDictionary()

    def prepare(self, statement: sa.Executable, parameters: Row) -> PreparedStatement | None:
        """Return the statement prepared, or None if its SQL depends on the parameters.

        An example is a list of any length.

        Args:
            statement: The statement. It should be built once, since it is cached as an object.
            parameters: Its first parameters. An insert of values uses their names as columns.
        """
        try:
            return self.prepared[statement]
        except KeyError:
            prepared = self.prepared[statement] = self._compile(statement, parameters)
            return prepared

    def bulk_insert(self, statement: Any, rows: Sequence[Row]) -> "BulkInsert | None":
        """Return the insert prepared for all of these rows at once.

        Args:
            statement: The statement.
            rows: The parameters of each row, all with the same names.

        Returns:
            None if each row needs a separate statement.
        """
        if not isinstance(statement, sa.Insert) or len(rows) < 2:
            return None
        try:
            return self._bulk[statement]
        except KeyError:
            insert = self._bulk[statement] = bulk_insert(statement, list(rows[0]), self._dialect)
            return insert

    def _compile(self, statement: Any, parameters: Row) -> PreparedStatement | None:
        is_insert = isinstance(statement, sa.Insert)
        if is_insert and statement.select is None:
            keys = list(parameters)
        else:
            keys = None
        # Compile the statement as for many rows, so that the database does not return new row
        # numbers.
        compiled = statement.compile(
            dialect=self._dialect, column_keys=keys, for_executemany=is_insert
        )
        if compiled.post_compile_params or compiled.literal_execute_params:
            return None
        return PreparedStatement(statement, compiled, self._dialect)


# PostgreSQL's names of array elements by the type of a column.
_KINDS: Mapping[type[Any], str] = {
    sa.String: "TEXT",
    sa.JSON: "JSON",
    sa.Boolean: "BOOLEAN",
    sa.Integer: "BIGINT",
    sa.LargeBinary: "BYTEA",
    sa.Float: "DOUBLE PRECISION",
}


class _ArrayOf(UserDefinedType[list[Any]]):
    """The parameters of one column of several rows.

    Raises LookupError for a type that has no array form.
    """

    cache_ok = True

    def __init__(self, element: TypeEngine[Any]) -> None:
        self.element = element
        stored = element.impl_instance if isinstance(element, NormalText) else element
        self.name = next((name for kind, name in _KINDS.items() if isinstance(stored, kind)), "")
        if not self.name:
            raise LookupError(element)

    def get_col_spec(self, **_: Any) -> str:
        return f"{self.name}[]"

    def bind_processor(self, dialect: sa.Dialect) -> Any:
        """Return the conversion of a column of parameters; None if there is none.

        Args:
            dialect: The dialect of PostgreSQL.
        """
        if not isinstance(self.element, sa.JSON | NormalText):
            return None
        element: Any = self.element
        convert = element.bind_processor(dialect)
        return lambda column: list(map(convert, column))


class BulkInsert(PreparedStatement):
    """An insert of any number of rows as one statement."""

    __slots__ = ("_columns",)

    def __init__(self, statement: sa.Insert, columns: Sequence[str], dialect: sa.Dialect) -> None:
        compiled: Any = statement.compile(dialect=dialect)
        super().__init__(statement, compiled, dialect)
        self._columns = columns
        # Arrays are sent in binary: as text they take several times as long.
        self.sql = re.sub(r"%\((\w+)\)s", r"%(\1)b", self.sql)

    def bind_rows(self, rows: Sequence[Row]) -> Any:
        """Return the driver's parameters for all rows: a list of values for each column.

        Args:
            rows: The parameters of each row, all with the same names.
        """
        return self._bind({name: [row[name] for row in rows] for name in self._columns})


def bulk_insert(
    statement: sa.Insert, names: Sequence[str], dialect: sa.Dialect
) -> BulkInsert | None:
    """Return the insert of one row, compiled for many rows; None if it has no such form.

    Args:
        statement: An insert of the parameters of a row, or an insert from a select.
        names: The names of a row's parameters in order. They are columns, unless the insert is from
            a select.
        dialect: The dialect of PostgreSQL.
    """
    if statement._values or statement._returning:
        return None
    table: Any = statement.table
    selected: Any = statement.select
    if selected is None:
        kinds = {name: table.c[name].type for name in names}
    else:
        parts: Any = iterate(selected)
        kinds = {bind.key: bind.type for bind in parts if _is_value(bind)}
    try:
        types = {name: _ArrayOf(kind) for name, kind in kinds.items()}
    except LookupError:
        return None
    # The rows as a table: a column for each name, and the position of each row.
    arrays = [sa.cast(sa.bindparam(name, type_=kind), kind) for name, kind in types.items()]
    columns = [sa.column(name, kind) for name, kind in kinds.items()]
    rows_table: Any = (
        sa.func.unnest(*arrays).table_valued(*columns, with_ordinality=_POSITION).render_derived()
    )
    if selected is None:
        targets = list(names)
        rows = sa.select(*[rows_table.c[name] for name in names])
    else:
        targets = list(statement._select_names or ())
        # A lambda, since the visitor's signature is untyped in SQLAlchemy.
        exchange: Any = lambda part, **_: rows_table.c[part.key] if _is_value(part) else None  # noqa: E731
        rows = replacement_traverse(selected, {}, exchange)
    # Order the rows, or else the database may number them in any order.
    many = type(statement)(table).from_select(
        targets, rows.order_by(rows_table.c[_POSITION]), include_defaults=False
    )
    return BulkInsert(many, list(kinds), dialect)


def _is_value(part: Any) -> bool:
    return isinstance(part, sa.BindParameter) and part.required
