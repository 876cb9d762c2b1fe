"""The migration that brings stored names into normal form, in all columns of names.

Labels of blocks are also in versions, so a job normalises blocks and makes versions.
"""

import logging
from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    Table,
    Text,
    UniqueConstraint,
    and_,
    func,
    inspect,
    select,
    type_coerce,
)

from ricordo.domain.ids import new_id
from ricordo.domain.scope import LOCAL_ORGANIZATION
from ricordo.domain.text import normal_json, normal_name
from ricordo.storage.schema import core_tables as tables
from ricordo.storage.schema.columns import NormalName, metadata

log = logging.getLogger(__name__)
NORMALISE_BLOCKS = "memory.normalise"
_AT_ONCE = 500
# Columns whose content is also in versions. The job normalises these.
_IN_VERSIONS = {("blocks", "label"), ("blocks", "seen_as"), ("agents_blocks", "label")}


def normalise_names(connection: Connection) -> None:
    """Bring names into the normal form.

    If another row already has the normal form of a name, the name gets a number, which is logged. A
    tag is deleted in this case. A job normalises the labels of blocks.
    """
    existing = set(inspect(connection).get_table_names())
    changed_passages: set[str] = set()
    for table in metadata.sorted_tables:
        for column in table.columns if table.name in existing else ():
            if (
                isinstance(column.type, NormalName)
                and (table.name, column.name) not in _IN_VERSIONS
            ):
                changed_passages |= _normalise(connection, table, column)
    _normalise_lists(connection, tables.passages, sorted(changed_passages))
    archive_ids = [row.id for row in connection.execute(select(tables.archives.c.id))]
    _normalise_lists(connection, tables.archives, archive_ids)
    job = {
        "id": new_id("job"),
        "organization_id": LOCAL_ORGANIZATION,
        "kind": NORMALISE_BLOCKS,
        "payload": {},
        "key": NORMALISE_BLOCKS,
        "is_single": True,
        "status": "waiting",
        "attempts": 0,
        "most_attempts": 5,
        "not_before": 0,
        "progress": {},
        "created_at": 0,
    }
    connection.execute(tables.jobs.insert(), job)


def _normalise(connection: Connection, table: Table, column: Column[Any]) -> set[str]:
    """Bring a column's names into normal form.

    Returns:
        The ids of passages whose tags were changed.
    """
    if "seq" in table.c:
        keys = [table.c.seq]
    else:
        keys = [*[key for key in table.columns if key.foreign_keys][:1], column]
    changed: set[str] = set()
    for row in _odd_rows(connection, table, column, keys):
        is_this_row = and_(*(_raw(key) == row[index] for index, key in enumerate(keys)))
        name = normal_name(row.name)
        if "seq" not in table.c and _is_taken(connection, table, column, row, name=name):
            connection.execute(table.delete().where(is_this_row))  # the tag exists already
        else:
            free_name = _free(connection, table, column, row, name=name)
            statement = table.update().where(is_this_row)
            connection.execute(statement.values({column.name: free_name}))
        if table.name == "passages_tags":
            changed.add(row.passage_id)
    return changed


def _odd_rows(
    connection: Connection, table: Table, column: Column[Any], keys: Sequence[Column[Any]]
) -> list[Any]:
    """Return the rows whose name is not in normal form."""
    others = [other for other in _unique_with(table, column) if other not in keys]
    columns = [
        *(_raw(key).label(key.name) for key in keys),
        *(_raw(other).label(other.name) for other in others),
    ]
    statement = select(*columns, _raw(column).label("name")).where(column.is_not(None))
    odd: list[Any] = []
    if "seq" not in table.c:  # a tag has many rows
        tags = [
            row.name for row in connection.execute(select(_raw(column).label("name")).distinct())
        ]
        odd_tags = [tag for tag in tags if normal_name(tag) != tag]
        for start in range(0, len(odd_tags), _AT_ONCE):
            odd += connection.execute(
                statement.where(_raw(column).in_(odd_tags[start : start + _AT_ONCE]))
            )
        return odd
    portion = statement.order_by(table.c.seq).limit(_AT_ONCE)
    after = -1
    while rows := connection.execute(portion.where(table.c.seq > after)).all():
        odd += [row for row in rows if normal_name(row.name) != row.name]
        after = rows[-1].seq
    return odd


def _unique_with(table: Table, column: Column[Any]) -> list[Column[Any]]:
    """Return the other columns of unique rules with this column."""
    constraints = (rule for rule in table.constraints if isinstance(rule, UniqueConstraint))
    rules = [list(rule.columns) for rule in constraints]
    rules += [list(index.columns) for index in table.indexes if index.unique]
    others = [other for rule in rules if column in rule for other in rule if other is not column]
    return list(dict.fromkeys(others))


def _is_taken(
    connection: Connection, table: Table, column: Column[Any], row: Any, *, name: str
) -> bool:
    others = _unique_with(table, column)
    if not others:
        return False
    same = [
        other.is_(None)
        if getattr(row, other.name) is None
        else _raw(other) == getattr(row, other.name)
        for other in others
    ]
    statement = select(func.count()).select_from(table).where(_raw(column) == name, *same)
    return bool(connection.execute(statement).scalar_one())


def _free(connection: Connection, table: Table, column: Column[Any], row: Any, *, name: str) -> str:
    """Return the name, with a number if another row has it."""
    stem, dot, ending = name, "", ""
    if table.name == "files" and "." in name[1:]:
        stem, dot, ending = name.rpartition(".")
    free = name
    number = 1
    while _is_taken(connection, table, column, row, name=free):
        number += 1
        free = f"{stem}_{number}{dot}{ending}"
    if free != name:
        log.warning(
            "a number was added to a name, since another name has the same normal form",
            extra={"table": table.name, "row": str(row[0])},
        )
    return free


def _normalise_lists(connection: Connection, table: Table, ids: Sequence[str]) -> None:
    """Bring the tags that rows keep as a list into normal form."""
    for start in range(0, len(ids), _AT_ONCE):
        rows = select(table.c.id, table.c.tags).where(table.c.id.in_(ids[start : start + _AT_ONCE]))
        for row in connection.execute(rows).all():
            tags = list(dict.fromkeys(normal_json(row.tags, "tags")))
            if tags != row.tags:
                connection.execute(table.update().where(table.c.id == row.id).values(tags=tags))


def _raw(column: Column[Any]) -> Any:
    """Return the column as it is stored.

    With its usual type, a comparison would normalise both sides.
    """
    if isinstance(column.type, NormalName):
        return type_coerce(column, Text)
    return column
