"""What the repositories share: rows as values and back, pages by cursor, conditions, inserts and updates."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from operator import attrgetter
from sys import intern
from typing import Any, Generic, Literal, TypeVar

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.dml import Update
from sqlalchemy.sql.functions import FunctionElement

from ricordo.domain.scope import Actor, Scope
from ricordo.domain.usage import Usage
from ricordo.errors import NotFound
from ricordo.storage.engine.store import Transaction, each
from ricordo.storage.schema.functions import byte_length

V = TypeVar("V")
Form = tuple[Callable[[Any], Any], Callable[[Any], Any]]
"""How a field is written to its column, and read from it."""
# Fields that are several columns: their class, and what the columns' names have before those of its fields.
_SEVERAL: Mapping[str, tuple[Any, str]] = {"usage": (Usage, ""), "author": (Actor, "author_")}


@dataclass(frozen=True, slots=True)
class Page:
    """Which part of a list: behind `after`, or the nearest ones ahead of the id `before`, unless read `from_start`.

    A bounded page of long texts ends where it has as many bytes as one list may have; the page after it goes on.
    """

    limit: int = 50
    before: str | None = None
    after: str | None = None
    order: Literal["asc", "desc"] = "desc"
    from_start: bool = False
    is_bounded: bool = False

    @property
    def is_backwards(self) -> bool:
        return bool(self.before and not self.after) and not self.from_start


class Repository(Generic[V]):
    """The rows of a table as values of a frozen class, whose fields have the names of the columns.

    A `usage` or an `author` is several columns, and a tuple is a list as JSON; other fields may have a form. One that has no
    column gets its default, or None. Values are made by place: by name takes longer, and a turn reads its whole window.
    `long` names the column whose texts bound a page.
    """

    def __init__(
        self,
        kind: type[V],
        table: sa.Table,
        *,
        name: str = "",
        forms: Mapping[str, Form] | None = None,
        long: str = "",
    ) -> None:
        self.table = table
        if long:
            self._sized = sa.select(table.c.seq, byte_length(table.c[long]).label("size"))
            self._sizes = self._sized.where(one_of(table.c.seq, "numbers"))
        self._has_long = bool(long)
        self.columns: list[sa.Column[Any]] = []
        self._name = name or kind.__name__
        self._kind = kind
        # What is to be put in place of so many columns, from the last place to the first.
        self._reads: list[tuple[int, int, Callable[..., Any]]] = []
        self._writes = {field: write for field, (write, _) in (forms or {}).items()}
        paths: dict[str, str] = {}
        for field in fields(kind):  # type: ignore[arg-type]
            place = len(self.columns)
            if field.name in _SEVERAL:
                whole, prefix = _SEVERAL[field.name]
                parts = {
                    intern(prefix + part.name): f"{field.name}.{part.name}"
                    for part in fields(whole)
                }
                self.columns += [table.c[column] for column in parts]
                self._reads.insert(0, (place, len(parts), whole))
                paths |= parts
            elif field.name in table.c:
                self.columns.append(table.c[field.name])
                if forms and field.name in forms:
                    self._reads.insert(0, (place, 1, forms[field.name][1]))
                elif field.default == ():
                    self._reads.insert(0, (place, 1, tuple))
                if field.name != "seq":
                    paths[field.name] = field.name
            else:
                value = None if field.default is MISSING else field.default
                make = (
                    (lambda value=value: value)
                    if field.default_factory is MISSING
                    else field.default_factory
                )
                self._reads.insert(0, (place, 0, make))
        self._paths = paths
        self._fields = attrgetter(*paths.values())
        self._insert = sa.insert(table)
        self.select = sa.select(*self.columns)
        self._by_numbers = self.select.where(one_of(table.c.seq, "numbers"))
        if "id" in table.c:
            self._by_ids = self.select.where(one_of(table.c.id, "ids"))
        if "organization_id" in table.c and "id" in table.c:
            self._by_id = self.select.where(equal(table, "id", "organization_id"))
            self._by_id_for_one = self._by_id.where(*seen_by(table, sa.bindparam("subject_id")))

    def values(self, item: V) -> dict[str, Any]:
        """Return the columns of a new row, without `seq`."""
        return self._written(dict(zip(self._paths, self._fields(item), strict=True)))

    def _written(self, values: dict[str, Any]) -> dict[str, Any]:
        return values | {
            name: write(values[name]) for name, write in self._writes.items() if name in values
        }

    def of(self, row: Sequence[Any]) -> V:
        """Return the value of a row of exactly these columns."""
        if not self._reads:
            return self._kind(*row)
        items = list(row)
        for place, width, read in self._reads:
            items[place : place + width] = [read(*items[place : place + width])]
        return self._kind(*items)

    def insert(self, tx: Transaction, *items: V) -> None:
        rows = [self.values(item) for item in items]
        tx.run(self._insert, rows[0] if len(rows) == 1 else rows)

    def all(
        self, tx: Transaction, statement: sa.Executable, values: Mapping[str, Any] | None = None
    ) -> list[V]:
        return [self.of(row) for row in tx.all(statement, values)]

    def first(
        self, tx: Transaction, statement: sa.Executable, values: Mapping[str, Any]
    ) -> V | None:
        row = tx.first(statement, values)
        return None if row is None else self.of(row)

    def find(self, tx: Transaction, scope: Scope, id: str) -> V | None:
        values = {"id": id, "organization_id": scope.organization_id}
        if scope.subject_id is None:
            return self.first(tx, self._by_id, values)
        return self.first(tx, self._by_id_for_one, values | {"subject_id": scope.subject_id})

    def get(self, tx: Transaction, scope: Scope, id: str) -> V:
        return found(self.find(tx, scope, id), self._name, id)

    def by_ids(self, tx: Transaction, ids: Sequence[str]) -> list[V]:
        """Return those with these ids, in their order; ids of deleted ones are left out."""
        items: dict[str, Any] = {
            item.id: item for item in self.all(tx, self._by_ids, {"ids": list(ids)})
        }  # type: ignore[attr-defined]
        return [items[id] for id in ids if id in items]

    def by_numbers(self, tx: Transaction, numbers: Sequence[int]) -> list[V]:
        """Return those with these numbers (`seq`), in their order; deleted ones are left out."""
        read = self.all(tx, self._by_numbers, {"numbers": list(numbers)}) if numbers else []
        items: dict[int, Any] = {item.seq: item for item in read}  # type: ignore[attr-defined]
        return [items[number] for number in numbers if number in items]

    def page(
        self,
        tx: Transaction,
        scope: Scope | None,
        wanted: Page,
        *conditions: sa.ColumnElement[bool] | None,
        by: Sequence[str] = ("created_at", "seq"),
        caller: Scope | None = None,
        marked: Callable[[Any], Sequence[sa.ColumnElement[bool]]] = lambda _: (),
        **equal: Any,
    ) -> list[V]:
        """Return one page of those that meet the conditions and have these values in these columns; None leaves one out.

        `caller` is who may know of a cursor, where the conditions stand for the scope; `marked` gives more conditions for it.
        """
        chosen = self._chosen(scope, conditions, equal)
        marks = known_to(self.table, scope or caller, marked)
        if wanted.is_bounded and self._has_long:
            rows = read_page(tx, self._sized.where(*chosen), self.table, wanted, by=by, marks=marks)
            return self.by_numbers(tx, _fitting(tx, rows, wanted))
        statement = self.select.where(*chosen)
        return [
            self.of(row) for row in read_page(tx, statement, self.table, wanted, by=by, marks=marks)
        ]

    def page_of_numbers(self, tx: Transaction, numbers: Sequence[int], wanted: Page) -> list[V]:
        """Return a page that consists of the rows with these numbers (`seq`), in their order; it may be bounded."""
        if wanted.is_bounded and numbers:
            sizes = {row.seq: row for row in tx.all(self._sizes, {"numbers": list(numbers)})}
            numbers = _fitting(tx, [sizes[number] for number in numbers if number in sizes], wanted)
        return self.by_numbers(tx, numbers)

    def page_of_ids(
        self,
        tx: Transaction,
        scope: Scope,
        wanted: Page,
        *conditions: sa.ColumnElement[bool] | None,
        place: sa.ColumnElement[Any] | None = None,
        marked: Callable[[Any], Sequence[sa.ColumnElement[bool]]] = lambda _: (),
        **equal: Any,
    ) -> list[str]:
        """Return the ids of what `page` returns, ordered by `place` where that is given, and those that are level by `seq`.

        `marked` gives more conditions under which the caller may know of a cursor's row.
        """
        table: Any = self.table
        statement = sa.select(self.table.c.id).where(*self._chosen(scope, conditions, equal))
        if place is not None:
            # Pages are cut by what the list is ordered by, under the name that they know.
            table = sa.select(
                self.table.c.id, self.table.c.seq, place.label("created_at")
            ).subquery()
            statement = statement.join(table, table.c.seq == self.table.c.seq)
        return [
            row.id
            for row in read_page(
                tx, statement, table, wanted, marks=known_to(self.table, scope, marked)
            )
        ]

    def _chosen(
        self,
        scope: Scope | None,
        conditions: Sequence[sa.ColumnElement[bool] | None],
        equal: Mapping[str, Any],
    ) -> list[sa.ColumnElement[bool]]:
        chosen = [condition for condition in conditions if condition is not None]
        chosen += [
            self.table.c[name] == value for name, value in equal.items() if value is not None
        ]
        return [*chosen, *(in_scope(self.table, scope) if scope else ())]

    def count(self, tx: Transaction, scope: Scope, *conditions: sa.ColumnElement[bool]) -> int:
        statement = (
            sa.select(sa.func.count())
            .select_from(self.table)
            .where(*in_scope(self.table, scope), *conditions)
        )
        return int(tx.all(statement)[0][0])

    def ids(self, tx: Transaction, scope: Scope, *conditions: sa.ColumnElement[bool]) -> list[str]:
        """Return the ids of those in the scope that meet the conditions, the oldest first."""
        statement = sa.select(self.table.c.id).where(*in_scope(self.table, scope), *conditions)
        return [row.id for row in tx.all(statement.order_by(self.table.c.seq))]

    def changeable(self) -> list[str]:
        """Return the columns that may change in a row's life."""
        return [
            name
            for name in self._paths
            if name not in ("id", "organization_id", "created_by", "created_at")
        ]

    def updates(
        self, *names: str, where: sa.ColumnElement[bool] | None = None
    ) -> Callable[..., int]:
        """Return a function that stores these columns of an item by id and condition, and returns how many rows matched."""
        this = self.table.c.id == sa.bindparam("this_id")
        statement = setter(self.table, *names, where=this if where is None else this & where)
        read = attrgetter(*(self._paths[name] for name in names))

        def update(tx: Transaction, item: V, **parameters: Any) -> int:
            found = read(item) if len(names) > 1 else (read(item),)
            values = new_values(self._written(dict(zip(names, found, strict=True))))
            return tx.run(statement, {**values, **parameters, "this_id": item.id})  # type: ignore[attr-defined]

        return update


def read_page(
    tx: Transaction,
    statement: sa.Select[Any],
    table: Any,
    wanted: Page,
    *,
    by: Sequence[str] = ("created_at", "seq"),
    marks: Callable[[str], Sequence[sa.ColumnElement[bool]]] | None = None,
) -> Sequence[sa.Row[Any]]:
    """Return the statement's rows on the page, ordered by these columns, the last unique.

    There are none where the cursor was deleted, or where `marks` does not admit its id: the conditions under which a caller
    may know of it. Else a page would tell where another's item stands.
    """
    columns = [table.c[name] for name in by]
    ascending = wanted.order == "asc"
    for id, is_after in ((wanted.after, True), (wanted.before, False)):
        if id:
            known = marks(id) if marks else ()
            place, mark = (
                sa.tuple_(*columns),
                sa.select(*columns).where(table.c.id == id, *known).scalar_subquery(),
            )
            statement = statement.where(place > mark if ascending == is_after else place < mark)
    backwards = (
        wanted.is_backwards
    )  # the last ones ahead of the mark: read from there, and turn the page around
    statement = statement.order_by(
        *(column.asc() if ascending != backwards else column.desc() for column in columns)
    )
    rows = tx.all(statement.limit(wanted.limit))
    return rows[::-1] if backwards else rows


def _fitting(tx: Transaction, rows: Sequence[sa.Row[Any]], wanted: Page) -> list[int]:
    """Return the numbers of a page's rows, from its mark on, that one list may have together; one at least."""
    room, numbers = tx.quotas.list_characters, list[int]()
    for row in reversed(rows) if wanted.is_backwards else rows:
        room -= row.size
        if room < 0 and numbers:
            break
        numbers.append(row.seq)
    return numbers[::-1] if wanted.is_backwards else numbers


def known_to(
    table: sa.Table,
    scope: Scope | None,
    conditions: Callable[[Any], Sequence[sa.ColumnElement[bool]]] = lambda _: (),
) -> Callable[[str], Sequence[sa.ColumnElement[bool]]]:
    """Return the `marks` of `read_page` for a table: an id of a row that the scope sees and that meets the conditions."""

    def marks(id: str) -> Sequence[sa.ColumnElement[bool]]:
        marked: Any = table.alias("marked")
        seen = in_scope(marked, scope) if scope else []
        return [
            sa.exists(sa.select(marked.c.id).where(marked.c.id == id, *seen, *conditions(marked)))
        ]

    return marks


def in_scope(table: sa.Table, scope: Scope) -> list[sa.ColumnElement[bool]]:
    """Return the conditions that a row is of the scope's organization and, where the scope has a subject, visible to it."""
    seen = [] if scope.subject_id is None else seen_by(table, scope.subject_id)
    return [table.c.organization_id == scope.organization_id, *seen]


def seen_by(table: sa.Table, subject_id: Any) -> list[sa.ColumnElement[bool]]:
    """The condition that a row is about this user or shared, by itself, its chain's owner or run's; none for other tables."""
    # An alias is of a table, which knows the others.
    others = getattr(table, "element", table).metadata.tables
    if "user_id" in table.c:
        return [sa.or_(table.c.user_id.is_(None), table.c.user_id == subject_id)]
    if "chain_id" in table.c:
        chains = others["chains"].c
        is_others = (chains.owner_kind == "user") & (chains.owner_id != subject_id)
        return [~sa.exists().where(chains.id == table.c.chain_id, is_others)]
    if "run_id" in table.c:
        runs = others["runs"].c
        is_others = runs.user_id.is_not(None) & (runs.user_id != subject_id)
        return [~sa.exists().where(runs.id == table.c.run_id, is_others)]
    return []


def equal(table: sa.Table, *names: str) -> sa.ColumnElement[bool]:
    return sa.and_(*(table.c[name] == sa.bindparam(name) for name in names))


def one_of(column: sa.ColumnElement[Any], parameter: str) -> sa.ColumnElement[bool]:
    return column.op("IN", is_comparison=True)(each(sa.bindparam(parameter, type_=sa.JSON())))


def setter(table: sa.Table, *names: str, where: sa.ColumnElement[bool]) -> Update:
    """Return an UPDATE of these columns by parameters `new_<name>`: the bare names are SQLAlchemy's own in an UPDATE."""
    return (
        sa.update(table).where(where).values({name: sa.bindparam(f"new_{name}") for name in names})
    )


def new_values(values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"new_{name}": value for name, value in values.items()}


def found(value: V | None, kind: str, id: str) -> V:
    if value is None:
        raise NotFound(f"{kind} with ID {id} not found")
    return value


def tagged_with(
    links: sa.Table, column: sa.Column[Any], tags: Sequence[str], *, all_tags: bool
) -> sa.ColumnElement[bool]:
    """Return the condition that `links` has any of these tags, or all of them, for what the column names."""
    of_item = links.c[column.table.name.removesuffix("s") + "_id"]
    tagged = sa.select(of_item).where(links.c.tag.in_(tags))
    if all_tags:
        tagged = tagged.group_by(of_item).having(sa.func.count() == len(set(tags)))
    return column.in_(tagged)


def plain(value: Any) -> dict[str, Any]:
    """Return a small dataclass as JSON, without fields at None."""
    return {name: item for name, item in asdict(value).items() if item is not None}


class distinct_list(FunctionElement[Any]):  # noqa: N801 - reads as SQL does: select(distinct_list(column))
    """The distinct values of a column, as a list."""

    type = sa.JSON()
    name = "distinct_list"
    inherit_cache = True


class Appending(sa.Insert):
    """Insert rows; the `data` of one that is there already grows by the new row's."""

    inherit_cache = False


class Missing(sa.Insert):
    """Insert the rows that are not there yet."""

    inherit_cache = False


class Replacing(sa.Insert):
    """Insert rows; where one is there already, by the table's unique columns, its columns `replaced` take the new values."""

    inherit_cache = False

    def __init__(self, table: sa.Table, *replaced: str) -> None:
        super().__init__(table)
        self.replaced = replaced


@compiles(Replacing)
def _replace(insert: Any, compiler: Any, **options: Any) -> str:
    (unique,) = (one for one in insert.table.constraints if isinstance(one, sa.UniqueConstraint))
    keys = ", ".join(column.name for column in unique.columns)
    changes = ", ".join(f"{name} = excluded.{name}" for name in insert.replaced)
    return (
        f"{compiler.visit_insert(insert, **options)} ON CONFLICT ({keys}) DO UPDATE SET {changes}"
    )


@compiles(Appending)
def _append(insert: Any, compiler: Any, **options: Any) -> str:
    table: sa.Table = insert.table
    joined = f"{table.name}.data || excluded.data"
    if compiler.dialect.name == "sqlite":
        joined = (
            f"CAST({joined} AS BLOB)"  # there || makes text even of blobs; NUL bytes survive it
        )
    keys = ", ".join(column.name for column in table.primary_key)
    return f"{compiler.visit_insert(insert, **options)} ON CONFLICT ({keys}) DO UPDATE SET data = {joined}"


@compiles(distinct_list)
def _list(element: distinct_list, compiler: Any, **options: Any) -> str:
    name = "json_group_array" if compiler.dialect.name == "sqlite" else "json_agg"
    return f"{name}(DISTINCT {compiler.process(element.clauses, **options)})"


@compiles(Missing)
def _skip(insert: Any, compiler: Any, **options: Any) -> str:
    return f"{compiler.visit_insert(insert, **options)} ON CONFLICT DO NOTHING"
