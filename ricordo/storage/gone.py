"""Deleting much without holding up every other writer.

An archive or an agent that is deleted first moves to an organisation nobody belongs to, by which it is gone for everyone at
once; its rows follow in portions, each a transaction of its own. A job added with the first one finishes what a kill interrupts.
A thread is marked as deleted instead, because what its forks share of it stays until the last of them is gone.
"""

from typing import Any, Literal

from sqlalchemy import Table, bindparam, delete, insert, not_, select, update

from ricordo.domain.clock import SECOND
from ricordo.domain.job import Job
from ricordo.domain.scope import Scope
from ricordo.errors import Conflict
from ricordo.search import index
from ricordo.search.dropping import drop_portion
from ricordo.storage import agents, archives, conversations, jobs, usage
from ricordo.storage.store import Transaction, each
from ricordo.storage.tables import agents as agents_table
from ricordo.storage.tables import agents_archives, messages, organizations, passages, runs, steps
from ricordo.storage.tables import archives as archives_table
from ricordo.storage.tables import conversations as conversations_table

NOBODY = "org-ffffffff-ffff-4fff-bfff-ffffffffffff"
PORTION = 250
REMOVAL = "removal"
# A "conversation" goes on, without its messages up to some seq; a "thread" is deleted.
Kind = Literal["agent", "archive", "conversation", "thread"]
# Whoever deletes removes the rows as well; the job finds work only where that was interrupted.
_GRACE = 60 * SECOND

_KNOWN = select(organizations.c.seq).where(organizations.c.id == NOBODY)
_DETACH_ALL = delete(agents_archives).where(agents_archives.c.archive_id == bindparam("archive_id"))
_OF_CONVERSATION = (
    select(messages.c.id)
    .where(messages.c.conversation_id == bindparam("conversation_id"), messages.c.seq <= bindparam("newest"))
    .limit(PORTION)
)
_DISCOUNT = (
    update(conversations_table)
    .where(conversations_table.c.id == bindparam("conversation_id"))
    .values(message_count=conversations_table.c.message_count - bindparam("removed"))
)
_DELETED = select(*conversations.COLUMNS).where(
    conversations_table.c.id == bindparam("thread_id"), conversations_table.c.deleted_at.is_not(None)
)
_DELETE_THREAD = delete(conversations_table).where(conversations_table.c.id == bindparam("thread_id"))
_WINDOWS_OF_FORKS = select(conversations_table.c.window).where(
    conversations_table.c.agent_id == bindparam("agent_id"),
    conversations_table.c.forked_from.is_not(None),
    conversations_table.c.deleted_at.is_(None),
)
_KEPT = each(bindparam("kept", type_=messages.c.parts.type))
_NOT_SHARED = (
    select(messages.c.id)
    .where(
        messages.c.conversation_id == bindparam("thread_id"),
        messages.c.seq > bindparam("shared_seq"),
        not_(messages.c.id.op("IN", is_comparison=True)(_KEPT)),
    )
    .limit(PORTION)
)
# By their runs, since steps are not looked up by thread otherwise.
_STEPS_OF_THREAD = (
    select(steps.c.id)
    .join(runs, runs.c.id == steps.c.run_id)
    .where(runs.c.conversation_id == bindparam("owner_id"))
    .limit(PORTION)
)


def _of_owner(table: Table, column: str) -> Any:
    return select(table.c.id).where(table.c[column] == bindparam("owner_id")).limit(PORTION)


def _these(table: Table) -> Any:
    return delete(table).where(table.c.id.op("IN")(each(bindparam("ids", type_=messages.c.parts.type))))


_DELETE_MESSAGES, _DELETE_STEPS = _these(messages), _these(steps)
# What an owner's rows are, in the order they go: steps before the runs that would take them along.
_TABLES: dict[str, tuple[tuple[Any, Any], ...]] = {
    "archive": ((_of_owner(passages, "archive_id"), _these(passages)),),
    "agent": (
        (_of_owner(messages, "agent_id"), _DELETE_MESSAGES),
        (_of_owner(steps, "agent_id"), _DELETE_STEPS),
        (_of_owner(runs, "agent_id"), _these(runs)),
    ),
    "thread": ((_STEPS_OF_THREAD, _DELETE_STEPS), (_of_owner(runs, "conversation_id"), _these(runs))),
}
_OWNERS = {"archive": archives_table, "agent": agents_table}


def hide_archive(tx: Transaction, scope: Scope, archive_id: str) -> None:
    """Take the archive from every agent and out of every list; raises NotFound."""
    archives.get(tx, scope, archive_id)
    _hide(tx, scope, "archive", archive_id)
    tx.run(_DETACH_ALL, {"archive_id": archive_id})


def hide_agent(tx: Transaction, scope: Scope, agent_id: str) -> None:
    """Take the agent out of every list and let no turn of it begin; raises NotFound."""
    agents.require(tx, scope, agent_id)
    _hide(tx, scope, "agent", agent_id)


def hide_thread(tx: Transaction, scope: Scope, conversation_id: str) -> None:
    """Let nobody find the thread, and no turn of it begin; raises NotFound, Conflict for an agent's own thread."""
    conversations.lock(tx, conversation_id)
    if conversations.require(tx, scope, conversation_id).is_default:
        raise Conflict(
            "An agent's own thread cannot be deleted. Reset the agent's messages instead, or delete the agent."
        )
    conversations.change(tx, conversation_id, deleted_at=tx.clock.now())
    _see_to_it(tx, scope.organization_id, "thread", conversation_id)


def empty_conversation(tx: Transaction, scope: Scope, conversation_id: str) -> int:
    """Remove the oldest messages of the conversation and see to it that those it has now all go; returns the newest's seq.

    Raises Conflict where forks share them.
    """
    conversation = conversations.require(tx, scope, conversation_id)
    if forks := conversations.forks_of(tx, conversation):
        raise Conflict(
            f"{len(forks)} other threads were forked from this one and share its messages, {next(iter(forks))} among them. "
            "Delete them first, or begin a new thread instead."
        )
    newest = conversations.newest_of(tx, conversation_id)
    if _remove_messages(tx, conversation_id, newest):
        _see_to_it(tx, scope.organization_id, "conversation", conversation_id, newest=newest)
    return newest


def remove_portion(tx: Transaction, kind: Kind, owner_id: str, newest: int = 0) -> bool:
    """Remove some rows of a hidden owner, at last itself, or messages of a conversation up to the seq `newest`.

    Tells whether there may be more to remove.
    """
    if kind == "conversation":
        return _remove_messages(tx, owner_id, newest)
    if kind == "thread":
        return _remove_of_thread(tx, owner_id)
    if drop_portion(tx, owner_id) or _remove_rows(tx, kind, owner_id):
        return True
    table = _OWNERS[kind]
    tx.run(delete(table).where(table.c.id == owner_id, table.c.organization_id == NOBODY))
    return False


def _remove_rows(tx: Transaction, kind: Kind, owner_id: str) -> bool:
    for find, remove in _TABLES[kind]:
        ids = [row.id for row in tx.all(find, {"owner_id": owner_id})]
        if ids:
            if remove is _DELETE_STEPS:
                usage.keep_spent(tx, ids)
            tx.run(remove, {"ids": ids})
            return True
    return False


def _remove_of_thread(tx: Transaction, thread_id: str) -> bool:
    """Remove some of what nobody shares; at last the thread itself, and have its parent looked at, which may have waited for it."""
    conversations.lock(tx, thread_id)
    row = tx.first(_DELETED, {"thread_id": thread_id})
    if row is None:
        return False
    thread = conversations.from_values(row._asdict())
    forks = conversations.forks_of(tx, thread)
    kept: list[str] = []
    if forks:
        # A summary was stored later than what follows it in a window, so it may stand there without being shared otherwise.
        kept = [id for row in tx.all(_WINDOWS_OF_FORKS, {"agent_id": thread.agent_id}) for id in row.window]
    values = {"thread_id": thread_id, "shared_seq": max(forks.values(), default=-1), "kept": kept}
    ids = [row.id for row in tx.all(_NOT_SHARED, values)]
    if ids:
        index.unindex_messages(tx, ids)
        tx.run(_DELETE_MESSAGES, {"ids": ids})
        return True
    if forks:
        return False
    if _remove_rows(tx, "thread", thread_id):
        return True
    tx.run(_DELETE_THREAD, {"thread_id": thread_id})
    if thread.forked_from and tx.first(_DELETED, {"thread_id": thread.forked_from}):
        _see_to_it(tx, thread.organization_id, "thread", thread.forked_from)
    return False


def _remove_messages(tx: Transaction, conversation_id: str, newest: int) -> bool:
    ids = [row.id for row in tx.all(_OF_CONVERSATION, {"conversation_id": conversation_id, "newest": newest})]
    if ids:
        index.unindex_messages(tx, ids)
        tx.run(_DELETE_MESSAGES, {"ids": ids})
        tx.run(_DISCOUNT, {"conversation_id": conversation_id, "removed": len(ids)})
    return len(ids) == PORTION


def _hide(tx: Transaction, scope: Scope, kind: Kind, id: str) -> None:
    if tx.first(_KNOWN) is None:
        tx.run(insert(organizations), {"id": NOBODY, "name": "Deleted, not yet removed", "created_at": tx.clock.now()})
    table = _OWNERS[kind]
    tx.run(update(table).where(table.c.id == id).values(organization_id=NOBODY))
    _see_to_it(tx, scope.organization_id, kind, id)


def _see_to_it(tx: Transaction, organization_id: str, kind: Kind, id: str, newest: int = 0) -> None:
    payload = {"kind": kind, "id": id, "newest": newest}
    jobs.add(tx, Job(REMOVAL, organization_id, payload, key=id, not_before=tx.clock.now() + _GRACE))
