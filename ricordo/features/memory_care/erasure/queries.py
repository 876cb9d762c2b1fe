"""Queries of erasure: find the rows of a user, and erase or cover them.

Long reads scan `AT_ONCE` rows at a time in the order of `seq`, and block no writer. There are no
other indexes for them, since they run rarely. A function that changes rows changes one portion, and
records its work in the erasure. The same transaction saves both.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Select,
    String,
    Table,
    cast,
    delete,
    exists,
    func,
    or_,
    select,
    update,
)

from ricordo.agents.deletion import before_purge, purge_portion
from ricordo.domain.job import Job
from ricordo.domain.message import Part, TextPart, ToolReturnPart
from ricordo.domain.scope import LOCAL_ORGANIZATION
from ricordo.features.memory_care.erasure.receipts import Erasure
from ricordo.search import index, partitions, write_buffer
from ricordo.storage import deletion, versions
from ricordo.storage import jobs as job_rows
from ricordo.storage import messages as message_rows
from ricordo.storage.deletion import DELETED, is_in
from ricordo.storage.engine.store import Transaction
from ricordo.storage.history_size import recount
from ricordo.storage.schema.columns import erasure_of, metadata
from ricordo.storage.schema.core_tables import (
    agents_archives,
    conversations,
    jobs,
    messages,
    passages,
    runs,
    steps,
    traces,
    users,
)
from ricordo.storage.schema.memory_tables import (
    blobs,
    chains,
    commits,
    git_objects,
    is_in_chain,
    memory_remotes,
    number_of_chain,
    proposals,
)

JOB = "erasure"
PORTION = 50
# The number of rows that one read scans.
AT_ONCE = 20_000
COVERED = "(This contained text of a user who was forgotten.)"
# Retried practically without end; later attempts are ten to twelve minutes apart.
_ATTEMPTS = 1_000_000

# Tool results that name the sources which they quote.
QUOTES = select(messages.c.seq, messages.c.id, messages.c.parts).where(
    messages.c.role == "tool", cast(messages.c.parts, String).contains('"sources"')
)
JOBS = select(jobs.c.seq, jobs.c.id, jobs.c.user_id, jobs.c.key, jobs.c.payload).where(
    jobs.c.kind != JOB
)


def tables_of_rows() -> list[Table]:
    """Return the tables whose rows are deleted with the user."""
    return [
        table
        for table in metadata.sorted_tables
        if _owners(table) and table.name not in ("users", "jobs")
    ]


def columns_to_blank() -> list[Column[Any]]:
    """Return the columns from which the user's id is removed."""
    columns = (
        column
        for table in metadata.sorted_tables
        for column in table.c
        if erasure_of(column) == "blank"
    )
    return [
        column
        for column in columns
        if column.name in ("user_id", "sender_id", "author_id") or column.name.endswith("_by")
    ]


def columns_that_remain() -> list[Column[Any]]:
    """Return the columns with authors of rows that may have to stay; the receipt counts these."""
    return [
        table.c.author_id for table in metadata.sorted_tables if _deletes_rows(table, "author_id")
    ]


def _owners(table: Table) -> list[Column[Any]]:
    return [table.c[name] for name in ("user_id", "sender_id") if _deletes_rows(table, name)]


def _deletes_rows(table: Table, name: str) -> bool:
    return name in table.c and erasure_of(table.c[name]) == "delete"


def conversations_of(user_id: str) -> Select[Any]:
    """Select the seq, id and is_default of the user's conversations, deleted ones too.

    Args:
        user_id: The user.
    """
    columns = (conversations.c.seq, conversations.c.id, conversations.c.is_default)
    return select(*columns).where(conversations.c.user_id == user_id)


def rows_of(table: Table, user_id: str, is_sent: ColumnElement[bool]) -> Select[Any]:
    """Select the user's rows of the table, each with its references.

    Args:
        table: One of `tables_of_rows`.
        user_id: The user.
        is_sent: The condition for messages that name the user as their sender (`service.said_as`).
    """
    own_conversations = select(conversations.c.id).where(conversations.c.user_id == user_id)
    own_runs = select(runs.c.id).where(
        or_(runs.c.user_id == user_id, runs.c.conversation_id.in_(own_conversations))
    )
    is_own: ColumnElement[bool] = or_(*(column == user_id for column in _owners(table)))
    if table is messages:
        leaving = own_conversations.where(conversations.c.is_default.is_(False))
        is_system = messages.c.role == "system"
        is_prompt_that_stays = is_system & messages.c.conversation_id.not_in(leaving)
        is_own |= (
            messages.c.conversation_id.in_(own_conversations)
            | messages.c.run_id.in_(own_runs)
            | is_sent
        )
        is_own &= ~is_prompt_that_stays
    elif table is passages:
        own_steps = select(steps.c.id).where(steps.c.run_id.in_(own_runs))
        is_own |= passages.c.user_id.is_(None) & passages.c.step_id.in_(own_steps)
    elif table is runs:
        is_own |= runs.c.conversation_id.in_(own_conversations)
    names = ("seq", "id", "agent_id", "conversation_id", "archive_id", "created_at")
    return select(*(table.c[name] for name in names if name in table.c)).where(is_own)


def rows_with(column: Column[Any], user_id: str) -> Select[Any]:
    """Select the seqs of the rows whose column names the user.

    Args:
        column: A column with user ids, of a table with `seq`.
        user_id: The user.
    """
    return select(column.table.c.seq).where(column == user_id)


def proposals_of(user_id: str) -> Select[Any]:
    """Select proposals by the user, or by agents in turns of the user.

    An approved proposal is the cause of a version, so it stays, without the user's name.

    Args:
        user_id: The user who is erased.

    Returns:
        A select of the columns seq, chain_id and blob.
    """
    own_runs = select(runs.c.id).where(runs.c.user_id == user_id)
    is_own = (proposals.c.author_id == user_id) | proposals.c.run_id.in_(own_runs)
    columns = select(proposals.c.seq, proposals.c.chain_id, proposals.c.blob)
    return columns.where(is_own, proposals.c.status != "approved")


def find_portion(
    tx: Transaction, statement: Select[Any], after: int = 0, keeps: Callable[[Any], object] = bool
) -> tuple[list[Any], bool]:
    """Return the matching rows among the next AT_ONCE rows, and whether more rows follow.

    Args:
        tx: The transaction.
        statement: A query that returns the column `seq`, and has no limit.
        after: The seq after which the read begins. For the next portion, add AT_ONCE to it.
        keeps: Returns whether a row is taken; by default all are.
    """
    seq = statement.selected_columns.seq
    newest = tx.all(select(func.coalesce(func.max(seq), 0)))[0][0]
    rows = tx.all(statement.where(seq > after, seq <= after + AT_ONCE).order_by(seq))
    return [row for row in rows if keeps(row)], newest > after + AT_ONCE


def quotes(row: Any, erased: Collection[str]) -> bool:
    """Return True if a part of the message has one of the erased texts as a source.

    Args:
        row: A row with `parts`.
        erased: The ids of erased messages and passages.
    """
    return any(not {*part.get("sources", ())}.isdisjoint(erased) for part in row.parts)


def with_forks(tx: Transaction, ids: Collection[str], user_id: str) -> tuple[set[str], set[str]]:
    """Return the conversations with their forks to erase, and the forks of other users.

    Forks of this user and forks without a user are erased, and so are such forks of them.

    Args:
        tx: The transaction.
        ids: The conversations at which the search begins.
        user_id: The user who is erased.
    """
    own_ids = set(ids)
    others: set[str] = set()
    fresh = set(ids)
    while fresh:
        columns = select(conversations.c.id, conversations.c.user_id)
        rows = tx.all(columns.where(is_in(conversations.c.forked_from, fresh)))
        others |= {row.id for row in rows if row.user_id not in (None, user_id)}
        fresh = {row.id for row in rows if row.user_id in (None, user_id)} - own_ids
        own_ids |= fresh
    return own_ids, others


def conversations_showing(tx: Transaction, archive_ids: Sequence[str]) -> dict[str, str]:
    """Return conversations whose prompts show tags of these archives, with their agents.

    Args:
        tx: The transaction.
        archive_ids: The archives.

    Returns:
        The id of the agent by the id of the conversation.
    """
    joined = agents_archives.c.agent_id == conversations.c.agent_id
    columns = select(conversations.c.id, conversations.c.agent_id).join(agents_archives, joined)
    is_seeing = is_in(agents_archives.c.archive_id, archive_ids) & conversations.c.deleted_at.is_(
        None
    )
    return {row.id: row.agent_id for row in tx.all(columns.where(is_seeing))}


def remotes(tx: Transaction) -> Sequence[Any]:
    """Return id, chain_id, kind and address of all remotes of the server.

    Args:
        tx: The transaction.
    """
    return tx.all(
        select(*(memory_remotes.c[name] for name in ("id", "chain_id", "kind", "address")))
    )


def purge_rows(
    tx: Transaction, erasure: Erasure, items: Sequence[Any], table: Table, own_ids: Collection[str]
) -> bool:
    """Purge these rows of the user; rows that refer to them are purged first.

    Other conversations (not in `own_ids`) are recorded, since they show the erased text.

    Args:
        tx: The transaction.
        erasure: The state, which is changed.
        items: Rows of `rows_of`, at most PORTION.
        table: The table of these rows.
        own_ids: The user's conversations that are deleted as a whole.

    Returns:
        True if rows that refer to them remain, so that the call has to be repeated.
    """
    is_more = _purge(tx, erasure, table, "seq", [row.seq for row in items])
    for row in (item._asdict() for item in items):
        if created_at := row.get("created_at"):
            erasure.began_at = min(created_at, erasure.began_at or created_at)
        if agent_id := row.get("agent_id"):
            erasure.agents.setdefault(agent_id, 0)
        if (conversation_id := row.get("conversation_id", "")) and conversation_id not in own_ids:
            erasure.shown_in.add(conversation_id)
        if partition := row.get("archive_id") or (table is messages and agent_id):
            erasure.partitions[partition] = table.name
    if table is runs and not is_more:
        _count_agents_versions(tx, erasure, [row.id for row in items])
    return is_more


def _count_agents_versions(tx: Transaction, erasure: Erasure, run_ids: Sequence[str]) -> None:
    """Count the versions that these runs wrote in agents' memory.

    These versions stay, so the operator should know where they are.
    """
    count = select(chains.c.owner_id, func.count().label("versions")).join(
        commits, commits.c.chain == chains.c.seq
    )
    is_caused = commits.c.run_id.in_(run_ids) & (chains.c.owner_kind == "agent")
    for row in tx.all(count.where(is_caused).group_by(chains.c.owner_id)):
        erasure.agents[row.owner_id] = erasure.agents.get(row.owner_id, 0) + row.versions


def purge_by_id(tx: Transaction, erasure: Erasure, items: Sequence[str], table: Table) -> bool:
    """Purge a portion of these rows, or of the rows that refer to them.

    Forks of a purged conversation no longer name it as their origin.

    Args:
        tx: The transaction.
        erasure: The state, which is changed.
        items: The ids of the rows.
        table: The table of the rows: conversations or chains.

    Returns:
        True if rows that refer to them remain, so that the call has to be repeated.
    """
    if table is conversations:
        forks = is_in(conversations.c.forked_from, items)
        tx.run(update(conversations).where(forks).values(forked_from=None, forked_seq=None))
    return _purge(tx, erasure, table, "id", items)


def purge_owner(tx: Transaction, erasure: Erasure, id: str) -> bool:
    """Purge a portion of an agent or an archive of the user.

    Args:
        tx: The transaction.
        erasure: The state, which is changed.
        id: The id of one of its `own_agents` or `own_archives`.

    Returns:
        True if the call has to be repeated.
    """
    erasure.partitions.pop(id, None)
    return purge_portion(
        tx, "agent" if id in erasure.own_agents else "archive", id, counts=erasure.removed
    )


def purge_traces(tx: Transaction, erasure: Erasure) -> bool:
    """Delete some traces of the erasure's agents, from the user's first row on.

    Args:
        tx: The transaction.
        erasure: The erasure. Its counts of removed rows grow.

    Returns:
        True if there may be more to delete.
    """
    statement = select(traces.c.seq).join(runs, runs.c.id == traces.c.run_id).limit(PORTION)
    statement = statement.where(
        is_in(runs.c.agent_id, erasure.agents), traces.c.created_at >= (erasure.began_at or 0)
    )
    return deletion.purge(
        tx,
        traces,
        "seq",
        keys=[row.seq for row in tx.all(statement)],
        before=before_purge,
        counts=erasure.removed,
    )


def _purge(
    tx: Transaction, erasure: Erasure, table: Table, column: str, values: Sequence[Any]
) -> bool:
    count_before = erasure.removed[table.name]
    is_changed = deletion.purge(
        tx, table, column, keys=values, before=before_purge, counts=erasure.removed
    )
    return is_changed and erasure.removed[table.name] == count_before


def purge_proposals(tx: Transaction, erasure: Erasure, items: Sequence[Any]) -> None:
    """Delete these proposals for other owners' memory, and texts that only they use.

    Args:
        tx: The transaction.
        erasure: The state, which is changed.
        items: Rows of `proposals_of`.
    """
    trees: dict[str, list[bytes]] = {}
    for chain_id in sorted({row.chain_id for row in items}):
        # Lock first, since a concurrent write could store a delta from a text that is deleted here.
        versions.lock(tx, chain_id)
        statement = select(git_objects.c.data).where(
            is_in_chain(git_objects), git_objects.c.kind == "tree"
        )
        trees[chain_id] = [bytes(row.data) for row in tx.all(statement, {"chain_id": chain_id})]
    erasure.removed["proposals"] += tx.run(
        delete(proposals).where(proposals.c.seq.in_([row.seq for row in items]))
    )
    for row in items:
        # The text of a merged commit may be in no version, but only in a tree of that commit.
        if row.blob and not any(bytes(row.blob) in tree for tree in trees[row.chain_id]):
            erasure.removed["blobs"] += tx.run(_delete_blob(row.blob), {"chain_id": row.chain_id})
    for chain_id in trees:
        recount(tx, chain_id)


def _delete_blob(blob: bytes) -> Any:
    """Return the statement that deletes a text if no version and no other proposal has it.

    A text from which a later text is stored as a delta is kept too.
    """
    based = blobs.alias("based")
    is_proposed = (proposals.c.blob == blob) | (proposals.c.base_blob == blob)
    return delete(blobs).where(
        blobs.c.chain == number_of_chain(),
        blobs.c.id == blob,
        ~exists().where(commits.c.chain == blobs.c.chain, commits.c.blob == blobs.c.id),
        ~exists().where(is_in_chain(proposals), is_proposed),
        ~exists().where(based.c.chain == blobs.c.chain, based.c.base == blobs.c.id),
    )


def stop_jobs(tx: Transaction, erasure: Erasure, items: Sequence[str]) -> None:
    """Delete these jobs; a running one is cancelled and deleted later.

    Args:
        tx: The transaction.
        erasure: The state, which is changed.
        items: The ids of the jobs.
    """
    these = jobs.c.id.in_(items)
    is_running = jobs.c.status == "running"
    tx.run(
        update(jobs).where(these, is_running).values(status="cancelled", ended_at=tx.clock.now())
    )
    has_stopped = (jobs.c.status != "cancelled") | jobs.c.worker.is_(None)
    erasure.removed["jobs"] += tx.run(delete(jobs).where(these, has_stopped))


def blank_column(
    tx: Transaction, erasure: Erasure, items: Sequence[Any], column: Column[Any]
) -> None:
    """Remove the user's id from this column of other users' rows.

    If the column cannot be empty, the id and the name in the row become "forgotten", and its text
    becomes empty.

    Args:
        tx: The transaction.
        erasure: The state, which is changed.
        items: Rows of `rows_with` for this column.
        column: One of `columns_to_blank`.
    """
    table: Any = column.table
    blank: dict[str, str | None] = {column.name: None}
    if not column.nullable:
        blank = {
            field.name: "forgotten" if field.name.endswith(("_id", "_name")) else ""
            for field in table.c
            if not field.nullable and erasure_of(field) == "blank"
        }
    is_item = table.c.seq.in_([row.seq for row in items])
    changed = tx.run(update(table).where(is_item).values(blank))
    if table is proposals:
        for row in tx.all(select(table.c.chain_id).where(is_item).distinct()):
            recount(tx, row.chain_id)
    erasure.changed[f"{table.name}.{column.name}"] += changed


def erase_user(tx: Transaction, erasure: Erasure, remaining: Counter[str]) -> None:
    """Delete the user's row, and forget in the erasure who the user was.

    Args:
        tx: The transaction.
        erasure: The erasure, which is changed and not stored here.
        remaining: The number of rows that could not be removed, by table and column.
    """
    erasure.removed["users"] += tx.run(delete(users).where(users.c.id == erasure.user_id))
    erasure.is_erased = True
    erasure.remaining = remaining
    erasure.user_id = ""
    erasure.identifier = ""
    erasure.name = ""
    erasure.former = []
    erasure.shown_in = set()
    erasure.defaults = set()


def cover_quotes(
    tx: Transaction, erasure: Erasure, items: Sequence[str], erased: Collection[str]
) -> None:
    """Cover tool results that quote erased messages.

    Search then no longer finds these results. It still finds the other results of their messages.

    Args:
        tx: The transaction.
        erasure: The state, which is changed.
        items: The ids of the messages that contain the results.
        erased: The ids of erased messages and of other erased rows.
    """
    for message in message_rows.by_ids(tx, items):
        if message_rows.searchable_text(message):
            erasure.partitions[message.agent_id] = "messages"
        blank: dict[str, Any] = {
            "is_json": False,
            "stdout": (),
            "stderr": (),
            "sources": (),
            "said": (),
            "pictures": (),
        }
        parts: list[Part] = []
        searched_parts: list[Part] = []
        for part in message.parts:
            if isinstance(part, ToolReturnPart) and not {*part.sources}.isdisjoint(erased):
                parts.append(replace(part, content=COVERED, **blank))
            else:
                parts.append(part)
                searched_parts.append(part)
        index.rewrite_message(tx, replace(message, parts=tuple(parts)), searched_parts)
        erasure.changed["quotes"] += 1


def cover_conversation(tx: Transaction, erasure: Erasure, items: Sequence[str]) -> None:
    """Remove erased messages from the window of this conversation.

    The conversation's summaries and prompts are covered.

    Args:
        tx: The transaction.
        erasure: The state, which is changed.
        items: The conversation's id alone.
    """
    (id,) = items
    row = tx.first(select(conversations).where(conversations.c.id == id).with_for_update())
    if row is None:
        return
    existing = {message.id for message in message_rows.by_ids(tx, row.window)}
    window = [message_id for message_id in row.window if message_id in existing]
    changes: dict[str, Any] = {"window": window}
    if row.forked_from is not None and len(existing) < len(row.window):
        count = tx.all(select(func.count()).where(messages.c.conversation_id == id))[0][0]
        changes |= {"forked_from": None, "forked_seq": None, "message_count": count}
    # The user's default conversation showed the user's memory from its start, even without
    # messages.
    is_default = id in erasure.defaults
    cover_messages(tx, erasure, items, 0 if is_default else None, window[:1])
    if is_default and row.user_id == erasure.user_id:
        changes |= {"user_id": None, "summary": None, "description": None}
        # The user's messages that remain in such a conversation are prompts.
        is_prompt = (messages.c.conversation_id == id) & (messages.c.user_id == erasure.user_id)
        tx.run(update(messages).where(is_prompt).values(user_id=None))
        erasure.changed["conversations of agents"] += 1
    tx.run(update(conversations).where(conversations.c.id == id).values(changes))


def cover_messages(
    tx: Transaction,
    erasure: Erasure,
    items: Sequence[str],
    since: int | None = None,
    more: Sequence[str] = (),
) -> None:
    """Cover the prompts and summaries of this conversation since the user's first erased row.

    An empty prompt is rendered again later.

    Args:
        tx: The transaction.
        erasure: The state, which is changed.
        items: The conversation's id alone.
        since: A time in microseconds, which replaces that of the user's first erased row.
        more: The ids of further prompts and summaries to cover.
    """
    (id,) = items
    if since is None:
        since = erasure.began_at or 0
    is_shown = messages.c.role.in_(("summary", "system")) & (messages.c.created_at >= since)
    message_ids = [
        row.id
        for row in tx.all(select(messages.c.id).where(messages.c.conversation_id == id, is_shown))
    ]
    for message in message_rows.by_ids(tx, list(dict.fromkeys((*message_ids, *more)))):
        covered = message
        if message.role == "system":
            covered = message.with_text("")
        elif message.role == "summary":
            parts = (
                TextPart(COVERED) if isinstance(part, TextPart) else part for part in message.parts
            )
            covered = replace(message, parts=tuple(parts))
        if covered != message:
            message_rows.rewrite(tx, covered)
            erasure.changed["prompts" if message.role == "system" else "summaries"] += 1
    tx.run(update(conversations).where(conversations.c.id == id).values(prompt_key=""))


def add_job(
    tx: Transaction, organization_id: str, erasure: Erasure, after: Erasure | None = None
) -> Job:
    """Add the job that carries out an erasure.

    Args:
        tx: The transaction.
        organization_id: The organization of the user.
        erasure: The state with which the job begins.
        after: An earlier erasure of the same user; the two jobs never run at the same time.
    """
    key = (after or erasure).id
    payload = erasure.model_dump(mode="json")
    job = Job(JOB, organization_id, payload, key=key, most_attempts=_ATTEMPTS)
    return job_rows.add(tx, job) or job


def save(tx: Transaction, job_id: str, state: Any) -> None:
    """Store the state of a running job.

    Args:
        tx: The transaction.
        job_id: The job.
        state: The state of an erasure, or of the removal of one fact.
    """
    tx.run(update(jobs).where(jobs.c.id == job_id).values(payload=state.model_dump(mode="json")))


def known(tx: Transaction) -> list[Erasure]:
    """Return the erasures of all organizations, the newest first.

    Jobs that ended long ago are deleted, so their erasures are missing.

    Args:
        tx: The transaction.
    """
    return [erasure for _, erasure in known_with_jobs(tx)]


def known_with_jobs(tx: Transaction) -> list[tuple[Job, Erasure]]:
    """Return the erasures that `known` returns, each with its job.

    Args:
        tx: The transaction.
    """
    rows = job_rows.ROWS.all(
        tx, job_rows.ROWS.select.where(jobs.c.kind == JOB).order_by(jobs.c.seq.desc())
    )
    return [(job, Erasure.model_validate(job.payload)) for job in rows]


def take_up(tx: Transaction, begin: Callable[[str, str], Erasure]) -> int:
    """Add jobs for unfinished erasures without an open job; return the number of these jobs.

    Their jobs failed, or were cancelled or deleted.

    Args:
        tx: The transaction.
        begin: Returns an erasure for the id of a hidden user and an organization.
    """
    latest = {erasure.id: (job, erasure) for job, erasure in reversed(known_with_jobs(tx))}
    unfinished = [
        (job.organization_id, erasure)
        for job, erasure in latest.values()
        if job.status in ("failed", "cancelled")
    ]
    at_work = {erasure.user_id for _, erasure in latest.values()}
    hidden = [
        row.id for row in tx.all(select(users.c.id).where(users.c.organization_id == DELETED))
    ]
    unfinished += [
        (LOCAL_ORGANIZATION, begin(id, LOCAL_ORGANIZATION)) for id in hidden if id not in at_work
    ]
    for organization_id, erasure in unfinished:
        add_job(tx, organization_id, erasure)
    return len(unfinished)


def claim_flush(tx: Transaction, erasure: Any, owner_id: str) -> Job | None:
    """Claim the job that flushes this index partition; None while it is busy.

    Args:
        tx: The transaction.
        erasure: The state of an erasure, or of the removal of one fact.
        owner_id: The owner of the partition: an agent or an archive.
    """
    write_buffer.add_flush_job(tx, owner_id, erasure.organization_id)
    is_it = (
        (jobs.c.kind == write_buffer.FLUSH)
        & (jobs.c.key == owner_id)
        & (jobs.c.status == "waiting")
    )
    row = tx.first(select(jobs.c.id).where(is_it))
    if row:
        return job_rows.claim_one(tx, f"erasure-{erasure.id}", row.id)
    return None


def is_embedding(tx: Transaction, owner_id: str) -> bool:
    """Return True if a job embeds texts of this partition, rebuilds it or deletes its owner.

    Args:
        tx: The transaction.
        owner_id: The owner of the partition of the search index: an agent or an archive.
    """
    is_it = jobs.c.key.in_([owner_id, f"{partitions.EMBED}:{owner_id}"]) & (
        jobs.c.kind != write_buffer.FLUSH
    )
    return tx.first(select(jobs.c.id).where(is_it, jobs.c.status == "running")) is not None
