"""Deferred deletion: a tombstone hides rows at once, and a purge removes them in portions.

Each portion is one transaction. A deleted agent or archive moves to an organization without
members. A deleted conversation gets `deleted_at` instead, since its forks share its messages until
the last of them is deleted. A purge follows the foreign keys: referring rows are deleted first, so
no cascade makes a transaction long. A job that is added with the tombstone finishes an interrupted
purge.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import Any, Literal

from sqlalchemy import (
    ColumnElement,
    Table,
    UniqueConstraint,
    bindparam,
    delete,
    exists,
    insert,
    literal,
    select,
    union_all,
    update,
)

from ricordo.domain.agent import Conversation
from ricordo.domain.clock import SECOND
from ricordo.domain.job import Job
from ricordo.domain.scope import Scope
from ricordo.errors import Conflict
from ricordo.storage import agents, archives, conversations, jobs
from ricordo.storage.engine.repository import one_of
from ricordo.storage.engine.store import Transaction, each
from ricordo.storage.schema import core_tables as tables
from ricordo.storage.schema.core_tables import (
    agents_archives,
    messages,
    organizations,
    passages,
    passages_tags,
)

DELETED = "org-ffffffff-ffff-4fff-bfff-ffffffffffff"
JOB = "deletion"
# Rows of one portion. Deleting a message or passage also deletes a row of the search index, and
# SQLite updates a counter in the agent's row. A trace may have some hundred kilobytes.
PORTION = 150
_PORTIONS = {"passages": 100, "steps": 100, "traces": 10}
# The kind "messages" means a conversation's messages up to some seq; the conversation itself stays.
Kind = Literal["agent", "archive", "conversation", "messages"]
OWNERS = {"agent": tables.agents, "archive": tables.archives}
# Called with rows of a table before their deletion, in the same transaction.
BeforePurge = Callable[[Transaction, str, Sequence[Any]], None]
# The deleting request usually purges everything itself before the job starts.
_GRACE = 60 * SECOND
_JSON = messages.c.parts.type


def hide_archive(tx: Transaction, scope: Scope, archive_id: str) -> None:
    """Detach the archive from all agents and hide it.

    Args:
        tx: The transaction.
        scope: The caller.
        archive_id: The archive's id.

    Raises:
        NotFound: There is no such archive.
        Forbidden: The caller may not change it.
    """
    archives.require_changes(scope, archives.get(tx, scope, archive_id))
    hide(tx, "archive", [archive_id])
    tx.run(delete(agents_archives).where(agents_archives.c.archive_id == archive_id))
    add_job(tx, scope.organization_id, "archive", archive_id)


def hide_agent(tx: Transaction, scope: Scope, agent_id: str) -> None:
    """Hide the agent, and add the job that purges it.

    Args:
        tx: The transaction.
        scope: The caller.
        agent_id: The agent's id.

    Raises:
        NotFound: There is no such agent, or the caller may not use it.
    """
    agents.require(tx, scope, agent_id)
    hide(tx, "agent", [agent_id])
    add_job(tx, scope.organization_id, "agent", agent_id)


def hide_conversation(tx: Transaction, scope: Scope, conversation_id: str) -> None:
    """Hide the conversation, and let no turn of it begin.

    Args:
        tx: The transaction.
        scope: The caller.
        conversation_id: The conversation's id.

    Raises:
        NotFound: There is no such conversation, or the caller may not see it.
        Conflict: It is the default conversation of an agent or of a user.
    """
    conversations.lock(tx, conversation_id)
    conversation = conversations.require(tx, scope, conversation_id)
    if conversations.is_any_default(conversation):
        raise Conflict(
            "An agent's default conversation cannot be deleted. Reset the agent's messages "
            "instead, or delete the agent."
        )
    conversations.change(tx, conversation_id, deleted_at=tx.clock.now())
    add_job(tx, scope.organization_id, "conversation", conversation_id)


def hide(tx: Transaction, kind: Kind, ids: Sequence[str]) -> None:
    """Move these rows to the organization without members, so that no caller finds them.

    Args:
        tx: The transaction.
        kind: "agent" or "archive". Conversations get a time of deletion instead.
        ids: The rows; ids of missing rows are ignored.
    """
    prepare(tx)
    tx.run(
        update(OWNERS[kind]).where(is_in(OWNERS[kind].c.id, ids)).values(organization_id=DELETED)
    )


def prepare(tx: Transaction) -> None:
    """Create the organization without members unless it exists.

    Args:
        tx: The transaction.
    """
    if tx.first(select(organizations.c.seq).where(organizations.c.id == DELETED)) is None:
        tx.run(
            insert(organizations),
            {"id": DELETED, "name": "Deleted, not yet purged", "created_at": tx.clock.now()},
        )


def is_hidden(tx: Transaction, kind: Kind, id: str) -> bool:
    """Return True if the row is hidden and not yet purged, and lock it.

    Args:
        tx: The transaction.
        kind: "agent" or "archive".
        id: The id of the agent or the archive.
    """
    owner = OWNERS[kind].c
    hidden = select(owner.id).where(owner.id == id, owner.organization_id == DELETED)
    return tx.first(hidden.with_for_update()) is not None


def add_job(tx: Transaction, organization_id: str, kind: Kind, id: str, newest: int = 0) -> None:
    """Add a job that purges what the deleting request did not purge.

    It starts after a minute, since the request usually purges everything itself.

    Args:
        tx: The transaction.
        organization_id: The organization to which the deleted object belonged.
        kind: The kind of the deleted object.
        id: The id of the agent, archive or conversation.
        newest: For "messages", the seq of the last message to purge; otherwise 0.
    """
    payload = {"kind": kind, "id": id, "newest": newest}
    jobs.add(tx, Job(JOB, organization_id, payload, key=id, not_before=tx.clock.now() + _GRACE))


def newest_unshared(tx: Transaction, scope: Scope, conversation_id: str) -> int:
    """Return the greatest seq of the conversation's messages; 0 if it has none.

    Args:
        tx: The transaction.
        scope: The caller.
        conversation_id: The conversation's id.

    Raises:
        NotFound: There is no such conversation, or the caller may not see it.
        Conflict: Forks share its messages. Deleted forks do not count: they are not read again.
    """
    conversation = conversations.require(tx, scope, conversation_id)
    if forks := conversations.existing_forks_of(tx, conversation):
        raise Conflict(
            f"Forks of this conversation share its messages. Their number is {len(forks)}, and the "
            f"oldest is {forks[0]}. Delete all of them first, or start a new conversation instead."
        )
    return conversations.newest_of(tx, conversation_id)


def purge(
    tx: Transaction,
    table: Table,
    column: str,
    keys: Collection[Any],
    before: BeforePurge,
    counts: Counter[str],
) -> bool:
    """Delete a portion of the rows with these keys, or of the rows that refer to them.

    Args:
        tx: The transaction.
        table: A table with the column `seq`.
        column: The column of the keys, which should have an index.
        keys: The values of this column; without any, nothing is deleted.
        before: Called with the name of a table and the rows that are deleted from it next. They
            have the columns `seq`, `id` and those with foreign keys.
        counts: It is changed: the numbers of deleted rows are added by table.

    Returns:
        False if nothing was left. Otherwise call it again, in another transaction.
    """
    if keys:
        rows = tx.all(_find(table, column), {"keys": list(keys)})
    else:
        rows = ()
    if not rows:
        return False
    children = _children(table)
    referred_keys = {
        _keys_of(referred): [getattr(row, referred) for row in rows] for _, _, referred in children
    }
    # Most of some twenty tables have no such rows, so one statement asks all tables.
    for row in tx.all(_find_children(table), referred_keys) if children else ():
        child, referring, referred = children[row.number]
        child_keys = referred_keys[_keys_of(referred)]
        if purge(tx, child, referring, child_keys, before=before, counts=counts):
            return True
    before(tx, table.name, rows)
    counts[table.name] += tx.run(_delete(table), {"keys": [row.seq for row in rows]})
    return True


def purge_all(
    tx: Transaction,
    table: Table,
    column: str,
    keys: Collection[Any],
    before: BeforePurge,
    counts: Counter[str],
) -> None:
    """Delete all rows with these keys, and the rows that refer to them, in this transaction.

    It is for few rows.

    Args:
        tx: The transaction.
        table: As for `purge`.
        column: As for `purge`.
        keys: As for `purge`.
        before: As for `purge`.
        counts: As for `purge`.
    """
    while purge(tx, table, column, keys, before=before, counts=counts):
        pass


def purge_passages(tx: Transaction, ids: Sequence[str], before: BeforePurge) -> bool:
    """Delete a portion of these passages.

    Args:
        tx: The transaction.
        ids: The passages.
        before: Called with rows before they are deleted (see `purge`).

    Returns:
        False if none were left.
    """
    return purge(tx, passages, "id", keys=ids, before=before, counts=Counter())


def purge_conversation(tx: Transaction, id: str, before: BeforePurge, counts: Counter[str]) -> bool:
    """Purge a portion of a deleted conversation, except messages that its forks share.

    If this conversation is a fork, its deleted origin may have waited for this purge. So the origin
    then gets a job, which purges the rest of it.

    Args:
        tx: The transaction.
        id: The conversation.
        before: Called with rows before they are deleted (see `purge`).
        counts: It is changed: the numbers of deleted rows are added by table.

    Returns:
        True if more may be left. Then call it again, in another transaction.
    """
    conversations.lock(tx, id)
    conversation = _deleted(tx, id)
    if conversation is None:
        return False
    if forks := conversations.forks_of(tx, conversation):
        # A summary is stored after the messages that follow it in the window. So a fork may show
        # the summary although the summary's seq is not shared.
        other = tables.conversations.c
        is_fork = (
            (other.agent_id == conversation.agent_id)
            & other.forked_from.is_not(None)
            & other.deleted_at.is_(None)
        )
        windowed_ids = [
            id for row in tx.all(select(other.window).where(is_fork)) for id in row.window
        ]
        is_shared = (messages.c.seq <= max(forks.values())) | is_in(messages.c.id, windowed_ids)
        ids = _messages(tx, id, ~is_shared)
        return purge(tx, messages, "id", ids, before=before, counts=counts)
    purged_before = counts["conversations"]
    purge(tx, tables.conversations, "id", [id], before=before, counts=counts)
    if counts["conversations"] == purged_before:
        return True
    if conversation.forked_from and _deleted(tx, conversation.forked_from):
        add_job(tx, conversation.organization_id, "conversation", conversation.forked_from)
    return False


def purge_messages(
    tx: Transaction, conversation_id: str, newest: int, before: BeforePurge, counts: Counter[str]
) -> bool:
    """Purge a portion of the conversation's messages.

    Args:
        tx: The transaction.
        conversation_id: The conversation, which stays.
        newest: The seq of the last message to purge.
        before: Called with rows before they are deleted (see `purge`).
        counts: It is changed: the numbers of deleted rows are added by table.

    Returns:
        True if more may be left. Then call it again, in another transaction.
    """
    conversations.lock(tx, conversation_id)
    ids = _messages(tx, conversation_id, messages.c.seq <= newest)
    purged_before = counts["messages"]
    purge(tx, messages, "id", ids, before=before, counts=counts)
    # The portion may have been rows of a plugin that refer to the messages.
    return len(ids) == PORTION or counts["messages"] - purged_before < len(ids)


def purge_these(tx: Transaction, message_ids: Sequence[str], before: BeforePurge) -> None:
    """Purge all these messages, in portions within this transaction.

    Args:
        tx: The transaction.
        message_ids: The messages; ids of missing ones are ignored.
        before: Called with rows before they are deleted (see `purge`).
    """
    for start in range(0, len(message_ids), PORTION):
        portion = message_ids[start : start + PORTION]
        purge_all(tx, messages, "id", portion, before=before, counts=Counter())


def count_fewer_messages(tx: Transaction, rows: Sequence[Any]) -> None:
    """Subtract these messages from the counts of their conversations.

    Args:
        tx: The transaction.
        rows: Rows of the messages table with a `conversation_id`, before their deletion.
    """
    table = tables.conversations
    for id, fewer in sorted(Counter(row.conversation_id for row in rows).items()):
        tx.run(
            update(table)
            .where(table.c.id == id)
            .values(message_count=table.c.message_count - fewer)
        )


def count_fewer_passages(tx: Transaction, rows: Sequence[Any]) -> None:
    """Subtract these passages from their archives' counts and tags.

    Both cover only shared passages, so passages of a user change neither. A tag stays if another
    shared passage has it.

    Args:
        tx: The transaction.
        rows: Rows of the passages table with `id` and `archive_id`, before their deletion.
    """
    table = tables.archives
    tagged = passages_tags.c
    shared = select(passages.c.tags).where(passages.c.user_id.is_(None))
    for id in sorted({row.archive_id for row in rows}):
        ids = [row.id for row in rows if row.archive_id == id]
        archive = tx.first(select(table.c.tags).where(table.c.id == id).with_for_update())
        deleted = tx.all(shared.where(is_in(passages.c.id, ids)))
        tags = {tag for row in deleted for tag in row.tags}
        others = (
            (tagged.archive_id == id)
            & tagged.user_id.is_(None)
            & is_in(tagged.tag, tags)
            & ~is_in(tagged.passage_id, ids)
        )
        tags -= {row.tag for row in tx.all(select(tagged.tag).where(others).distinct())}
        remaining_tags = [tag for tag in archive.tags if tag not in tags]
        tx.run(
            update(table)
            .where(table.c.id == id)
            .values(passage_count=table.c.passage_count - len(deleted), tags=remaining_tags)
        )


def is_in(column: Any, members: Collection[Any]) -> ColumnElement[bool]:
    """Return the condition that the column has one of these values.

    Args:
        column: The column to compare.
        members: The values, which JSON can hold. Any number of them is one parameter.
    """
    rows = each(bindparam(None, list(members), type_=_JSON, unique=True))
    condition: ColumnElement[bool] = column.op("IN", is_comparison=True)(rows)
    return condition


def _deleted(tx: Transaction, id: str) -> Conversation | None:
    """Return the conversation if it is deleted and not yet purged."""
    columns = tables.conversations.c
    is_deleted = (columns.id == id) & columns.deleted_at.is_not(None)
    return conversations.ROWS.first(tx, conversations.ROWS.select.where(is_deleted), {})


def _messages(tx: Transaction, conversation_id: str, condition: ColumnElement[bool]) -> list[str]:
    statement = select(messages.c.id).where(
        messages.c.conversation_id == conversation_id, condition
    )
    return [row.id for row in tx.all(statement.limit(PORTION))]


@cache
def _find(table: Table, column: str) -> Any:
    columns = [part for part in table.c if part.name in ("seq", "id") or part.foreign_keys]
    return (
        select(*columns)
        .where(one_of(table.c[column], "keys"))
        .limit(_PORTIONS.get(table.name, PORTION))
    )


@cache
def _find_children(table: Table) -> Any:
    """Return the statement for the numbers of the children that have rows with the keys."""
    lookups = [
        select(literal(number).label("number")).where(
            exists(select(child.c.seq).where(one_of(child.c[referring], _keys_of(referred))))
        )
        for number, (child, referring, referred) in enumerate(_children(table))
    ]
    # Tables to which no table refers come first in the list, and must be emptied first.
    return union_all(*lookups).order_by("number")


def _keys_of(column: str) -> str:
    """Return the name of the parameter with the values of this column."""
    return f"{column}_keys"


@cache
def _delete(table: Table) -> Any:
    return delete(table).where(one_of(table.c.seq, "keys"))


@cache
def _children(table: Table) -> tuple[tuple[Table, str, str], ...]:
    """Return the tables that refer to this table, with both columns; leaves come first.

    Only indexed columns count, and tables of tags are left out.
    """
    return tuple(
        (child, key.parent.name, key.column.name)
        for child in reversed(table.metadata.sorted_tables)
        if "seq" in child.c
        for key in child.foreign_keys
        if key.column.table is table and _is_looked_up_by(key.parent)
    )


def _is_looked_up_by(column: Any) -> bool:
    constraints = column.table.constraints
    unique = [rule for rule in constraints if isinstance(rule, UniqueConstraint)]
    indexes = (*column.table.indexes, *unique)
    return any(next(iter(index.columns)) is column for index in indexes)
