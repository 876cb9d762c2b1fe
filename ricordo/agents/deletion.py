"""Deletion of agents, archives, conversations and messages of any size.

The rows are hidden at once and purged in portions. Between two portions, other writers can write.
The transaction that hides the rows adds a job, which finishes the purge after a kill.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ricordo.agents.followers import delete_followers
from ricordo.agents.run_end import close_run
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.scope import Scope
from ricordo.errors import RicordoError
from ricordo.runtime import Runtime
from ricordo.search import index, partitions
from ricordo.storage import agents, conversations, deletion, runs
from ricordo.storage.deletion import Kind
from ricordo.storage.engine.store import Transaction

log = logging.getLogger(__name__)
# A transaction that has deleted this many rows deletes no further portion.
_FEW_ROWS = 15


async def delete_archive(runtime: Runtime, scope: Scope, archive_id: str) -> None:
    """Delete the archive with its passages; agents lose it at once.

    Args:
        runtime: The server's parts.
        scope: The caller.
        archive_id: The archive.

    Raises:
        NotFound: There is no such archive.
        Forbidden: The caller may not change it (see `archives.require_changes`).
    """
    await _delete(
        runtime, "archive", archive_id, lambda tx: deletion.hide_archive(tx, scope, archive_id)
    )


async def delete_agent(runtime: Runtime, scope: Scope, agent_id: str) -> None:
    """Delete the agent with its conversations, messages, runs and steps.

    Agents that only work on its memory are deleted too. Running turns are not stopped; see
    `lifecycle.delete_agent`.

    Args:
        runtime: The server's parts.
        scope: The caller.
        agent_id: The agent.

    Raises:
        NotFound: The caller has no such agent.
        Conflict: The agent manages a group.
    """

    def hide(tx: Transaction) -> list[str]:
        deleted_ids = [
            agent_id,
            *delete_followers(tx, runtime, scope, agents.get(tx, scope, agent_id)),
        ]
        for id in deleted_ids:
            deletion.hide_agent(tx, scope, id)
        return deleted_ids

    for id in await runtime.store.write(hide):
        await _purge_now(runtime, "agent", id)


async def delete_conversation(runtime: Runtime, scope: Scope, conversation_id: str) -> None:
    """Delete the conversation, but keep messages that its forks share.

    A running turn is closed and its task loses the lease. A caller that can stop the task should do
    so first.

    Args:
        runtime: The server's parts.
        scope: The caller.
        conversation_id: The conversation.

    Raises:
        NotFound: There is no such conversation.
        Conflict: It is a default conversation of its agent or of a user.
    """

    def hide(tx: Transaction) -> None:
        conversations.lock(tx, conversation_id)
        conversations.require(tx, scope, conversation_id)
        for run in runs.open_runs(tx, conversation_id=conversation_id):
            close_run(tx, run, "cancelled")
        deletion.hide_conversation(tx, scope, conversation_id)

    await _delete(runtime, "conversation", conversation_id, hide)


def empty_conversation(tx: Transaction, scope: Scope, conversation_id: str) -> int:
    """Delete a portion of the conversation's messages, and add a job for the rest.

    Args:
        tx: The transaction, which deletes one portion.
        scope: The caller.
        conversation_id: The conversation.

    Returns:
        The newest message's seq; 0 if there is none. The job purges the messages up to it.

    Raises:
        NotFound: There is no such conversation.
        Conflict: Forks share its messages.
    """
    newest = deletion.newest_unshared(tx, scope, conversation_id)
    if purge_portion(tx, "messages", conversation_id, newest):
        deletion.add_job(tx, scope.organization_id, "messages", conversation_id, newest)
    return newest


def remove_messages(
    tx: Transaction, scope: Scope, conversation_id: str, message_ids: Sequence[str]
) -> None:
    """Delete these messages of a conversation, and take them out of its window.

    Args:
        tx: The transaction, which deletes all of them.
        scope: The caller.
        conversation_id: The conversation.
        message_ids: Messages of this conversation. The caller has to make sure that they are, since
            a message of another conversation would be deleted too.

    Raises:
        NotFound: There is no such conversation.
        Busy: A turn runs in it.
        Conflict: Forks share its messages.
    """
    conversation = runs.lock_idle(tx, scope, conversation_id)
    if message_ids:
        deletion.newest_unshared(tx, scope, conversation_id)
    deleted_ids = set(message_ids)
    window = [id for id in conversation.window if id not in deleted_ids]
    is_waiting = conversation.waits and conversation.window[-1] in deleted_ids
    deletion.purge_these(tx, message_ids, before_purge)
    conversations.change(
        tx,
        conversation_id,
        window=window,
        **({"last_stop_reason": "cancelled"} if is_waiting else {}),
    )


async def _delete(
    runtime: Runtime, kind: Kind, id: str, hide: Callable[[Transaction], None]
) -> None:
    await runtime.store.write(hide)
    await _purge_now(runtime, kind, id)


async def _purge_now(runtime: Runtime, kind: Kind, id: str) -> None:
    try:
        await purge(runtime, kind, id)
    except RicordoError as error:
        # Users already see the deletion as complete. The job purges the rest later.
        log.warning("a purge continues later", extra={"id": id, "reason": error})


async def purge(runtime: Runtime, kind: Kind, id: str, newest: int = 0) -> None:
    """Purge all rows of a hidden owner, or old messages of a conversation.

    Each portion is one transaction.

    Args:
        runtime: The server's parts.
        kind: The kind of owner; "messages" means old messages of a conversation, which stays.
        id: The id of the owner, or of the conversation.
        newest: With "messages", the seq of the last message to delete; not used otherwise.
    """
    if kind in ("agent", "archive"):
        await drop_outside(runtime, id)
    while await runtime.store.write(lambda tx: _purge_some(tx, kind, id, newest)):
        pass


def _purge_some(tx: Transaction, kind: Kind, id: str, newest: int) -> bool:
    """Delete small portions and at most one large one; return whether there may be more.

    A small agent has few rows in each of many tables, and each table makes a portion.
    """
    counts = Counter[str]()
    while True:
        deleted_before = counts.total()
        is_more = purge_portion(tx, kind, id, newest, counts)
        # The counts leave out rows of the search index, so a portion of them is noticed here.
        is_uncounted = counts.total() == deleted_before
        if not is_more or is_uncounted or counts.total() >= _FEW_ROWS:
            return is_more


def purge_portion(
    tx: Transaction, kind: Kind, id: str, newest: int = 0, counts: Counter[str] | None = None
) -> bool:
    """Delete a portion of rows; return whether there may be more.

    The rows belong to a hidden owner, or they are messages of a conversation. The row of the owner
    itself is deleted last.

    Args:
        tx: The transaction.
        kind: The kind of owner, as in `purge`.
        id: The id of the owner, or of the conversation.
        newest: With "messages", the seq of the last message to delete; not used otherwise.
        counts: Gets the numbers of deleted rows added, by table. Rows of the search index are not
            counted.
    """
    counts = Counter() if counts is None else counts
    if kind == "conversation":
        return deletion.purge_conversation(tx, id, before_purge, counts)
    if kind == "messages":
        return deletion.purge_messages(tx, id, newest, before_purge, counts)
    if not deletion.is_hidden(tx, kind, id):
        return False
    return partitions.purge_portion(tx, id) or deletion.purge(
        tx, deletion.OWNERS[kind], "id", keys=[id], before=_keep_usage, counts=counts
    )


def before_purge(tx: Transaction, table: str, rows: Sequence[Any]) -> None:
    """Take rows out of the search index and out of counts, before their deletion.

    The tokens that deleted steps used stay recorded.

    Args:
        tx: The transaction that deletes the rows.
        table: The name of their table.
        rows: The rows, each with at least its id and its foreign keys.
    """
    if table == "messages":
        index.unindex_messages(tx, [row.id for row in rows])
        deletion.count_fewer_messages(tx, rows)
    elif table == "passages":
        index.unindex_passages(tx, [row.id for row in rows])
        deletion.count_fewer_passages(tx, rows)
    else:
        _keep_usage(tx, table, rows)


def _keep_usage(tx: Transaction, table: str, rows: Sequence[Any]) -> None:
    if table == "steps":
        runs.keep_spent(tx, [row.id for row in rows])


async def drop_outside(runtime: Runtime, owner_id: str) -> None:
    """Delete the vectors of an agent or archive from an external index."""
    if runtime.indexes:
        models = await runtime.store.read(lambda tx: partitions.models_of(tx, owner_id))
    else:
        models = []
    if not models:
        return
    partition_owner = await runtime.store.read(lambda tx: partitions.owner_of(tx, owner_id))
    outside_index = runtime.indexes.get(
        (partition_owner.vector_db if partition_owner else None)
        or runtime.indexing.messages_index
        or ""
    )
    if outside_index is not None:
        for model in models:
            await outside_index.drop(owner_id, model)


async def _finish(runtime: Runtime, job: Job, _report: Report) -> None:
    await purge(runtime, job.payload["kind"], job.payload["id"], job.payload["newest"])


HANDLER = JobHandler(deletion.JOB, _finish)
