"""Deferred deletion: a tombstone hides what is deleted at once, and its rows are purged in portions, each a transaction.

A deleted agent or archive moves to an organization that nobody belongs to. A deleted conversation gets `deleted_at` instead, since
its forks share its messages until the last of them is deleted. A purge follows the foreign keys: rows that refer to others go
first, so no cascade makes a transaction long. A job that is added with the tombstone finishes what a kill interrupts.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Literal

from sqlalchemy import Column, Table, UniqueConstraint, bindparam, delete, insert, not_, select, update

from ricordo.domain.agent import Conversation
from ricordo.domain.clock import SECOND
from ricordo.domain.job import Job
from ricordo.domain.scope import Scope
from ricordo.errors import Conflict
from ricordo.storage import agents, archives, conversations, jobs
from ricordo.storage.store import Transaction, each
from ricordo.storage.tables import agents as agents_table
from ricordo.storage.tables import agents_archives, messages, organizations, passages, passages_tags
from ricordo.storage.tables import archives as archives_table
from ricordo.storage.tables import conversations as conversations_table

DELETED = "org-ffffffff-ffff-4fff-bfff-ffffffffffff"
JOB = "deletion"
# Rows of one portion. A message or passage has a row of the search index beside its own; a trace may have some hundred kilobytes.
PORTION = 200
_PORTIONS = {"passages": 100, "traces": 10}
# "messages" are those of a conversation up to some seq; the conversation itself goes on.
Kind = Literal["agent", "archive", "conversation", "messages"]
# Called with rows of a table before they are deleted, in the same transaction.
BeforePurge = Callable[[Transaction, str, Sequence[Any]], None]
# Whoever deletes purges the rows as well; the job finds work only where that was interrupted.
_GRACE = 60 * SECOND

_JSON = messages.c.parts.type
_IDS = each(bindparam("ids", type_=_JSON))
OWNERS = {"agent": agents_table, "archive": archives_table}
_IS_READY = select(organizations.c.seq).where(organizations.c.id == DELETED)
_HIDE = {
    kind: update(table).where(table.c.id.op("IN")(_IDS)).values(organization_id=DELETED)
    for kind, table in OWNERS.items()
}
_HIDDEN = {
    kind: select(table.c.id).where(table.c.id == bindparam("id"), table.c.organization_id == DELETED)
    for kind, table in OWNERS.items()
}
_DETACH_ALL = delete(agents_archives).where(agents_archives.c.archive_id == bindparam("archive_id"))
_DELETED_CONVERSATION = select(*conversations.COLUMNS).where(
    conversations_table.c.id == bindparam("id"), conversations_table.c.deleted_at.is_not(None)
)
_MESSAGES_UP_TO = (
    select(messages.c.id)
    .where(messages.c.conversation_id == bindparam("conversation_id"), messages.c.seq <= bindparam("newest"))
    .limit(PORTION)
)
_WINDOWS_OF_FORKS = select(conversations_table.c.window).where(
    conversations_table.c.agent_id == bindparam("agent_id"),
    conversations_table.c.forked_from.is_not(None),
    conversations_table.c.deleted_at.is_(None),
)
_NOT_SHARED = (
    select(messages.c.id)
    .where(
        messages.c.conversation_id == bindparam("conversation_id"),
        messages.c.seq > bindparam("shared_seq"),
        not_(messages.c.id.op("IN", is_comparison=True)(each(bindparam("kept", type_=_JSON)))),
    )
    .limit(PORTION)
)
_COUNT_FEWER_MESSAGES = (
    update(conversations_table)
    .where(conversations_table.c.id == bindparam("conversation_id"))
    .values(message_count=conversations_table.c.message_count - bindparam("fewer"))
)
_TAGS_OF_ARCHIVE = select(archives_table.c.tags).where(archives_table.c.id == bindparam("id")).with_for_update()
_TAGS_OF_PASSAGES = select(passages.c.tags).where(passages.c.id.op("IN")(_IDS))
_TAGS_OF_OTHERS = (
    select(passages_tags.c.tag)
    .where(
        passages_tags.c.archive_id == bindparam("id"),
        passages_tags.c.tag.op("IN")(each(bindparam("tags", type_=_JSON))),
        not_(passages_tags.c.passage_id.op("IN", is_comparison=True)(_IDS)),
    )
    .distinct()
)
_COUNT_FEWER_PASSAGES = (
    update(archives_table)
    .where(archives_table.c.id == bindparam("archive_id"))
    .values(passage_count=archives_table.c.passage_count - bindparam("fewer"), tags=bindparam("new_tags"))
)


def hide_archive(tx: Transaction, scope: Scope, archive_id: str) -> None:
    """Take the archive from every agent and out of every list; raises NotFound."""
    archives.get(tx, scope, archive_id)
    hide(tx, "archive", [archive_id])
    tx.run(_DETACH_ALL, {"archive_id": archive_id})
    add_job(tx, scope.organization_id, "archive", archive_id)


def hide_agent(tx: Transaction, scope: Scope, agent_id: str) -> None:
    """Take the agent out of every list and let no turn of it begin; raises NotFound."""
    agents.require(tx, scope, agent_id)
    hide(tx, "agent", [agent_id])
    add_job(tx, scope.organization_id, "agent", agent_id)


def hide_conversation(tx: Transaction, scope: Scope, conversation_id: str) -> None:
    """Take the conversation out of every list and let no turn of it begin; raises NotFound, Conflict for an agent's default one."""
    conversations.lock(tx, conversation_id)
    if conversations.require(tx, scope, conversation_id).is_default:
        raise Conflict(
            "An agent's own thread cannot be deleted. Reset the agent's messages instead, or delete the agent."
        )
    conversations.change(tx, conversation_id, deleted_at=tx.clock.now())
    add_job(tx, scope.organization_id, "conversation", conversation_id)


def newest_unshared(tx: Transaction, scope: Scope, conversation_id: str) -> int:
    """The greatest seq of the conversation's messages, 0 where it has none. Raises Conflict where forks share them, NotFound."""
    conversation = conversations.require(tx, scope, conversation_id)
    if forks := conversations.forks_of(tx, conversation):
        raise Conflict(
            f"{len(forks)} other threads were forked from this one and share its messages, {next(iter(forks))} among them. "
            "Delete them first, or begin a new thread instead."
        )
    return conversations.newest_of(tx, conversation_id)


def hide(tx: Transaction, kind: Kind, ids: Sequence[str]) -> None:
    """Move these agents or archives to the organization that nobody belongs to."""
    prepare(tx)
    tx.run(_HIDE[kind], {"ids": list(ids)})


def prepare(tx: Transaction) -> None:
    """Make the organization of what is deleted, where it is missing."""
    if tx.first(_IS_READY) is None:
        tx.run(insert(organizations), {"id": DELETED, "name": "Deleted, not yet purged", "created_at": tx.clock.now()})


def add_job(tx: Transaction, organization_id: str, kind: Kind, id: str, newest: int = 0) -> None:
    """Add the job that finishes the purge, should whoever began it be killed."""
    payload = {"kind": kind, "id": id, "newest": newest}
    jobs.add(tx, Job(JOB, organization_id, payload, key=id, not_before=tx.clock.now() + _GRACE))


def purge(
    tx: Transaction, table: Table, column: str, values: Sequence[Any], before: BeforePurge, counts: Counter[str]
) -> bool:
    """Delete a portion of the rows that have one of these values in the column, or of what refers to them.

    Adds the number of deleted rows to `counts`, by table. Returns False where nothing was left to delete.
    """
    rows = tx.all(_find(table, column), {"values": list(values)}) if values else ()
    if not rows:
        return False
    for child, referring, referred in _children(table):
        if purge(tx, child, referring, [getattr(row, referred) for row in rows], before, counts):
            return True
    before(tx, table.name, rows)
    key = [part.name for part in table.primary_key]
    counts[table.name] += tx.run(_delete(table), [{f"old_{name}": getattr(row, name) for name in key} for row in rows])
    return True


def is_hidden(tx: Transaction, kind: Kind, id: str) -> bool:
    """Whether this agent or archive is deleted, and not yet purged."""
    return tx.first(_HIDDEN[kind], {"id": id}) is not None


def purge_conversation(tx: Transaction, id: str, before: BeforePurge, counts: Counter[str]) -> bool:
    """`purge` of a deleted conversation, but for what its forks share; its parent, which may have waited for it, gets a job."""
    conversations.lock(tx, id)
    conversation = deleted_conversation(tx, id)
    if conversation is None:
        return False
    if forks := conversations.forks_of(tx, conversation):
        # A summary was stored later than what follows it in a window, so a fork may show it without sharing it otherwise.
        kept = [id for row in tx.all(_WINDOWS_OF_FORKS, {"agent_id": conversation.agent_id}) for id in row.window]
        found = tx.all(_NOT_SHARED, {"conversation_id": id, "shared_seq": max(forks.values()), "kept": kept})
        return purge(tx, messages, "id", [row.id for row in found], before, counts)
    done = counts["conversations"]
    purge(tx, conversations_table, "id", [id], before, counts)
    if counts["conversations"] == done:
        return True
    if conversation.forked_from and deleted_conversation(tx, conversation.forked_from):
        add_job(tx, conversation.organization_id, "conversation", conversation.forked_from)
    return False


def purge_messages(
    tx: Transaction, conversation_id: str, newest: int, before: BeforePurge, counts: Counter[str]
) -> bool:
    """`purge` of the conversation's messages up to the seq `newest`."""
    found = tx.all(_MESSAGES_UP_TO, {"conversation_id": conversation_id, "newest": newest})
    purge(tx, messages, "id", [row.id for row in found], before, counts)
    return len(found) == PORTION


def deleted_conversation(tx: Transaction, id: str) -> Conversation | None:
    """The conversation, where it is deleted and not yet purged."""
    row = tx.first(_DELETED_CONVERSATION, {"id": id})
    return conversations.from_values(row._asdict()) if row else None


def count_fewer_messages(tx: Transaction, rows: Sequence[Any]) -> None:
    """Take these messages out of what their conversations count."""
    by_conversation = Counter(row.conversation_id for row in rows)
    tx.run(
        _COUNT_FEWER_MESSAGES, [{"conversation_id": id, "fewer": by_conversation[id]} for id in sorted(by_conversation)]
    )


def count_fewer_passages(tx: Transaction, rows: Sequence[Any]) -> None:
    """Take these passages out of what their archives count, with the tags that no other passage has."""
    for id in sorted({row.archive_id for row in rows}):
        ids = [row.id for row in rows if row.archive_id == id]
        archive = tx.first(_TAGS_OF_ARCHIVE, {"id": id})
        tags = {tag for row in tx.all(_TAGS_OF_PASSAGES, {"ids": ids}) for tag in row.tags}
        tags -= {row.tag for row in tx.all(_TAGS_OF_OTHERS, {"id": id, "tags": sorted(tags), "ids": ids})}
        kept = [tag for tag in archive.tags if tag not in tags]
        tx.run(_COUNT_FEWER_PASSAGES, {"archive_id": id, "fewer": len(ids), "new_tags": kept})


@cache
def _find(table: Table, column: str) -> Any:
    """The portion of rows with one of some values, with what identifies them and what they refer to."""
    wanted = [part for part in table.c if part.primary_key or part.name == "id" or part.foreign_keys]
    some = select(*wanted).where(table.c[column].op("IN")(each(bindparam("values", type_=_JSON))))
    return some.limit(_PORTIONS.get(table.name, PORTION))


@cache
def _delete(table: Table) -> Any:
    return delete(table).where(*(part == bindparam(f"old_{part.name}") for part in table.primary_key))


@cache
def _children(table: Table) -> tuple[tuple[Table, str, str], ...]:
    """The tables that refer to this one, those that nothing refers to first: each with its column and the column it names.

    Left out are tags, which are parts of their row, and what is not looked up by such a column: it is reached by another.
    """
    return tuple(
        (child, key.parent.name, key.column.name)
        for child in reversed(table.metadata.sorted_tables)
        if child.primary_key.columns
        for key in child.foreign_keys
        if key.column.table is table and _is_looked_up_by(key.parent)
    )


def _is_looked_up_by(column: Column[Any]) -> bool:
    table: Any = column.table
    unique = [one for one in table.constraints if isinstance(one, UniqueConstraint)]
    return any(next(iter(one.columns)) is column for one in (*table.indexes, *unique))
