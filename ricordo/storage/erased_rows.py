"""Deleting the rows of a user who is to be forgotten, a portion in each transaction, with a count of every one.

What a portion did is noted in its own transaction: whoever goes on after a kill counts nothing twice and leaves nothing out.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Table, bindparam, delete, exists, func, or_, select, update

from ricordo.domain.erasure import Erasure
from ricordo.search import index
from ricordo.storage import usage, versions
from ricordo.storage.erasing import Mark
from ricordo.storage.memory_tables import is_in_chain, number_of_chain
from ricordo.storage.store import Transaction, each
from ricordo.storage.tables import (
    archives,
    blobs,
    blocks,
    blocks_log,
    chains,
    commits,
    conversations,
    expenses,
    git_objects,
    memory_remotes,
    messages,
    passages,
    passages_tags,
    proposals,
    run_events,
    runs,
    steps,
    traces,
    users,
)
from ricordo.storage.tables import jobs as jobs_table

PORTION = 50
# Each may have some hundred kilobytes.
_TRACES = 10

_JSON = messages.c.parts.type
_IDS = each(bindparam("ids", type_=_JSON))
_MESSAGES = (
    select(
        *(messages.c[name] for name in ("seq", "id", "agent_id", "conversation_id", "created_at")),
        conversations.c.user_id.label("thread_user"),
        conversations.c.is_default,
    )
    .join(conversations, conversations.c.id == messages.c.conversation_id)
    .where(messages.c.id.op("IN")(_IDS))
)
_DISCOUNT = (
    update(conversations)
    .where(conversations.c.id == bindparam("thread_id"))
    .values(message_count=conversations.c.message_count - bindparam("removed"))
)
_PASSAGES = select(passages.c.id, passages.c.archive_id, passages.c.created_at).where(passages.c.id.op("IN")(_IDS))
_ARCHIVE = select(archives.c.tags).where(archives.c.id == bindparam("archive_id")).with_for_update()
_TAGS_IN_USE = (
    select(passages_tags.c.tag)
    .where(
        passages_tags.c.archive_id == bindparam("archive_id"),
        passages_tags.c.tag.op("IN")(each(bindparam("tags", type_=_JSON))),
    )
    .distinct()
)
_RECOUNT = (
    update(archives)
    .where(archives.c.id == bindparam("of_archive"))
    .values(passage_count=archives.c.passage_count - bindparam("removed"), tags=bindparam("new_tags"))
)
_RUNS = select(runs.c.id, runs.c.agent_id, runs.c.created_at).where(runs.c.id.op("IN")(_IDS))
_OF_RUNS = {
    table: select(table.c.seq).where(table.c.run_id.op("IN")(_IDS)).limit(_TRACES if table is traces else PORTION)
    for table in (run_events, traces)
}
_STEPS = select(steps.c.seq, steps.c.id).where(steps.c.run_id.op("IN")(_IDS)).limit(PORTION)
# Versions of agents' own memory are no user's to remove, and whoever runs the server should know where to look.
_CAUSED = (
    select(chains.c.owner_id, func.count().label("versions"))
    .join(commits, commits.c.chain == chains.c.seq)
    .where(commits.c.run_id.in_(bindparam("ids", expanding=True)), chains.c.owner_kind == "agent")
    .group_by(chains.c.owner_id)
)
_TRACES_SINCE = (
    select(traces.c.seq)
    .join(runs, runs.c.id == traces.c.run_id)
    .where(runs.c.agent_id.op("IN")(_IDS), traces.c.created_at >= bindparam("since"))
    .limit(_TRACES)
)
_OF_CHAIN = {
    table: select(table.c.seq).where(is_in_chain(table)).limit(PORTION)
    for table in (proposals, commits, git_objects, blobs, blocks_log, blocks)
}
_ADDRESSES = select(memory_remotes.c.address).distinct()
_REMOTES = select(memory_remotes.c.seq, memory_remotes.c.id, memory_remotes.c.kind, memory_remotes.c.address).where(
    memory_remotes.c.chain_id == bindparam("chain_id")
)
_DELETE_CHAIN = delete(chains).where(chains.c.id == bindparam("chain_id"))
_PROPOSED = select(proposals.c.chain_id, proposals.c.blob).where(proposals.c.seq.op("IN")(_IDS))
# What came with a merge is in no version, but it is in a tree of the commits that were merged.
_TREES = select(git_objects.c.data).where(is_in_chain(git_objects), git_objects.c.kind == "tree")
# A text that only these proposals held: no version's, no other proposal's, and no later text is a difference from it.
_ONLY_PROPOSED = blobs.alias("based")
_DELETE_BLOB = delete(blobs).where(
    blobs.c.chain == number_of_chain("in_chain"),
    blobs.c.id == bindparam("of_blob"),
    ~exists().where(commits.c.chain == blobs.c.chain, commits.c.blob == blobs.c.id),
    ~exists().where(
        proposals.c.chain_id == bindparam("in_chain"),
        or_(proposals.c.blob == blobs.c.id, proposals.c.base_blob == blobs.c.id),
    ),
    ~exists().where(_ONLY_PROPOSED.c.chain == blobs.c.chain, _ONLY_PROPOSED.c.base == blobs.c.id),
)
_LET_GO = (
    update(conversations).where(conversations.c.forked_from.op("IN")(_IDS)).values(forked_from=None, forked_seq=None)
)
_STOP_JOBS = (
    update(jobs_table)
    .where(jobs_table.c.id.op("IN")(_IDS), jobs_table.c.status == "running")
    .values(status="cancelled", ended_at=bindparam("now"))
)
_DELETE_JOBS = delete(jobs_table).where(
    jobs_table.c.id.op("IN")(_IDS), or_(jobs_table.c.status != "cancelled", jobs_table.c.worker.is_(None))
)
_FORGET_ID = delete(users).where(users.c.id == bindparam("user_id"))


def _these(table: Table, column: str = "seq") -> Any:
    return delete(table).where(table.c[column].op("IN")(_IDS))


_DELETE = {
    table.name: _these(table)
    for table in (
        *(messages, run_events, traces, steps, proposals, commits, git_objects),
        *(blobs, blocks_log, blocks, memory_remotes, expenses),
    )
}
_DELETE_BY_ID = {table.name: _these(table, "id") for table in (passages, runs, conversations)}


def remove_messages(tx: Transaction, erasure: Erasure, ids: Sequence[str]) -> Erasure:
    """Delete these messages, from the index too; threads that stay are noted, since they show what is gone."""
    rows = tx.all(_MESSAGES, {"ids": list(ids)})
    if not rows:
        return erasure
    index.unindex_messages(tx, [row.id for row in rows])
    tx.run(_DELETE["messages"], {"ids": [row.seq for row in rows]})
    staying = [row.conversation_id for row in rows if row.is_default or row.thread_user != erasure.user_id]
    for thread_id in sorted(set(staying)):
        tx.run(_DISCOUNT, {"thread_id": thread_id, "removed": staying.count(thread_id)})
    seen = erasure.seen((row.created_at for row in rows), (row.agent_id for row in rows)).shared(sorted(set(staying)))
    return seen.counted("messages", len(rows)).spread("messages", (row.agent_id for row in rows))


def remove_passages(tx: Transaction, erasure: Erasure, ids: Sequence[str]) -> Erasure:
    """Delete these passages, from the index too; their archives keep count and tags."""
    by_archive: dict[str, list[Any]] = {}
    for row in tx.all(_PASSAGES, {"ids": list(ids)}):
        by_archive.setdefault(row.archive_id, []).append(row)
    for archive_id in sorted(by_archive):
        gone = [row.id for row in by_archive[archive_id]]
        archive = tx.first(_ARCHIVE, {"archive_id": archive_id})
        tags = {tag for some in index.tags_of(tx, gone).values() for tag in some}
        index.unindex_passages(tx, gone)
        tx.run(_DELETE_BY_ID["passages"], {"ids": gone})
        used = {row.tag for row in tx.all(_TAGS_IN_USE, {"archive_id": archive_id, "tags": sorted(tags)})}
        kept = [tag for tag in archive.tags if tag not in tags - used]
        tx.run(_RECOUNT, {"of_archive": archive_id, "removed": len(gone), "new_tags": kept})
        erasure = erasure.counted("passages", len(gone))
        erasure = erasure.seen((row.created_at for row in by_archive[archive_id]), ())
    return erasure.spread("passages", by_archive)


def remove_runs(tx: Transaction, erasure: Erasure, ids: Sequence[str]) -> tuple[Erasure, bool]:
    """Delete some of what belongs to these runs, at last themselves; tells whether there is more. What was spent stays."""
    wanted = {"ids": list(ids)}
    for table, statement in _OF_RUNS.items():
        if seqs := [row.seq for row in tx.all(statement, wanted)]:
            tx.run(_DELETE[table.name], {"ids": seqs})
            return erasure.counted(table.name, len(seqs)), True
    for row in tx.all(_RUNS, wanted):
        erasure = erasure.seen([row.created_at], [row.agent_id])
    if found := tx.all(_STEPS, wanted):
        usage.keep_spent(tx, [row.id for row in found])
        tx.run(_DELETE["steps"], {"ids": [row.seq for row in found]})
        return erasure.counted("steps", len(found)), True
    for row in tx.all(_CAUSED, wanted):
        erasure = erasure.caused(row.owner_id, row.versions)
    return erasure.counted("runs", tx.run(_DELETE_BY_ID["runs"], wanted)), False


def remove_traces(tx: Transaction, erasure: Erasure) -> tuple[Erasure, bool]:
    """Delete some traces of the agents she talked with, made since then: a request shows the whole window, others' turns too."""
    values = {"ids": list(erasure.agents), "since": erasure.began_at or 0}
    seqs = [row.seq for row in tx.all(_TRACES_SINCE, values)] if erasure.agents else []
    tx.run(_DELETE["traces"], {"ids": seqs})
    return erasure.counted("traces", len(seqs)), bool(seqs)


def remove_threads(tx: Transaction, erasure: Erasure, ids: Sequence[str]) -> Erasure:
    """Delete these threads of hers, in which nothing is left; others' threads that went on from them stand for themselves."""
    tx.run(_LET_GO, {"ids": list(ids)})
    return erasure.counted("conversations", tx.run(_DELETE_BY_ID["conversations"], {"ids": list(ids)}))


def remotes_of(tx: Transaction, chain_ids: Iterable[str]) -> list[str]:
    """The ids of the remotes of these chains."""
    return [row.id for chain_id in chain_ids for row in tx.all(_REMOTES, {"chain_id": chain_id})]


def remote_addresses(tx: Transaction) -> list[str]:
    """The addresses of all remotes, of every memory of any organisation."""
    return [row.address for row in tx.all(_ADDRESSES)]


def remove_memory(tx: Transaction, erasure: Erasure, chain_id: str) -> tuple[Erasure, bool]:
    """Delete some of her memory, at last the chain itself; tells whether there is more."""
    remotes = tx.all(_REMOTES, {"chain_id": chain_id})
    places = {without_password(row.address): row.kind for row in remotes}
    erasure = replace(erasure, remotes={**erasure.remotes, **places})
    tx.run(_DELETE["memory_remotes"], {"ids": [row.seq for row in remotes]})
    erasure = erasure.counted("memory_remotes", len(remotes))
    for table, statement in _OF_CHAIN.items():
        if seqs := [row.seq for row in tx.all(statement, {"chain_id": chain_id})]:
            tx.run(_DELETE[table.name], {"ids": seqs})
            return erasure.counted(table.name, len(seqs)), True
    return erasure.counted("chains", tx.run(_DELETE_CHAIN, {"chain_id": chain_id})), False


def remove_proposals(tx: Transaction, erasure: Erasure, seqs: Sequence[int]) -> Erasure:
    """Delete these proposals for others' memory, and the texts that only they held."""
    proposed = tx.all(_PROPOSED, {"ids": list(seqs)})
    trees: dict[str, list[bytes]] = {}
    for chain_id in sorted({row.chain_id for row in proposed}):
        # Else a version that is being written could count on a text that goes at this moment.
        versions.lock(tx, chain_id)
        trees[chain_id] = [bytes(row.data) for row in tx.all(_TREES, {"chain_id": chain_id})]
    count = tx.run(_DELETE["proposals"], {"ids": list(seqs)})
    values = [
        {"in_chain": row.chain_id, "of_blob": row.blob}
        for row in proposed
        if row.blob and not any(bytes(row.blob) in tree for tree in trees[row.chain_id])
    ]
    texts = tx.run(_DELETE_BLOB, values)
    return erasure.counted("proposals", count).counted("blobs", max(texts, 0))


def remove_jobs(tx: Transaction, erasure: Erasure, ids: Sequence[str]) -> Erasure:
    """Delete these jobs; one that runs is told to stop, and is still there."""
    tx.run(_STOP_JOBS, {"ids": list(ids), "now": tx.clock.now()})
    return erasure.counted("jobs", tx.run(_DELETE_JOBS, {"ids": list(ids)}))


def clear_marks(tx: Transaction, erasure: Erasure, mark: Mark, seqs: Sequence[int]) -> Erasure:
    """Take her id out of these rows of others."""
    table = mark.column.table
    tx.run(update(table).where(table.c.seq.in_(seqs)).values(mark.values))
    return erasure.rewritten(mark.name, len(seqs))


def remove_user(tx: Transaction, erasure: Erasure) -> Erasure:
    """Delete the user herself."""
    return erasure.counted("users", tx.run(_FORGET_ID, {"user_id": erasure.user_id}))


def without_password(address: str) -> str:
    """The address without the name and password that it may hold."""
    scheme, slashes, rest = address.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{slashes}{host.rpartition('@')[2]}{slash}{path}" if slashes else address
