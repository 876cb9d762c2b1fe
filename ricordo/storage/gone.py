"""Deleting much without holding up every other writer.

An archive or an agent that is deleted first moves to an organisation nobody belongs to, by which it is gone for everyone at
once; its rows follow in portions, each a transaction of its own. A job added with the first one finishes what a kill interrupts.
"""

from typing import Any, Literal

from sqlalchemy import Table, bindparam, delete, func, insert, select, update

from ricordo.domain.clock import SECOND
from ricordo.domain.job import Job
from ricordo.domain.scope import Scope
from ricordo.storage import agents, archives, jobs, search
from ricordo.storage.index.dropping import drop_portion
from ricordo.storage.store import Transaction, each
from ricordo.storage.tables import agents as agents_table
from ricordo.storage.tables import agents_archives, conversations, messages, organizations, passages, runs, steps
from ricordo.storage.tables import archives as archives_table

NOBODY = "org-ffffffff-ffff-4fff-bfff-ffffffffffff"
PORTION = 250
REMOVAL = "removal"
Kind = Literal["agent", "archive", "conversation"]
# Whoever deletes removes the rows as well; the job finds work only where that was interrupted.
_GRACE = 60 * SECOND

_KNOWN = select(organizations.c.seq).where(organizations.c.id == NOBODY)
_DETACH_ALL = delete(agents_archives).where(agents_archives.c.archive_id == bindparam("archive_id"))
_NEWEST = select(func.max(messages.c.seq).label("seq")).where(
    messages.c.conversation_id == bindparam("conversation_id")
)
_OF_CONVERSATION = (
    select(messages.c.id)
    .where(messages.c.conversation_id == bindparam("conversation_id"), messages.c.seq <= bindparam("newest"))
    .limit(PORTION)
)
_DISCOUNT = (
    update(conversations)
    .where(conversations.c.id == bindparam("conversation_id"))
    .values(message_count=conversations.c.message_count - bindparam("removed"))
)


def _of_owner(table: Table, column: str) -> Any:
    return select(table.c.id).where(table.c[column] == bindparam("owner_id")).limit(PORTION)


def _these(table: Table) -> Any:
    return delete(table).where(table.c.id.op("IN")(each(bindparam("ids", type_=messages.c.parts.type))))


_DELETE_MESSAGES = _these(messages)
# What an owner's rows are, in the order they go: steps before the runs that would take them along.
_TABLES: dict[str, tuple[tuple[Any, Any], ...]] = {
    "archive": ((_of_owner(passages, "archive_id"), _these(passages)),),
    "agent": (
        (_of_owner(messages, "agent_id"), _DELETE_MESSAGES),
        (_of_owner(steps, "agent_id"), _these(steps)),
        (_of_owner(runs, "agent_id"), _these(runs)),
    ),
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


def empty_conversation(tx: Transaction, scope: Scope, conversation_id: str) -> int:
    """Remove the oldest messages of the conversation and see to it that those it has now all go; returns the newest's seq."""
    newest = tx.first(_NEWEST, {"conversation_id": conversation_id}).seq or 0
    if _remove_messages(tx, conversation_id, newest):
        _see_to_it(tx, scope, "conversation", conversation_id, newest=newest)
    return newest


def remove_portion(tx: Transaction, kind: Kind, owner_id: str, newest: int = 0) -> bool:
    """Remove some rows of a hidden owner, at last itself, or messages of a conversation up to the seq `newest`.

    Tells whether there may be more to remove.
    """
    if kind == "conversation":
        return _remove_messages(tx, owner_id, newest)
    if drop_portion(tx, owner_id):
        return True
    for find, remove in _TABLES[kind]:
        ids = [row.id for row in tx.all(find, {"owner_id": owner_id})]
        if ids:
            tx.run(remove, {"ids": ids})
            return True
    table = _OWNERS[kind]
    tx.run(delete(table).where(table.c.id == owner_id, table.c.organization_id == NOBODY))
    return False


def _remove_messages(tx: Transaction, conversation_id: str, newest: int) -> bool:
    ids = [row.id for row in tx.all(_OF_CONVERSATION, {"conversation_id": conversation_id, "newest": newest})]
    if ids:
        search.forget_messages(tx, ids)
        tx.run(_DELETE_MESSAGES, {"ids": ids})
        tx.run(_DISCOUNT, {"conversation_id": conversation_id, "removed": len(ids)})
    return len(ids) == PORTION


def _hide(tx: Transaction, scope: Scope, kind: Kind, id: str) -> None:
    if tx.first(_KNOWN) is None:
        tx.run(insert(organizations), {"id": NOBODY, "name": "Deleted, not yet removed", "created_at": tx.clock.now()})
    table = _OWNERS[kind]
    tx.run(update(table).where(table.c.id == id).values(organization_id=NOBODY))
    _see_to_it(tx, scope, kind, id)


def _see_to_it(tx: Transaction, scope: Scope, kind: Kind, id: str, newest: int = 0) -> None:
    payload = {"kind": kind, "id": id, "newest": newest}
    organization = scope.organization_id
    jobs.add(tx, Job(REMOVAL, organization, payload, key=id, not_before=tx.clock.now() + _GRACE))
