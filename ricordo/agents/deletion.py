"""Deletion of agents, archives, conversations and messages, however many rows they have: hidden at once, purged in portions.

Between two portions other writers have their turn. What a kill interrupts is finished by the job that was added with the tombstone.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ricordo.agents.followers import delete_followers
from ricordo.agents.run_end import close_run
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.domain.scope import Scope
from ricordo.errors import Busy, RicordoError
from ricordo.runtime import Runtime
from ricordo.search import index, partitions
from ricordo.storage import agents, conversations, deletion, runs
from ricordo.storage.deletion import Kind
from ricordo.storage.engine.store import Transaction

log = logging.getLogger(__name__)


async def delete_archive(runtime: Runtime, scope: Scope, archive_id: str) -> None:
    """Delete the archive with its passages; agents lose it at once. Raises NotFound."""
    await _delete(
        runtime, "archive", archive_id, lambda tx: deletion.hide_archive(tx, scope, archive_id)
    )


async def delete_agent(runtime: Runtime, scope: Scope, agent_id: str) -> None:
    """Delete the agent with its conversations, messages, runs and steps, and the agents that work on its memory alone.

    Raises NotFound, Conflict where it manages a group.
    """

    def hide(tx: Transaction) -> list[str]:
        gone = [agent_id, *delete_followers(tx, runtime, scope, agents.get(tx, scope, agent_id))]
        for id in gone:
            deletion.hide_agent(tx, scope, id)
        return gone

    for id in await runtime.store.write(hide):
        await _purge_now(runtime, "agent", id)


async def delete_conversation(runtime: Runtime, scope: Scope, conversation_id: str) -> None:
    """Delete the conversation; what its forks share of it stays with them. Raises NotFound, Conflict for an agent's default one.

    A turn that still runs in it is closed, and its task loses its lease: whoever can stop it should do so before.
    """

    def hide(tx: Transaction) -> None:
        conversations.lock(tx, conversation_id)
        conversations.require(tx, scope, conversation_id)
        for run in runs.open_runs(tx, conversation_id=conversation_id):
            close_run(tx, run, "cancelled")
        deletion.hide_conversation(tx, scope, conversation_id)

    await _delete(runtime, "conversation", conversation_id, hide)


def empty_conversation(tx: Transaction, scope: Scope, conversation_id: str) -> int:
    """Delete the oldest messages of the conversation, and add a job for the rest of those it has now; returns the newest's seq.

    Raises Conflict where forks share them.
    """
    newest = deletion.newest_unshared(tx, scope, conversation_id)
    if purge_portion(tx, "messages", conversation_id, newest):
        deletion.add_job(tx, scope.organization_id, "messages", conversation_id, newest)
    return newest


def remove_messages(
    tx: Transaction, scope: Scope, conversation_id: str, message_ids: Sequence[str]
) -> None:
    """Delete these messages of a conversation, and take them out of its window. Raises Busy, Conflict where forks share them."""
    conversations.lock(tx, conversation_id)
    conversation = conversations.require(tx, scope, conversation_id)
    if open_runs := runs.open_runs(tx, conversation_id=conversation_id):
        raise Busy(open_runs[0].id)
    if message_ids:
        deletion.newest_unshared(tx, scope, conversation_id)
    gone = set(message_ids)
    window = [id for id in conversation.window if id not in gone]
    is_waiting = conversation.waits and conversation.window[-1] in gone
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
        # It is hidden from everyone, which is what was asked for; the job purges the rest once that is possible again.
        log.warning("a purge will go on later", extra={"id": id, "reason": error})


async def purge(runtime: Runtime, kind: Kind, id: str, newest: int = 0) -> None:
    """Purge what belongs to a hidden owner, or a conversation's messages with a seq up to `newest`, to the last row."""
    if kind in ("agent", "archive"):
        await drop_outside(runtime, id)
    while await runtime.store.write(lambda tx: purge_portion(tx, kind, id, newest)):
        pass


def purge_portion(
    tx: Transaction, kind: Kind, id: str, newest: int = 0, counts: Counter[str] | None = None
) -> bool:
    """Delete a portion of the rows of a hidden owner, at last its own, or of a conversation's messages; whether there may be more.

    The number of deleted rows is added to `counts`, by table.
    """
    counts = Counter() if counts is None else counts
    if kind == "conversation":
        return deletion.purge_conversation(tx, id, before_purge, counts)
    if kind == "messages":
        return deletion.purge_messages(tx, id, newest, before_purge, counts)
    if not deletion.is_hidden(tx, kind, id):
        return False
    return partitions.purge_portion(tx, id) or deletion.purge(
        tx, deletion.OWNERS[kind], "id", [id], _keep_spent, counts
    )


def before_purge(tx: Transaction, table: str, rows: Sequence[Any]) -> None:
    """Take rows that are about to be deleted out of the search index and out of counts; what was spent is kept."""
    if table == "messages":
        index.unindex_messages(tx, [row.id for row in rows])
        deletion.count_fewer_messages(tx, rows)
    elif table == "passages":
        index.unindex_passages(tx, [row.id for row in rows])
        deletion.count_fewer_passages(tx, rows)
    else:
        _keep_spent(tx, table, rows)


def _keep_spent(tx: Transaction, table: str, rows: Sequence[Any]) -> None:
    if table == "steps":
        runs.keep_spent(tx, [row.id for row in rows])


async def drop_outside(runtime: Runtime, owner_id: str) -> None:
    """Delete the vectors of an agent or archive from an outside index, where they are in one."""
    if runtime.indexes:
        models = await runtime.store.read(lambda tx: partitions.models_of(tx, owner_id))
    else:
        models = []
    if not models:
        return
    home = await runtime.store.read(lambda tx: partitions.owner_of(tx, owner_id))
    outside = runtime.indexes.get(
        (home.vector_db if home else None) or runtime.indexing.messages_index or ""
    )
    if outside is not None:
        for model in models:
            await outside.drop(owner_id, model)


async def _finish(runtime: Runtime, job: Job, _report: Report) -> None:
    await purge(runtime, job.payload["kind"], job.payload["id"], job.payload["newest"])


HANDLER = JobHandler(deletion.JOB, _finish)
