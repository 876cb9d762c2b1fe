"""The migration that brings stored names into the normal form: labels aside, all columns that say they hold names.

Labels of blocks are in versions too, so a job brings blocks into the form, each by a version.
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
# What belongs to versions: the job's.
_IN_VERSIONS = {("blocks", "label"), ("blocks", "seen_as"), ("agents_blocks", "label")}


def normalise_names(connection: Connection) -> None:
    """Names in the normal form; one that is taken then gets a number, which the log says. A job does the same for blocks."""
    there = set(inspect(connection).get_table_names())
    changed_passages: set[str] = set()
    for table in metadata.sorted_tables:
        for column in table.columns if table.name in there else ():
            if (
                isinstance(column.type, NormalName)
                and (table.name, column.name) not in _IN_VERSIONS
            ):
                changed_passages |= _normalise(connection, table, column)
    _normalise_lists(connection, tables.passages, sorted(changed_passages))
    archive_ids = [row.id for row in connection.execute(select(tables.archives.c.id))]
    _normalise_lists(connection, tables.archives, archive_ids)
    job = {
        **{
            "id": new_id("job"),
            "organization_id": LOCAL_ORGANIZATION,
            "kind": NORMALISE_BLOCKS,
            "payload": {},
        },
        **{
            "key": NORMALISE_BLOCKS,
            "is_single": True,
            "status": "waiting",
            "attempts": 0,
            "most_attempts": 5,
        },
        **{"not_before": 0, "progress": {}, "created_at": 0},
    }
    connection.execute(tables.jobs.insert(), job)


def _normalise(connection: Connection, table: Table, column: Column[Any]) -> set[str]:
    """Bring a column into the form; returns the ids of the passages whose tags were changed."""
    keys = (
        [table.c.seq]
        if "seq" in table.c
        else [*[one for one in table.columns if one.foreign_keys][:1], column]
    )
    changed: set[str] = set()
    for row in _odd_rows(connection, table, column, keys):
        is_it = and_(*(_raw(key) == row[place] for place, key in enumerate(keys)))
        name = normal_name(row.name)
        if "seq" not in table.c and _is_taken(connection, table, column, row, name):
            connection.execute(table.delete().where(is_it))  # a tag is there once
        else:
            connection.execute(
                table.update()
                .where(is_it)
                .values({column.name: _free(connection, table, column, row, name)})
            )
        if table.name == "passages_tags":
            changed.add(row.passage_id)
    return changed


def _odd_rows(
    connection: Connection, table: Table, column: Column[Any], keys: Sequence[Column[Any]]
) -> list[Any]:
    """The rows whose name is not in the form."""
    others = [one for one in _unique_with(table, column) if one not in keys]
    chosen = [
        *(_raw(key).label(key.name) for key in keys),
        *(_raw(one).label(one.name) for one in others),
    ]
    statement = select(*chosen, _raw(column).label("name")).where(column.is_not(None))
    odd: list[Any] = []
    if "seq" not in table.c:  # a tag is at many things
        tags = [
            row.name for row in connection.execute(select(_raw(column).label("name")).distinct())
        ]
        wanted = [tag for tag in tags if normal_name(tag) != tag]
        for start in range(0, len(wanted), _AT_ONCE):
            odd += connection.execute(
                statement.where(_raw(column).in_(wanted[start : start + _AT_ONCE]))
            )
        return odd
    portion = statement.order_by(table.c.seq).limit(_AT_ONCE)
    after = -1
    while rows := connection.execute(portion.where(table.c.seq > after)).all():
        odd += [row for row in rows if normal_name(row.name) != row.name]
        after = rows[-1].seq
    return odd


def _unique_with(table: Table, column: Column[Any]) -> list[Column[Any]]:
    """The other columns of the rule by which a name is there once; none where there is no such rule."""
    rules = [list(one.columns) for one in table.constraints if isinstance(one, UniqueConstraint)]
    rules += [list(one.columns) for one in table.indexes if one.unique]
    return list(
        dict.fromkeys(one for rule in rules if column in rule for one in rule if one is not column)
    )


def _is_taken(
    connection: Connection, table: Table, column: Column[Any], row: Any, name: str
) -> bool:
    others = _unique_with(table, column)
    if not others:
        return False
    same = [
        one.is_(None) if getattr(row, one.name) is None else _raw(one) == getattr(row, one.name)
        for one in others
    ]
    statement = select(func.count()).select_from(table).where(_raw(column) == name, *same)
    return bool(connection.execute(statement).scalar_one())


def _free(connection: Connection, table: Table, column: Column[Any], row: Any, name: str) -> str:
    stem, dot, ending = (
        name.rpartition(".") if table.name == "files" and "." in name[1:] else (name, "", "")
    )
    free, number = name, 1
    while _is_taken(connection, table, column, row, free):
        number += 1
        free = f"{stem}_{number}{dot}{ending}"
    if free != name:
        log.warning(
            "a name got a number: another has its normal form",
            extra={"table": table.name, "row": str(row[0])},
        )
    return free


def _normalise_lists(connection: Connection, table: Table, ids: Sequence[str]) -> None:
    """Bring the tags that rows keep as a list into the form."""
    for start in range(0, len(ids), _AT_ONCE):
        some = select(table.c.id, table.c.tags).where(table.c.id.in_(ids[start : start + _AT_ONCE]))
        for row in connection.execute(some).all():
            tags = list(dict.fromkeys(normal_json(row.tags, "tags")))
            if tags != row.tags:
                connection.execute(table.update().where(table.c.id == row.id).values(tags=tags))


def _raw(column: Column[Any]) -> Any:
    """The column as it is stored: to compare with it by its own type would make both normal."""
    return type_coerce(column, Text) if isinstance(column.type, NormalName) else column
