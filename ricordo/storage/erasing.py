"""What belongs to a user who is to be forgotten: hiding it at once, and finding it row by row while others work.

Her rows are looked for in reads, which hold up nobody, some ten thousand rows at a time: no index is kept for a question that is
asked so seldom. Deleting them is `erased_rows.py`, and what others' rows show of her `erased_threads.py`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BindParameter,
    Column,
    ColumnElement,
    Table,
    Text,
    and_,
    bindparam,
    cast,
    func,
    insert,
    or_,
    select,
    update,
)

from ricordo.domain.erasure import KIND, Erasure, erasure_of
from ricordo.domain.job import Job
from ricordo.domain.scope import LOCAL_ORGANIZATION, Scope, User
from ricordo.errors import NotFound
from ricordo.search import schedule
from ricordo.search.partitions import EMBED
from ricordo.storage import jobs
from ricordo.storage.deletion import DELETED
from ricordo.storage.repository import setter
from ricordo.storage.store import Transaction, each
from ricordo.storage.tables import (
    agents,
    agents_archives,
    agents_blocks,
    archives,
    blocks,
    blocks_log,
    chains,
    commits,
    conversations,
    expenses,
    messages,
    organizations,
    passages,
    proposals,
    providers,
    runs,
    steps,
    tools,
    users,
)
from ricordo.storage.tables import jobs as jobs_table

# Rows that one read looks through.
AT_ONCE = 20_000
# Threads that one write hides.
HIDDEN_AT_ONCE = 250
# It is tried again for as long as it takes, at last every ten minutes.
_ATTEMPTS = 1_000_000
_JSON = messages.c.parts.type
_USER: BindParameter[str] = bindparam("user_id")

OWN_THREADS = select(conversations.c.id).where(conversations.c.user_id == _USER)
# An agent's own thread stays with the agent, empty.
_LEAVING = OWN_THREADS.where(conversations.c.is_default.is_(False))
OWN_RUNS = select(runs.c.id).where(or_(runs.c.user_id == _USER, runs.c.conversation_id.in_(OWN_THREADS)))
_OWN_STEPS = select(steps.c.id).where(steps.c.run_id.in_(OWN_RUNS))
_IS_PROMPT_OF_OTHERS = and_(messages.c.role == "system", messages.c.conversation_id.not_in(_LEAVING))


@dataclass(frozen=True, slots=True)
class Look:
    """Which rows of a table are looked for, and what is read of each beside its `seq`."""

    table: Table
    which: ColumnElement[bool]
    columns: tuple[ColumnElement[Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Mark:
    """A column in which her id may stand, and what the row gets in place of it."""

    column: Column[Any]
    values: Mapping[str, str | None]

    @property
    def name(self) -> str:
        """The column with its table."""
        return f"{self.column.table.name}.{self.column.name}"


LOOKS = {
    "threads": Look(conversations, conversations.c.user_id == _USER, (conversations.c.id, conversations.c.is_default)),
    "messages": Look(
        messages,
        or_(
            messages.c.user_id == _USER,
            messages.c.sender_id == _USER,
            messages.c.conversation_id.in_(OWN_THREADS),
            messages.c.run_id.in_(OWN_RUNS),
        )
        & ~_IS_PROMPT_OF_OTHERS,
        (messages.c.id,),
    ),
    # Results that name what they quote.
    "quotes": Look(
        messages,
        (messages.c.role == "tool") & cast(messages.c.parts, Text).contains('"sources"'),
        (messages.c.id, messages.c.parts),
    ),
    "passages": Look(
        passages,
        or_(passages.c.user_id == _USER, and_(passages.c.user_id.is_(None), passages.c.step_id.in_(_OWN_STEPS))),
        (passages.c.id,),
    ),
    "runs": Look(runs, runs.c.id.in_(OWN_RUNS), (runs.c.id,)),
    "jobs": Look(
        jobs_table, jobs_table.c.kind != KIND, tuple(jobs_table.c[n] for n in ("id", "user_id", "key", "payload"))
    ),
    # One that was approved is a version's cause, and its text that version's: it stays, without her name.
    "proposals": Look(
        proposals,
        or_(proposals.c.author_id == _USER, proposals.c.run_id.in_(OWN_RUNS)) & (proposals.c.status != "approved"),
    ),
}
_MINE: dict[str, str | None] = {"author_id": "forgotten", "author_name": "forgotten"}
# Her id in rows that are others'. Sums of what was spent stay, as nobody's.
MARKS = (
    *(
        Mark(column, {column.name: None})
        for column in (
            *(expenses.c.user_id, conversations.c.created_by, archives.c.created_by, passages.c.created_by),
            *(table.c[name] for table in (agents, tools, providers, blocks) for name in ("created_by", "updated_by")),
            *(proposals.c.resolved_by, commits.c.approved_by),
        )
    ),
    Mark(proposals.c.author_id, {**_MINE, "reasoning": ""}),
    Mark(blocks_log.c.author_id, _MINE),
)
# The author of a version is part of its id, so this one stays in others' chains and the receipt says how often.
REMAINS = (commits.c.author_id,)

_NOBODY = select(organizations.c.seq).where(organizations.c.id == DELETED)
_HIDE_USER = (
    update(users)
    .where(users.c.id == bindparam("hidden_id"), users.c.organization_id == bindparam("of_organization"))
    .values(organization_id=DELETED, identifier=None, name="")
)
_CHAINS = select(chains.c.id, chains.c.head, chains.c.versions).where(
    chains.c.owner_kind == "user", chains.c.owner_id == bindparam("owner_id")
)
_HIDE_CHAINS = (
    update(chains)
    .where(chains.c.owner_kind == "user", chains.c.owner_id == bindparam("of_owner"))
    .values(owner_id=bindparam("hidden_owner"), organization_id=DELETED)
)
_IN_CHAIN = select(blocks.c.id).where(blocks.c.chain_id == bindparam("in_chain"))
_DETACH = agents_blocks.delete().where(agents_blocks.c.block_id.in_(_IN_CHAIN))
_HIDE_ROWS = [
    update(table).where(table.c.chain_id == bindparam("in_chain")).values(organization_id=DELETED)
    for table in (blocks, proposals)
]
_DELETED = (
    update(conversations)
    .where(
        conversations.c.id.op("IN")(each(bindparam("ids", type_=_JSON))),
        conversations.c.is_default.is_(False),
        conversations.c.deleted_at.is_(None),
    )
    .values(deleted_at=bindparam("now"))
)
_FORKS = select(conversations.c.id, conversations.c.user_id).where(
    conversations.c.forked_from.op("IN")(each(bindparam("ids", type_=_JSON))), conversations.c.forked_from.is_not(None)
)
_SEEING = (
    select(conversations.c.id, conversations.c.agent_id)
    .join(agents_archives, agents_archives.c.agent_id == conversations.c.agent_id)
    .where(
        agents_archives.c.archive_id.op("IN")(each(bindparam("ids", type_=_JSON))), conversations.c.deleted_at.is_(None)
    )
)
_ADOPT = (
    update(conversations)
    .where(conversations.c.id.op("IN")(each(bindparam("ids", type_=_JSON))), conversations.c.user_id.is_(None))
    .values(user_id=bindparam("of_user"))
)
_SAVE = setter(jobs_table, "payload", where=jobs_table.c.id == bindparam("job_id"))
_ASKED = select(jobs_table).where(jobs_table.c.kind == KIND).order_by(jobs_table.c.seq.desc())
_MERGE = select(jobs_table.c.id).where(
    jobs_table.c.kind == bindparam("kind"), jobs_table.c.key == bindparam("key"), jobs_table.c.status == "waiting"
)
_EMBEDDING = select(jobs_table.c.id).where(
    jobs_table.c.key.op("IN")(each(bindparam("keys", type_=_JSON))),
    jobs_table.c.status == "running",
    jobs_table.c.kind != schedule.FLUSH,
)
_FORGOTTEN = select(users.c.id).where(users.c.organization_id == DELETED)


def hide(tx: Transaction, scope: Scope, user: User, erasure: Erasure, threads: Sequence[str]) -> Erasure:
    """Let nobody find the user, her memory and these threads of hers; returns it with what will go. Raises NotFound."""
    if tx.first(_NOBODY) is None:
        tx.run(insert(organizations), {"id": DELETED, "name": "Deleted, not yet removed", "created_at": tx.clock.now()})
    if not tx.run(_HIDE_USER, {"hidden_id": user.id, "of_organization": scope.organization_id}):
        raise NotFound("This user was forgotten a moment ago.")
    hide_threads(tx, threads)
    return hide_chains(tx, erasure)


def ask(tx: Transaction, scope: Scope, erasure: Erasure) -> Job:
    """Add the job that removes what was hidden."""
    job = _job(scope.organization_id, erasure)
    return jobs.add(tx, job) or job


def hide_chains(tx: Transaction, erasure: Erasure) -> Erasure:
    """Take her memory from every agent and out of every list, under a name that nobody asks for."""
    hidden = hidden_owner(erasure.user_id)
    tx.run(_HIDE_CHAINS, {"of_owner": erasure.user_id, "hidden_owner": hidden})
    known = dict(erasure.chains)
    for row in tx.all(_CHAINS, {"owner_id": hidden}):
        known[row.id] = {"head": row.head.hex() if row.head else None, "versions": row.versions}
        hide_memory(tx, row.id)
    return erasure_of({**erasure.to_json(), "chains": known})


def hide_memory(tx: Transaction, chain_id: str) -> None:
    """Take the blocks of a chain from every agent, and with what is proposed for them out of every list."""
    for statement in (*_HIDE_ROWS, _DETACH):
        tx.run(statement, {"in_chain": chain_id})


def hide_threads(tx: Transaction, ids: Sequence[str]) -> None:
    """Let nobody find these threads, and no turn begin in them; an agent's own stays."""
    tx.run(_DELETED, {"ids": list(ids), "now": tx.clock.now()})


def hidden_owner(user_id: str) -> str:
    """Who the chain of a user belongs to while it is being removed."""
    return f"{user_id}#gone"


def forks_of(tx: Transaction, ids: Sequence[str], user_id: str) -> tuple[list[str], list[str]]:
    """The threads that go on from these: nobody's or hers, which go too, and those of other users."""
    hers: list[str] = []
    others: list[str] = []
    for row in tx.all(_FORKS, {"ids": list(ids)}):
        (hers if row.user_id in (None, user_id) else others).append(row.id)
    return hers, others


def adopt(tx: Transaction, ids: Sequence[str], user_id: str) -> None:
    """Let these forks, which are nobody's, count as hers."""
    tx.run(_ADOPT, {"ids": list(ids), "of_user": user_id})
    hide_threads(tx, ids)


def seeing(tx: Transaction, archive_ids: Sequence[str]) -> dict[str, str]:
    """The threads whose prompts tell of these archives, each with its agent."""
    return {row.id: row.agent_id for row in tx.all(_SEEING, {"ids": list(archive_ids)})}


def newest(tx: Transaction, table: Table) -> int:
    """The greatest `seq` in the table."""
    return int(tx.all(select(func.coalesce(func.max(table.c.seq), 0)))[0][0])


def some(tx: Transaction, look: Look, user_id: str, after: int) -> Sequence[Any]:
    """Those among the rows behind this `seq` that are looked for, up to AT_ONCE behind it."""
    seq = look.table.c.seq
    statement = select(seq, *look.columns).where(seq > after, seq <= after + AT_ONCE, look.which).order_by(seq)
    return tx.connection.execute(statement, {"user_id": user_id}).all()


def marked(column: Column[Any]) -> Look:
    """A look for her id in this column."""
    return Look(column.table, column == _USER)


def save(tx: Transaction, job_id: str, erasure: Erasure) -> None:
    """Note with the job how far it is."""
    tx.run(_SAVE, {"job_id": job_id, "new_payload": erasure.to_json()})


def asked(tx: Transaction) -> Iterator[tuple[Job, Erasure]]:
    """The erasures that were asked for and are still known to the queue, the newest first."""
    for row in tx.all(_ASKED):
        yield jobs.job_of(row), erasure_of(row.payload)


def begun(tx: Transaction, receipt_id: str) -> tuple[Job, Erasure] | None:
    """The erasure that this receipt is for, with its job, while the queue knows of it."""
    return next((found for found in asked(tx) if found[1].id == receipt_id), None)


def take_up(tx: Transaction, make: Callable[[str], Erasure]) -> int:
    """Add jobs for erasures that nobody works on any more, as when somebody deleted the job; returns how many.

    `make` gives an erasure for the id of a user whose job is gone altogether.
    """
    latest: dict[str, tuple[Job, Erasure]] = {}
    for job, erasure in asked(tx):
        latest.setdefault(erasure.id, (job, erasure))
    left = [(job.organization_id, erasure) for job, erasure in latest.values() if job.status in ("failed", "cancelled")]
    known = {erasure.user_id for _, erasure in latest.values()}
    left += [(LOCAL_ORGANIZATION, make(row.id)) for row in tx.all(_FORGOTTEN) if row.id not in known]
    for organization_id, erasure in left:
        jobs.add(tx, _job(organization_id, erasure))
    return len(left)


def claim_merge(tx: Transaction, kind: str, owner_id: str, organization_id: str, worker: str) -> Job | None:
    """Take the merge of this space's index upon oneself; None while somebody else is at work on it."""
    schedule.ask(tx, kind, owner_id, organization_id)
    row = tx.first(_MERGE, {"kind": schedule.FLUSH, "key": owner_id})
    return jobs.claim_one(tx, worker, row.id) if row else None


def is_embedding(tx: Transaction, owner_id: str) -> bool:
    """Whether a job gives vectors to what this space holds, and may know texts that are gone."""
    return tx.first(_EMBEDDING, {"keys": [owner_id, f"{EMBED}:{owner_id}"]}) is not None


def _job(organization_id: str, erasure: Erasure) -> Job:
    return Job(KIND, organization_id, erasure.to_json(), key=erasure.id, most_attempts=_ATTEMPTS)
