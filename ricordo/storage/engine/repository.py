"""The base of the repositories: rows to entities and back, pages, conditions, writes."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, asdict, dataclass, fields
from itertools import repeat
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

log = logging.getLogger(__name__)
V = TypeVar("V")
Form = tuple[Callable[[Any], Any], Callable[[Any], Any]]
"""The functions that write a field to its column and read it back."""
# Fields that take several columns: their class, and the prefix of the columns' names.
_COMPOUND: Mapping[str, tuple[Any, str]] = {"usage": (Usage, ""), "author": (Actor, "author_")}


@dataclass(frozen=True, slots=True)
class Page:
    """The requested part of a list.

    Attributes:
        limit: The most rows.
        before: The id of a row. All rows of the page come before it. They come directly before it,
            unless `after` or `from_start` is set.
        after: The id of a row. The page begins after it.
        order: The order of the list, usually by creation.
        from_start: The page begins at the start of the list, even if `before` is set.
        is_bounded: The page also ends where its texts reach the size limit of one list, so it may
            have fewer rows than `limit`.
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


def _default_factory(field: Field[Any]) -> Callable[..., Any]:
    """Return a function that gives the default of a field without a column."""
    if field.default_factory is not MISSING:
        return field.default_factory
    return repeat(None if field.default is MISSING else field.default).__next__


def report_unlocked_change(table: str) -> None:
    """Log that a row was changed without a lock; two such changes at once can lose one.

    A person's request is not refused for it. The tests replace this function by one that fails.

    Args:
        table: The name of the table.
    """
    log.error("a row was changed without a lock", extra={"table": table})


class Repository(Generic[V]):
    """The rows of a table as entities: frozen dataclasses with a field for each column.

    A `usage` or an `author` takes several columns, a tuple is a JSON list, and some fields have a
    special form. A field without a column gets its default, or None. Entities are built by
    position, which is faster than by name: a turn reads its whole window. `long` names the column
    with long texts; their total size bounds a page.
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
        # Conversions of read rows: index, number of columns, function. The last column comes first.
        self._reads: list[tuple[int, int, Callable[..., Any]]] = []
        forms = forms or {}
        self._writes = {field: write for field, (write, _) in forms.items()}
        paths: dict[str, str] = {}
        # An entity computes its other fields from these.
        stored_fields = [field for field in fields(kind) if field.init]  # type: ignore[arg-type]
        for field in stored_fields:
            index = len(self.columns)
            if field.name in _COMPOUND:
                whole, prefix = _COMPOUND[field.name]
                parts = {
                    intern(prefix + part.name): f"{field.name}.{part.name}"
                    for part in fields(whole)
                }
                self.columns += [table.c[column] for column in parts]
                self._reads.insert(0, (index, len(parts), whole))
                paths |= parts
            elif field.name in table.c:
                self.columns.append(table.c[field.name])
                if field.name in forms:
                    self._reads.insert(0, (index, 1, forms[field.name][1]))
                elif field.default == ():
                    self._reads.insert(0, (index, 1, tuple))
                if field.name != "seq":
                    paths[field.name] = field.name
            else:
                self._reads.insert(0, (index, 0, _default_factory(field)))
        self._paths = paths
        self._fields = attrgetter(*paths.values())
        self._insert = sa.insert(table)
        self.select = sa.select(*self.columns)
        self._by_numbers = self.select.where(one_of(table.c.seq, "numbers"))
        if "id" in table.c:
            self._by_ids = self.select.where(one_of(table.c.id, "ids"))
            if "organization_id" in table.c:
                self._by_id = self.select.where(equal(table, "id", "organization_id"))
                self._by_id_for_one = self._by_id.where(*seen_by(table, sa.bindparam("subject_id")))
            self._lock = (
                sa.select(table.c.id).where(equal(table, "id")).with_for_update(key_share=True)
            )

    def values(self, entity: V) -> dict[str, Any]:
        """Return the columns of a new row, without `seq`.

        Args:
            entity: The entity, with all fields that have columns.
        """
        columns = dict(zip(self._paths, self._fields(entity), strict=True))
        for name, write in self._writes.items():
            columns[name] = write(columns[name])
        return columns

    def of(self, row: Sequence[Any]) -> V:
        """Return the entity of a row with exactly these columns.

        Args:
            row: The values of `columns`, in their order.
        """
        if not self._reads:
            return self._kind(*row)
        fields = list(row)
        for index, width, read in self._reads:
            fields[index : index + width] = [read(*fields[index : index + width])]
        return self._kind(*fields)

    def insert(self, tx: Transaction, *entities: V) -> None:
        """Store new entities; the columns get the values of their fields.

        Args:
            tx: The transaction.
            *entities: The entities; without any, nothing happens.

        Raises:
            Collision: A unique value is used, or a referenced row is missing.
        """
        rows = [self.values(entity) for entity in entities]
        tx.run(self._insert, rows[0] if len(rows) == 1 else rows)
        if "id" in self._paths:
            tx.locked_ids.update(row["id"] for row in rows)

    def all(
        self, tx: Transaction, statement: sa.Executable, parameters: Mapping[str, Any] | None = None
    ) -> list[V]:
        """Return the entities of all rows of a statement.

        Args:
            tx: The transaction.
            statement: A select of exactly `columns`, built once at import if it has parameters.
            parameters: Its parameters by name; None: it has none.
        """
        return [self.of(row) for row in tx.all(statement, parameters)]

    def first(
        self, tx: Transaction, statement: sa.Executable, parameters: Mapping[str, Any]
    ) -> V | None:
        """Return the entity of a statement's first row; None if there is no row.

        Args:
            tx: The transaction.
            statement: A select of exactly `columns`, built once at import.
            parameters: Its parameters by name.
        """
        row = tx.first(statement, parameters)
        return None if row is None else self.of(row)

    def find(self, tx: Transaction, scope: Scope, id: str) -> V | None:
        """Return the entity with this id; None if there is none, or the caller may not see it.

        Args:
            tx: The transaction.
            scope: The caller.
            id: The entity's public id.
        """
        parameters = {"id": id, "organization_id": scope.organization_id}
        if scope.subject_id is None:
            return self.first(tx, self._by_id, parameters)
        return self.first(tx, self._by_id_for_one, parameters | {"subject_id": scope.subject_id})

    def get(self, tx: Transaction, scope: Scope, id: str) -> V:
        """Return the entity with this id.

        Args:
            tx: The transaction.
            scope: The caller.
            id: The entity's public id.

        Raises:
            NotFound: There is none, or the caller may not see it. The message names the table's
                kind.
        """
        return require_found(self.find(tx, scope, id), self._name, id)

    def get_for_change(self, tx: Transaction, scope: Scope, id: str) -> V:
        """Return the entity, whose row stays locked until this transaction ends.

        Raises:
            NotFound: There is none that the scope sees.
        """
        self.get(tx, scope, id)  # a caller must not lock a row that the scope does not see
        tx.lock(self._lock, {"id": id})
        return self.get(tx, scope, id)

    def first_locked(
        self, tx: Transaction, statement: sa.Executable, parameters: Mapping[str, Any]
    ) -> V | None:
        """Return the entity of a `with_for_update` statement; its row is then locked."""
        entity = self.first(tx, statement, parameters)
        if entity is not None:
            tx.locked_ids.add(entity.id)  # type: ignore[attr-defined]
        return entity

    def by_ids(self, tx: Transaction, ids: Sequence[str]) -> list[V]:
        """Return the entities with these ids, in order, without deleted ones.

        Args:
            tx: The transaction.
            ids: The ids. The caller's access is not checked.
        """
        entities: dict[str, Any] = {
            entity.id: entity  # type: ignore[attr-defined]
            for entity in self.all(tx, self._by_ids, {"ids": list(ids)})
        }
        return [entities[id] for id in ids if id in entities]

    def by_numbers(self, tx: Transaction, numbers: Sequence[int]) -> list[V]:
        """Return the entities with these numbers (`seq`), in order, without deleted ones.

        Args:
            tx: The transaction.
            numbers: The numbers. The caller's access is not checked.
        """
        if not numbers:
            return []
        entities: dict[int, Any] = {
            entity.seq: entity  # type: ignore[attr-defined]
            for entity in self.all(tx, self._by_numbers, {"numbers": list(numbers)})
        }
        return [entities[number] for number in numbers if number in entities]

    def page(
        self,
        tx: Transaction,
        scope: Scope | None,
        page: Page,
        *conditions: sa.ColumnElement[bool] | None,
        by: Sequence[str] = ("created_at", "seq"),
        caller: Scope | None = None,
        marked: Callable[[Any], Sequence[sa.ColumnElement[bool]]] = lambda _: (),
        **equal: Any,
    ) -> list[V]:
        """Return one page of the entities that meet all conditions.

        Args:
            tx: The transaction.
            scope: Rows outside of it are left out. None: `conditions` limit the rows instead.
            page: The part of the list.
            *conditions: The conditions on a row; None is ignored.
            by: The columns of the order; the last one is unique.
            caller: The scope that may know the cursor's row, if `scope` is None.
            marked: Gets the table under another name, and returns more conditions on the cursor's
                row. If the row does not meet them, the page is empty.
            **equal: Values by column; None is ignored.
        """
        conditions_of_rows = self._conditions(scope, conditions, equal)
        marks = known_to(self.table, scope or caller, marked)
        if page.is_bounded and self._has_long:
            statement = self._sized.where(*conditions_of_rows)
            rows = read_page(tx, statement, self.table, page, by=by, marks=marks)
            return self.by_numbers(tx, _fit_to_list(tx, rows, page))
        statement = self.select.where(*conditions_of_rows)
        rows = read_page(tx, statement, self.table, page, by=by, marks=marks)
        return [self.of(row) for row in rows]

    def page_of_numbers(self, tx: Transaction, numbers: Sequence[int], page: Page) -> list[V]:
        """Return a page with the entities of these numbers (`seq`), in order.

        The page may be bounded.

        Args:
            tx: The transaction.
            numbers: The numbers on the page, in order.
            page: The page, for its order and for the limit of bytes.
        """
        if page.is_bounded and numbers:
            sizes = {row.seq: row for row in tx.all(self._sizes, {"numbers": list(numbers)})}
            rows = [sizes[number] for number in numbers if number in sizes]
            numbers = _fit_to_list(tx, rows, page)
        return self.by_numbers(tx, numbers)

    def page_of_ids(
        self,
        tx: Transaction,
        scope: Scope,
        page: Page,
        *conditions: sa.ColumnElement[bool] | None,
        position: sa.ColumnElement[Any] | None = None,
        marked: Callable[[Any], Sequence[sa.ColumnElement[bool]]] = lambda _: (),
        **equal: Any,
    ) -> list[str]:
        """Return the ids of the entities that `page` returns.

        Args:
            tx: The transaction.
            scope: Rows outside of it are left out.
            page: The part of the list.
            *conditions: The conditions on a row; None is ignored.
            position: The expression by which rows are ordered, and by `seq` at equal positions;
                None: by creation.
            marked: Gets the table under another name, and returns more conditions on the cursor's
                row. If the row does not meet them, the page is empty.
            **equal: Values by column; None is ignored.
        """
        table: Any = self.table
        statement = sa.select(self.table.c.id).where(*self._conditions(scope, conditions, equal))
        if position is not None:
            # `read_page` orders by a column named created_at, so the position gets that name.
            table = sa.select(
                self.table.c.id, self.table.c.seq, position.label("created_at")
            ).subquery()
            statement = statement.join(table, table.c.seq == self.table.c.seq)
        marks = known_to(self.table, scope, marked)
        return [row.id for row in read_page(tx, statement, table, page, marks=marks)]

    def _conditions(
        self,
        scope: Scope | None,
        conditions: Sequence[sa.ColumnElement[bool] | None],
        equal: Mapping[str, Any],
    ) -> list[sa.ColumnElement[bool]]:
        all_conditions = [condition for condition in conditions if condition is not None]
        all_conditions += [
            self.table.c[name] == value for name, value in equal.items() if value is not None
        ]
        return [*all_conditions, *(in_scope(self.table, scope) if scope else ())]

    def count(self, tx: Transaction, scope: Scope, *conditions: sa.ColumnElement[bool]) -> int:
        """Return the number of rows that the caller may see and that meet all conditions.

        Args:
            tx: The transaction.
            scope: The caller.
            *conditions: The conditions on a row.
        """
        statement = (
            sa.select(sa.func.count())
            .select_from(self.table)
            .where(*in_scope(self.table, scope), *conditions)
        )
        return int(tx.all(statement)[0][0])

    def ids(self, tx: Transaction, scope: Scope, *conditions: sa.ColumnElement[bool]) -> list[str]:
        """Return the ids of the rows in the scope that meet the conditions, the oldest first.

        Args:
            tx: The transaction.
            scope: The caller.
            *conditions: The conditions on a row.
        """
        statement = sa.select(self.table.c.id).where(*in_scope(self.table, scope), *conditions)
        return [row.id for row in tx.all(statement.order_by(self.table.c.seq))]

    def changeable(self) -> list[str]:
        """Return the columns that may change after the row is created."""
        return [
            name
            for name in self._paths
            if name not in ("id", "organization_id", "created_by", "created_at")
        ]

    def updates(
        self,
        *names: str,
        where: sa.ColumnElement[bool] | None = None,
        locked: str | None = "id",
    ) -> Callable[..., int]:
        """Return a function that stores these columns of an entity.

        The function finds the row by id and condition, and returns the number of matched rows. It
        writes all these columns, so it would take back what another transaction wrote since the
        entity was read. So the entity must be read under a lock, as `get_for_change` reads it, or a
        condition must compare the row. The log names a table that is changed otherwise. Under the
        tests such a change fails.

        Args:
            *names: Fields of the entity; a part of `author` or `usage` is named by its column.
            where: A condition on the row, whose parameters the function takes by name; None: the id
                alone. With a condition, no lock is required.
            locked: The field with the id of the row that must be locked. It is "user_id", for
                example, if the user's lock protects the entity. None: only one writer has these
                columns, or their new values do not depend on what was read.
        """
        key = attrgetter(locked) if locked and where is None else None
        this = self.table.c.id == sa.bindparam("this_id")
        statement = setter(self.table, *names, where=this if where is None else this & where)
        reads = {f"new_{name}": attrgetter(self._paths[name]) for name in names}
        writes = {f"new_{name}": write for name, write in self._writes.items() if name in names}

        def update(tx: Transaction, entity: V, **parameters: Any) -> int:
            if key and key(entity) not in tx.locked_ids:
                report_unlocked_change(self.table.name)
            columns = {name: read(entity) for name, read in reads.items()}
            for name, write in writes.items():
                columns[name] = write(columns[name])
            return tx.run(statement, {**columns, **parameters, "this_id": entity.id})  # type: ignore[attr-defined]

        return update


def read_page(
    tx: Transaction,
    statement: sa.Select[Any],
    table: Any,
    page: Page,
    *,
    by: Sequence[str] = ("created_at", "seq"),
    marks: Callable[[str], Sequence[sa.ColumnElement[bool]]] | None = None,
) -> Sequence[sa.Row[Any]]:
    """Return the rows of a page, in its order.

    Args:
        tx: The transaction.
        statement: The select of all rows, without order and limit.
        table: The table or subquery with the columns of `by` and the column `id`; the statement
            reads from it.
        page: The part of the list.
        by: The columns of the order; the last one is unique.
        marks: Returns the conditions under which the caller may know the cursor's row, by its id.
            If the row was deleted or does not meet them, the page is empty. Without these
            conditions, a cursor would reveal the position of another user's row.
    """
    columns = [table.c[name] for name in by]
    ascending = page.order == "asc"
    for id, is_after in ((page.after, True), (page.before, False)):
        if id:
            admitted = marks(id) if marks else ()
            position = sa.tuple_(*columns)
            mark = sa.select(*columns).where(table.c.id == id, *admitted).scalar_subquery()
            is_greater = ascending == is_after
            statement = statement.where(position > mark if is_greater else position < mark)
    # Rows right before the cursor are read backwards from it and then reversed.
    backwards = page.is_backwards
    statement = statement.order_by(
        *(column.asc() if ascending != backwards else column.desc() for column in columns)
    )
    rows = tx.all(statement.limit(page.limit))
    return rows[::-1] if backwards else rows


def _fit_to_list(tx: Transaction, rows: Sequence[sa.Row[Any]], page: Page) -> list[int]:
    """Return the numbers of a page's rows that fit into one list, at least one.

    The size is counted from the page's cursor on.
    """
    room = tx.quotas.list_characters
    numbers: list[int] = []
    for row in reversed(rows) if page.is_backwards else rows:
        room -= row.size
        if room < 0 and numbers:
            break
        numbers.append(row.seq)
    if page.is_backwards:
        return numbers[::-1]
    return numbers


def known_to(
    table: sa.Table,
    scope: Scope | None,
    conditions: Callable[[Any], Sequence[sa.ColumnElement[bool]]] = lambda _: (),
) -> Callable[[str], Sequence[sa.ColumnElement[bool]]]:
    """Return conditions on a cursor's row, for the `marks` of `read_page`.

    They accept a row that the scope sees and that meets the conditions.

    Args:
        table: The table of the cursor's row.
        scope: The caller; None accepts rows of any scope.
        conditions: Gets the table under another name, and returns more conditions.
    """

    def marks(id: str) -> Sequence[sa.ColumnElement[bool]]:
        marked: Any = table.alias("marked")
        visible = in_scope(marked, scope) if scope else []
        return [
            sa.exists(
                sa.select(marked.c.id).where(marked.c.id == id, *visible, *conditions(marked))
            )
        ]

    return marks


def in_scope(table: sa.Table, scope: Scope) -> list[sa.ColumnElement[bool]]:
    """Return the conditions that a row is in the scope's organization and visible to it.

    Args:
        table: A table with the column `organization_id`, or an alias of it.
        scope: The caller.
    """
    if scope.subject_id is None:
        visible = []
    else:
        visible = seen_by(table, scope.subject_id)
    return [table.c.organization_id == scope.organization_id, *visible]


def seen_by(table: sa.Table, subject_id: Any) -> list[sa.ColumnElement[bool]]:
    """Return the conditions that a row is shared or about this user.

    The user is named by the row, by its chain or by its run. A proposal for a shared block may come
    from a run about another user: then only that user sees it. Other tables have no such condition.

    Args:
        table: The table, or an alias of it.
        subject_id: The user's id, or a parameter with it. NOBODY selects shared rows only.
    """
    # An alias has no metadata, so use its table's.
    tables = getattr(table, "element", table).metadata.tables
    if "user_id" in table.c:
        return [sa.or_(table.c.user_id.is_(None), table.c.user_id == subject_id)]
    if "chain_id" in table.c:
        chains = tables["chains"].c
        is_users = (chains.id == table.c.chain_id) & (chains.owner_kind == "user")
        conditions = [~sa.exists().where(is_users, chains.owner_id != subject_id)]
        if "run_id" in table.c:
            is_own = sa.exists().where(is_users, chains.owner_id == subject_id)
            # The run may be deleted, and was then perhaps about another user.
            runs = tables["runs"].c
            is_seen = runs.user_id.is_(None) | (runs.user_id == subject_id)
            is_of_seen_run = sa.exists().where(runs.id == table.c.run_id, is_seen)
            conditions.append(is_own | table.c.run_id.is_(None) | is_of_seen_run)
        return conditions
    if "run_id" in table.c:
        runs = tables["runs"].c
        is_others = runs.user_id.is_not(None) & (runs.user_id != subject_id)
        return [~sa.exists().where(runs.id == table.c.run_id, is_others)]
    return []


def equal(table: sa.Table, *names: str) -> sa.ColumnElement[bool]:
    """Return the condition that columns equal parameters with the columns' names.

    Args:
        table: The table.
        *names: The columns. Several are joined with AND.
    """
    return sa.and_(*(table.c[name] == sa.bindparam(name) for name in names))


def one_of(column: sa.ColumnElement[Any], parameter: str) -> sa.ColumnElement[bool]:
    """Return the condition that the column has one of a parameter's values.

    Args:
        column: The column to compare.
        parameter: The name of the parameter, whose value is a list of any length.
    """
    return column.op("IN", is_comparison=True)(each(sa.bindparam(parameter, type_=sa.JSON())))


def setter(table: sa.Table, *names: str, where: sa.ColumnElement[bool]) -> Update:
    """Return an UPDATE of these columns by parameters `new_<name>`.

    SQLAlchemy uses the bare names itself in an UPDATE.

    Args:
        table: The table.
        *names: The columns.
        where: The condition on the rows, with parameters of other names.
    """
    return (
        sa.update(table).where(where).values({name: sa.bindparam(f"new_{name}") for name in names})
    )


def new_values(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters `new_<name>` for a statement of `setter`.

    Args:
        columns: The new values by column.
    """
    return {f"new_{name}": content for name, content in columns.items()}


def require_found(entity: V | None, kind: str, id: str) -> V:
    """Return the entity, or raise NotFound if it is None.

    Args:
        entity: The entity or row that was looked up.
        kind: Its kind for the message, such as "Agent".
        id: The id that was looked up.

    Raises:
        NotFound: The entity is None.
    """
    if entity is None:
        raise NotFound(f"{kind} with ID {id} not found")  # wire fact
    return entity


def tagged_with(
    links: sa.Table, column: sa.Column[Any], tags: Sequence[str], *, all_tags: bool
) -> sa.ColumnElement[bool]:
    """Return the condition that the column's entity has any of these tags, or all of them.

    Args:
        links: The table of tags, with the columns `tag` and `<entity>_id`.
        column: The `id` column of the entity's table, such as `agents.c.id`.
        tags: The tags; without any, no entity meets the condition.
        all_tags: The entity must have all of the tags.
    """
    owner = links.c[column.table.name.removesuffix("s") + "_id"]
    tagged = sa.select(owner).where(links.c.tag.in_(tags))
    if all_tags:
        tagged = tagged.group_by(owner).having(sa.func.count() == len(set(tags)))
    return column.in_(tagged)


def plain(record: Any) -> dict[str, Any]:
    """Return a small dataclass as JSON, without fields at None.

    Args:
        record: A dataclass with fields that JSON can hold.
    """
    return {name: content for name, content in asdict(record).items() if content is not None}


class distinct_list(FunctionElement[Any]):  # noqa: N801 - reads as SQL does: select(distinct_list(column))
    """The distinct values of a column, as a list."""

    type = sa.JSON()
    name = "distinct_list"
    inherit_cache = True


class Appending(sa.Insert):
    """Insert rows. If a row exists, append to its `data`."""

    inherit_cache = False


class Missing(sa.Insert):
    """Insert the rows that do not exist yet."""

    inherit_cache = False


class Replacing(sa.Insert):
    """Insert rows. If a row exists, set its columns `replaced` to the new values.

    A row exists if it has the same values in the table's unique columns.
    """

    inherit_cache = False

    def __init__(self, table: sa.Table, *replaced: str) -> None:
        super().__init__(table)
        self.replaced = replaced


@compiles(Replacing)
def _replace(insert: Any, compiler: Any, **options: Any) -> str:
    constraints = insert.table.constraints
    (unique,) = (rule for rule in constraints if isinstance(rule, sa.UniqueConstraint))
    keys = ", ".join(column.name for column in unique.columns)
    changes = ", ".join(f"{name} = excluded.{name}" for name in insert.replaced)
    statement = compiler.visit_insert(insert, **options)
    return f"{statement} ON CONFLICT ({keys}) DO UPDATE SET {changes}"


@compiles(Appending)
def _append(insert: Any, compiler: Any, **options: Any) -> str:
    table: sa.Table = insert.table
    joined = f"{table.name}.data || excluded.data"
    if compiler.dialect.name == "sqlite":
        # On SQLite || returns text even for blobs, so cast it back. NUL characters survive the
        # cast.
        joined = f"CAST({joined} AS BLOB)"
    keys = ", ".join(column.name for column in table.primary_key)
    statement = compiler.visit_insert(insert, **options)
    return f"{statement} ON CONFLICT ({keys}) DO UPDATE SET data = {joined}"


@compiles(distinct_list)
def _list(element: distinct_list, compiler: Any, **options: Any) -> str:
    if compiler.dialect.name == "sqlite":
        name = "json_group_array"
    else:
        name = "json_agg"
    return f"{name}(DISTINCT {compiler.process(element.clauses, **options)})"


@compiles(Missing)
def _skip(insert: Any, compiler: Any, **options: Any) -> str:
    return f"{compiler.visit_insert(insert, **options)} ON CONFLICT DO NOTHING"
