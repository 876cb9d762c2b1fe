"""Queries of erasure: hiding a user, finding what holds something of them, and erasing or covering it.

Rows are found in reads, which hold up nobody, some ten thousand at a time: no index is kept for a question that is asked so seldom.
Each function that changes something is one portion; it notes what it did in the erasure, which is saved in the same transaction.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Column, ColumnElement, Select, Table, and_, cast, delete, exists, func, or_, select, update
from sqlalchemy import Text as SqlText

from ricordo.agents.deletion import before_purge
from ricordo.domain.job import Job
from ricordo.domain.message import TextPart
from ricordo.domain.scope import LOCAL_ORGANIZATION, LOCAL_USER, Scope, User
from ricordo.errors import NotFound
from ricordo.features.erasure.models import Erasure
from ricordo.search import index, partitions, schedule
from ricordo.storage import deletion, jobs, versions
from ricordo.storage import messages as message_rows
from ricordo.storage.columns import erasure_of, metadata
from ricordo.storage.deletion import DELETED
from ricordo.storage.memory_tables import is_in_chain, number_of_chain
from ricordo.storage.store import Transaction
from ricordo.storage.tables import (
    agents,
    agents_archives,
    agents_blocks,
    archives,
    blobs,
    blocks,
    chains,
    commits,
    conversations,
    git_objects,
    messages,
    passages,
    proposals,
    runs,
    steps,
    users,
)
from ricordo.storage.tables import jobs as jobs_table

JOB = "erasure"
PORTION = 50
# Rows that one read looks through.
AT_ONCE = 20_000
COVERED = "(This held words of a user who has been forgotten.)"
# It is tried again for as long as it takes, at last every ten minutes.
_ATTEMPTS = 1_000_000
Change = Callable[[Transaction, Erasure], Any]

CONVERSATIONS = select(conversations.c.seq, conversations.c.id, conversations.c.is_default, conversations.c.user_id)
# Results of tools that name what they quote.
QUOTES = select(messages.c.seq, messages.c.id, messages.c.parts).where(
    messages.c.role == "tool", cast(messages.c.parts, SqlText).contains('"sources"')
)
JOBS = select(*(jobs_table.c[name] for name in ("seq", "id", "user_id", "key", "payload"))).where(
    jobs_table.c.kind != JOB
)


def _is_persons_id(column: Column[Any]) -> bool:
    return column.name in ("user_id", "sender_id", "author_id") or column.name.endswith("_by")


def tables_of_rows() -> list[Table]:
    """The tables whose rows go with the user that a column of theirs names; jobs and users have their own ways."""
    return [table for table in metadata.sorted_tables if _owner_columns(table) and table.name not in ("users", "jobs")]


def columns_to_blank() -> list[Column[Any]]:
    """The columns that name a user in rows that stay."""
    every = (column for table in metadata.sorted_tables for column in table.c)
    return [column for column in every if _is_persons_id(column) and erasure_of(column) == "blank"]


def columns_that_remain() -> list[Column[Any]]:
    """The columns that name a user in rows that can neither go nor change: an author is part of a version's id."""
    every = (table.c.get("author_id") for table in metadata.sorted_tables)
    return [column for column in every if column is not None and erasure_of(column) == "delete"]


def _owner_columns(table: Table) -> list[Column[Any]]:
    columns = (table.c.get(name) for name in ("user_id", "sender_id"))
    return [column for column in columns if column is not None and erasure_of(column) == "delete"]


# --- finding ---


def rows_of(table: Table, user_id: str) -> Select[Any]:
    """The rows of the table that are the user's, each with what it refers to."""
    own_conversations = select(conversations.c.id).where(conversations.c.user_id == user_id)
    own_runs = select(runs.c.id).where(or_(runs.c.user_id == user_id, runs.c.conversation_id.in_(own_conversations)))
    own_steps = select(steps.c.id).where(steps.c.run_id.in_(own_runs))
    is_own: ColumnElement[bool] = or_(*(column == user_id for column in _owner_columns(table)))
    if table is messages:
        leaving = own_conversations.where(conversations.c.is_default.is_(False))
        is_prompt_that_stays = and_(messages.c.role == "system", messages.c.conversation_id.not_in(leaving))
        is_own |= messages.c.conversation_id.in_(own_conversations) | messages.c.run_id.in_(own_runs)
        is_own &= ~is_prompt_that_stays
    elif table is passages:
        is_own |= and_(passages.c.user_id.is_(None), passages.c.step_id.in_(own_steps))
    elif table is runs:
        is_own |= runs.c.conversation_id.in_(own_conversations)
    wanted = ("seq", "id", "agent_id", "conversation_id", "archive_id", "created_at")
    return select(*(table.c[name] for name in wanted if name in table.c)).where(is_own)


def rows_with(column: Column[Any], user_id: str) -> Select[Any]:
    """The rows that name the user in this column."""
    return select(column.table.c.seq).where(column == user_id)


def proposals_of(user_id: str) -> Select[Any]:
    """What was proposed by the user or in their turns. An approved proposal is a version's cause and stays, without their name."""
    own_runs = select(runs.c.id).where(runs.c.user_id == user_id)
    is_own = or_(proposals.c.author_id == user_id, proposals.c.run_id.in_(own_runs))
    return select(proposals.c.seq, proposals.c.chain_id, proposals.c.blob).where(is_own, proposals.c.status != "approved")


def newest(tx: Transaction, wanted: Select[Any]) -> int:
    """The greatest `seq` in the table that is looked through."""
    return int(tx.all(select(func.coalesce(func.max(wanted.selected_columns.seq), 0)))[0][0])


def some(tx: Transaction, wanted: Select[Any], after: int) -> Sequence[Any]:
    """The wanted rows among the next AT_ONCE behind this `seq`."""
    seq = wanted.selected_columns.seq
    return tx.all(wanted.where(seq > after, seq <= after + AT_ONCE).order_by(seq))


def quoting(rows: Sequence[Any], erased: Collection[str]) -> Iterator[str]:
    """The ids of those among these messages whose results name one of the texts that are erased."""
    for row in rows:
        if any(not set(part.get("sources", ())).isdisjoint(erased) for part in row.parts):
            yield row.id


def with_forks(tx: Transaction, ids: Collection[str], user_id: str) -> tuple[list[str], list[str]]:
    """These conversations with the forks of them that are nobody's or the user's, and the forks that are other users'."""
    own, others, fresh = set(ids), set[str](), list(ids)
    while fresh:
        columns = select(conversations.c.id, conversations.c.user_id)
        rows = tx.all(columns.where(conversations.c.forked_from.in_(fresh)))
        others |= {row.id for row in rows if row.user_id not in (None, user_id)}
        fresh = [row.id for row in rows if row.user_id in (None, user_id) and row.id not in own]
        own |= {*fresh}
    return sorted(own), sorted(others)


def seeing(tx: Transaction, archive_ids: Sequence[str]) -> dict[str, str]:
    """The conversations whose prompts tell of these archives, each with its agent."""
    joined = agents_archives.c.agent_id == conversations.c.agent_id
    wanted = select(conversations.c.id, conversations.c.agent_id).join(agents_archives, joined)
    is_seeing = agents_archives.c.archive_id.in_(archive_ids) & conversations.c.deleted_at.is_(None)
    return {row.id: row.agent_id for row in tx.all(wanted.where(is_seeing))}


# --- hiding ---


def hide_user(tx: Transaction, scope: Scope, user: User, erasure: Erasure) -> None:
    """Hide the user and their memory. Raises NotFound."""
    deletion.prepare(tx)
    is_there = (users.c.id == user.id) & (users.c.organization_id == scope.organization_id)
    if not tx.run(update(users).where(is_there).values(organization_id=DELETED, identifier=None, name="")):
        raise NotFound("This user was forgotten a moment ago.")
    hide_memory(tx, erasure)


def hide_memory(tx: Transaction, erasure: Erasure) -> None:
    """Take the user's memory from every agent and out of every list, under an owner that nobody asks for."""
    is_users, hidden = chains.c.owner_kind == "user", f"{erasure.user_id}#deleted"
    is_own = is_users & (chains.c.owner_id == erasure.user_id)
    tx.run(update(chains).where(is_own).values(owner_id=hidden, organization_id=DELETED))
    _hide_chains(tx, erasure, is_users & (chains.c.owner_id == hidden))


def hide_conversations(tx: Transaction, erasure: Erasure, ids: Sequence[str]) -> None:
    """Hide these conversations, and let those that are nobody's be the user's; agents' default ones stay."""
    these = conversations.c.id.in_(ids)
    tx.run(update(conversations).where(these, conversations.c.user_id.is_(None)).values(user_id=erasure.user_id))
    is_there = conversations.c.is_default.is_(False) & conversations.c.deleted_at.is_(None)
    tx.run(update(conversations).where(these, is_there).values(deleted_at=tx.clock.now()))


def hide_agents(tx: Transaction, scope: Scope, erasure: Erasure) -> None:
    """Hide the agents that are the user's alone, with the archives and the memory that no other agent has."""
    talked = select(conversations.c.agent_id).where(conversations.c.user_id == erasure.user_id)
    is_known = or_(agents.c.created_by == erasure.user_id, agents.c.id.in_(talked))
    found = select(agents.c.id, agents.c.created_by).where(agents.c.organization_id == scope.organization_id, is_known)
    for row in tx.all(found.order_by(agents.c.id)):
        if reason := _why_kept(tx, row.id, row.created_by, erasure.user_id):
            erasure.kept_agents[row.id] = reason
        else:
            erasure.own_agents.append(row.id)
    if not erasure.own_agents:
        return
    deletion.hide(tx, "agent", erasure.own_agents)
    erasure.own_archives = [row[0] for row in tx.all(_attached_to_these_alone(agents_archives.c.archive_id, erasure))]
    deletion.hide(tx, "archive", erasure.own_archives)
    own_blocks = [row[0] for row in tx.all(_attached_to_these_alone(agents_blocks.c.block_id, erasure))]
    is_loose = chains.c.id.in_(select(blocks.c.chain_id).where(blocks.c.id.in_(own_blocks)))
    is_agents = (chains.c.owner_kind == "agent") & chains.c.owner_id.in_(erasure.own_agents)
    _hide_chains(tx, erasure, is_agents | ((chains.c.owner_kind == "block") & is_loose))


def _attached_to_these_alone(column: Column[Any], erasure: Erasure) -> Any:
    agent_id = column.table.c.agent_id
    others = select(column).where(agent_id.not_in(erasure.own_agents))
    return select(column).where(agent_id.in_(erasure.own_agents), column.not_in(others)).distinct().order_by(column)


def _why_kept(tx: Transaction, agent_id: str, made_by: str | None, user_id: str) -> str | None:
    """Why an agent is not the user's alone; None where it is."""
    if made_by not in (user_id, LOCAL_USER, None):
        return "somebody else made it"
    # A conversation that is about nobody is the user's in an agent that they made themselves.
    about = {user_id, None} if made_by == user_id else {user_id}
    talks = (conversations.c.agent_id == agent_id) & conversations.c.deleted_at.is_(None)
    if not {row.user_id for row in tx.all(select(conversations.c.user_id).where(talks).distinct())} <= about:
        return "others talk with it"
    own = select(blocks.c.id).join(chains, chains.c.id == blocks.c.chain_id)
    own = own.where(chains.c.owner_kind == "agent", chains.c.owner_id == agent_id)
    shared = select(agents_blocks.c.seq).where(agents_blocks.c.agent_id != agent_id, agents_blocks.c.block_id.in_(own))
    return "another agent has a block of its own" if tx.all(shared.limit(1)) else None


def _hide_chains(tx: Transaction, erasure: Erasure, which: ColumnElement[bool]) -> None:
    for row in tx.all(select(chains.c.id, chains.c.head, chains.c.versions).where(which)):
        erasure.chains[row.id] = {"head": row.head.hex() if row.head else None, "versions": row.versions}
        for table in (blocks, proposals):
            tx.run(update(table).where(table.c.chain_id == row.id).values(organization_id=DELETED))
        own = select(blocks.c.id).where(blocks.c.chain_id == row.id)
        tx.run(delete(agents_blocks).where(agents_blocks.c.block_id.in_(own)))


# --- erasing ---


def purge_rows(tx: Transaction, erasure: Erasure, table: Table, rows: Sequence[Any], own: Collection[str]) -> bool:
    """Purge a portion of these rows of the user; conversations that are not their `own` show what is erased."""
    done = erasure.removed["runs"]
    if not deletion.purge(tx, table, "seq", [row.seq for row in rows], before_purge, erasure.removed):
        return False
    for found in (row._asdict() for row in rows):
        if "created_at" in found:
            erasure.began_at = min(found["created_at"], erasure.began_at or found["created_at"])
        if agent_id := found.get("agent_id"):
            erasure.agents[agent_id] += 0
        if (conversation_id := found.get("conversation_id")) and conversation_id not in own:
            erasure.shown_in.add(conversation_id)
        if owner_id := found.get("archive_id") or (table is messages and agent_id):
            erasure.partitions[owner_id] = table.name
    if erasure.removed["runs"] > done:
        _count_versions(tx, erasure, [row.id for row in rows])
    return True


def _count_versions(tx: Transaction, erasure: Erasure, run_ids: Sequence[str]) -> None:
    """Count the versions of agents' own memory that came of these runs: they stay, and the operator should know where to look."""
    count = select(chains.c.owner_id, func.count().label("versions")).join(commits, commits.c.chain == chains.c.seq)
    is_caused = commits.c.run_id.in_(run_ids) & (chains.c.owner_kind == "agent")
    for row in tx.all(count.where(is_caused).group_by(chains.c.owner_id)):
        erasure.agents[row.owner_id] += row.versions


def purge_conversations(tx: Transaction, erasure: Erasure, ids: Sequence[str]) -> bool:
    """Purge a portion of these conversations; forks of other users no longer refer to them."""
    is_fork = conversations.c.forked_from.in_(ids)
    tx.run(update(conversations).where(is_fork).values(forked_from=None, forked_seq=None))
    return deletion.purge(tx, conversations, "id", ids, before_purge, erasure.removed)


def purge_chains(tx: Transaction, erasure: Erasure, ids: Sequence[str]) -> bool:
    """Purge a portion of these chains."""
    return deletion.purge(tx, chains, "id", ids, before_purge, erasure.removed)


def purge_proposals(tx: Transaction, erasure: Erasure, rows: Sequence[Any]) -> None:
    """Delete these proposals for others' memory, with the texts that only they held."""
    trees: dict[str, list[bytes]] = {}
    for chain_id in sorted({row.chain_id for row in rows}):
        # Otherwise a version that is being written could rely on a text that is deleted at this moment.
        versions.lock(tx, chain_id)
        of_chain = select(git_objects.c.data).where(is_in_chain(git_objects), git_objects.c.kind == "tree")
        trees[chain_id] = [bytes(row.data) for row in tx.all(of_chain, {"chain_id": chain_id})]
    erasure.removed["proposals"] += tx.run(delete(proposals).where(proposals.c.seq.in_([row.seq for row in rows])))
    for row in rows:
        # What came with a merge is in no version, but in a tree of the merged commits.
        if row.blob and not any(bytes(row.blob) in tree for tree in trees[row.chain_id]):
            erasure.removed["blobs"] += tx.run(_delete_blob(row.chain_id, row.blob))


def _delete_blob(chain_id: str, blob: bytes) -> Any:
    """Delete a text that is no version's, no other proposal's, and that no later text is stored as a difference from."""
    based = blobs.alias("based")
    of_chain = number_of_chain("in_chain").params(in_chain=chain_id)
    proposed = (proposals.c.blob == blob) | (proposals.c.base_blob == blob)
    return delete(blobs).where(
        blobs.c.chain == of_chain,
        blobs.c.id == blob,
        ~exists().where(commits.c.chain == blobs.c.chain, commits.c.blob == blobs.c.id),
        ~exists().where(proposals.c.chain_id == chain_id, proposed),
        ~exists().where(based.c.chain == blobs.c.chain, based.c.base == blobs.c.id),
    )


def stop_jobs(tx: Transaction, erasure: Erasure, ids: Sequence[str]) -> None:
    """Delete these jobs; one that runs is told to stop, and is still there."""
    these = jobs_table.c.id.in_(ids)
    is_running = jobs_table.c.status == "running"
    tx.run(update(jobs_table).where(these, is_running).values(status="cancelled", ended_at=tx.clock.now()))
    has_stopped = or_(jobs_table.c.status != "cancelled", jobs_table.c.worker.is_(None))
    erasure.removed["jobs"] += tx.run(delete(jobs_table).where(these, has_stopped))


def purge_traces(tx: Transaction, erasure: Erasure) -> bool:
    """Purge a portion of the traces of agents the user talked with, since then: a request shows the whole window."""
    traces = metadata.tables.get("traces")
    if traces is None or not erasure.agents:
        return False
    found = select(traces.c.seq).join(runs, runs.c.id == traces.c.run_id).limit(PORTION)
    found = found.where(runs.c.agent_id.in_(list(erasure.agents)), traces.c.created_at >= (erasure.began_at or 0))
    return deletion.purge(tx, traces, "seq", [row.seq for row in tx.all(found)], before_purge, erasure.removed)


def blank(tx: Transaction, erasure: Erasure, column: Column[Any], rows: Sequence[Any]) -> None:
    """Take the user's id out of this column of others' rows, and their name and words with it where it cannot be empty."""
    table: Any = column.table
    names = [one.name for one in table.c if not one.nullable and erasure_of(one) == "blank"]
    named: dict[str, Any] = {name: "forgotten" if name.endswith(("_id", "_name")) else "" for name in names}
    values = {column.name: None} if column.nullable else named
    done = tx.run(update(table).where(table.c.seq.in_([row.seq for row in rows])).values(values))
    erasure.changed[f"{table.name}.{column.name}"] += done


def bare(tx: Transaction, erasure: Erasure, remaining: Counter[str]) -> None:
    """Delete the user's row, and all in the erasure that tells who this was about."""
    erasure.removed["users"] += tx.run(delete(users).where(users.c.id == erasure.user_id))
    erasure.user_id, erasure.is_bare, erasure.remaining = "", True, remaining
    erasure.shown_in, erasure.defaults = set(), set()


# --- covering what others' rows show ---


def cover_quotes(tx: Transaction, erasure: Erasure, ids: Sequence[str], erased: Collection[str]) -> None:
    """Replace the results in these messages that quote what is erased."""
    for message in message_rows.by_ids(tx, ids):
        was_searched = bool(message_rows.searchable_text(message))
        parts = list(message.parts)
        for place, part in enumerate(parts):
            if not set(getattr(part, "sources", ())).isdisjoint(erased):
                nothing: dict[str, Any] = {"is_json": False, "stdout": (), "stderr": (), "sources": (), "said": ()}
                parts[place] = replace(part, content=COVERED, **nothing)  # type: ignore[arg-type, call-arg]
        index.rewrite_message(tx, replace(message, parts=tuple(parts)))
        erasure.changed["quotes"] += 1
        if was_searched:
            erasure.partitions[message.agent_id] = "messages"


def cover_conversation(tx: Transaction, erasure: Erasure, id: str) -> None:
    """Take what is erased out of the conversation's window, and cover the summaries and prompts since the user came.

    A prompt without words is made anew at the conversation's next turn.
    """
    row = tx.first(select(conversations).where(conversations.c.id == id).with_for_update())
    if row is None:
        return
    there = {one.id for one in message_rows.by_ids(tx, row.window)}
    window = [one for one in row.window if one in there]
    # A default conversation about the user showed their memory from its beginning, also where nobody spoke in it.
    since = 0 if id in erasure.defaults else erasure.began_at or 0
    cover_summaries(tx, erasure, id, since, window[:1])
    values: dict[str, Any] = {"window": window}
    if row.forked_from is not None and len(window) < len(row.window):
        count = tx.all(select(func.count()).where(messages.c.conversation_id == id))[0][0]
        values |= {"forked_from": None, "forked_seq": None, "message_count": count}
    if id in erasure.defaults and row.user_id == erasure.user_id:
        values |= {"user_id": None, "summary": None, "description": None}
        erasure.changed["threads of agents"] += 1
    tx.run(update(conversations).where(conversations.c.id == id).values(values))


def cover_summaries(tx: Transaction, erasure: Erasure, id: str, since: int, more: Sequence[str] = ()) -> None:
    """Cover the conversation's prompts and summaries that were written since then, and these."""
    is_shown = messages.c.role.in_(("summary", "system")) & (messages.c.created_at >= since)
    found = tx.all(select(messages.c.id).where(messages.c.conversation_id == id, is_shown))
    for message in message_rows.by_ids(tx, list(dict.fromkeys((*(row.id for row in found), *more)))):
        if message.role == "summary":
            text = [TextPart(COVERED) if isinstance(part, TextPart) else part for part in message.parts]
            covered, name = replace(message, parts=tuple(text)), "summaries"
        elif message.role == "system":
            covered, name = message.with_text(""), "prompts"
        else:
            continue
        if covered != message:
            message_rows.rewrite(tx, covered)
            erasure.changed[name] += 1
    tx.run(update(conversations).where(conversations.c.id == id).values(prompt_key=""))


# --- the jobs of erasures, and those they wait for ---


def add_job(tx: Transaction, organization_id: str, erasure: Erasure) -> Job:
    """Add the job that erases what is hidden."""
    payload = erasure.model_dump(mode="json")
    job = Job(JOB, organization_id, payload, key=erasure.id, most_attempts=_ATTEMPTS)
    return jobs.add(tx, job) or job


def save(tx: Transaction, job_id: str, erasure: Erasure) -> None:
    """Save how far the erasure is with its job."""
    tx.run(update(jobs_table).where(jobs_table.c.id == job_id).values(payload=erasure.model_dump(mode="json")))


def known(tx: Transaction) -> list[tuple[Job, Erasure]]:
    """The erasures that the queue still knows, the newest job first."""
    rows = tx.all(select(jobs_table).where(jobs_table.c.kind == JOB).order_by(jobs_table.c.seq.desc()))
    return [(jobs.job_of(row), Erasure.model_validate(row.payload)) for row in rows]


def take_up(tx: Transaction, new: Callable[[str], Erasure]) -> int:
    """Add jobs for erasures that nobody works on any more, as when somebody deleted the job; returns how many.

    `new` gives an erasure for the id of a user whose job is no longer there.
    """
    latest = {erasure.id: (job, erasure) for job, erasure in reversed(known(tx))}
    left = [(job.organization_id, one) for job, one in latest.values() if job.status in ("failed", "cancelled")]
    at_work = {erasure.user_id for _, erasure in latest.values()}
    hidden = tx.all(select(users.c.id).where(users.c.organization_id == DELETED))
    left += [(LOCAL_ORGANIZATION, new(row.id)) for row in hidden if row.id not in at_work]
    for organization_id, erasure in left:
        add_job(tx, organization_id, erasure)
    return len(left)


def claim_merge(tx: Transaction, erasure: Erasure, owner_id: str) -> Job | None:
    """Claim the job that merges this partition of the index; None while somebody else is at work on it."""
    schedule.ask(tx, erasure.partitions[owner_id], owner_id, erasure.organization_id)
    is_waiting = and_(
        jobs_table.c.kind == schedule.MERGE, jobs_table.c.key == owner_id, jobs_table.c.status == "waiting"
    )
    row = tx.first(select(jobs_table.c.id).where(is_waiting))
    return jobs.claim_one(tx, f"erasure-{erasure.id}", row.id) if row else None


def is_embedding(tx: Transaction, owner_id: str) -> bool:
    """Whether a job gives vectors to what this partition holds, and may know texts that are erased."""
    is_about = jobs_table.c.key.in_([owner_id, f"{partitions.EMBED}:{owner_id}"]) & (jobs_table.c.status == "running")
    return tx.first(select(jobs_table.c.id).where(is_about, jobs_table.c.kind != schedule.MERGE)) is not None


def remotes(tx: Transaction) -> Sequence[Any]:
    """All remotes of memory: id, chain, kind and address."""
    table = metadata.tables.get("memory_remotes")
    return [] if table is None else tx.all(select(*(table.c[name] for name in ("id", "chain_id", "kind", "address"))))
