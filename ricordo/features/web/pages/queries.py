"""What pages show of several things at once, in one statement each, where the API would be asked once a row."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from sqlalchemy import ColumnElement, and_, case, false, func, or_, select

from ricordo.domain.message import Message
from ricordo.domain.scope import Scope, User
from ricordo.domain.version import BlockVersion, Proposal
from ricordo.storage import history
from ricordo.storage import messages as stored_messages
from ricordo.storage import proposals as stored_proposals
from ricordo.storage import users as stored_users
from ricordo.storage.agent_access import may_use
from ricordo.storage.engine.repository import Page, in_scope
from ricordo.storage.engine.store import Transaction
from ricordo.storage.proposals import ProposalFilter
from ricordo.storage.schema.core_tables import (
    agents,
    conversations,
    messages,
    passages,
    runs,
    users,
)
from ricordo.storage.schema.memory_tables import (
    blocks,
    blocks_log,
    chains,
    memory_remotes,
    proposals,
)

# A list of agents' names in one statement.
_MOST_NAMES = 500
# The newest runs whose agents count as those used last, and the newest messages of a conversation that are looked through.
_MOST_RUNS, _MOST_SCANNED = 1000, 5000
_WAITS = proposals.c.status.in_(("open", "conflicted"))


@dataclass(frozen=True, slots=True)
class MemoryOwner:
    """Whose memory a chain holds. `path` is the page of that memory."""

    kind: str
    id: str
    name: str

    @property
    def path(self) -> str:
        return f"/ui/people/{self.id}" if self.kind == "user" else f"/ui/agents/{self.id}/memory"


@dataclass(frozen=True, slots=True)
class WaitingProposal:
    """A proposal with whose memory it is for, and its block, where there is one already."""

    proposal: Proposal
    owner: MemoryOwner
    block_id: str | None

    def path(self, action: str) -> str:
        """Where the API takes a decision on it: `approve` or `reject`."""
        home = f"/users/{self.owner.id}/blocks/{self.proposal.label}"
        return f"{home if self.owner.kind == 'user' else f'/v1/blocks/{self.block_id}'}/diffs/{self.proposal.id}/{action}"


@dataclass(frozen=True, slots=True)
class RecentConversation:
    """A conversation as the home page lists it. The times are in microseconds."""

    id: str
    agent_id: str
    agent_name: str
    title: str | None
    user_id: str | None
    user_name: str | None
    last_message_at: int | None
    waits: bool


def waiting(
    tx: Transaction, scope: Scope, wanted: Page, which: ProposalFilter | None = None
) -> list[WaitingProposal]:
    """Return proposals that wait, newest first, of those that the caller may see."""
    return _with_owners(
        tx, stored_proposals.page(tx, scope, wanted, which or ProposalFilter(waits=True))
    )


def proposal(tx: Transaction, scope: Scope, id: str) -> WaitingProposal:
    """Return one proposal; raises NotFound."""
    return _with_owners(tx, [stored_proposals.get(tx, scope, id)])[0]


def _with_owners(tx: Transaction, found: Sequence[Proposal]) -> list[WaitingProposal]:
    owners = owners_of(tx, {one.chain_id for one in found})
    ids = _ids_of(tx, {(one.chain_id, one.label) for one in found})
    return [
        WaitingProposal(one, owners[one.chain_id], ids.get((one.chain_id, one.label)))
        for one in found
    ]


def _ids_of(tx: Transaction, named: Collection[tuple[str, str]]) -> Mapping[tuple[str, str], str]:
    """Return the ids of blocks by their chains and labels, of those that are there."""
    places = [
        and_(blocks.c.chain_id == chain_id, blocks.c.label == label) for chain_id, label in named
    ]
    statement = select(blocks.c.chain_id, blocks.c.label, blocks.c.id).where(or_(false(), *places))
    return {(row.chain_id, row.label): row.id for row in tx.all(statement)} if named else {}


def owners_of(tx: Transaction, chain_ids: Iterable[str]) -> Mapping[str, MemoryOwner]:
    name = case(
        (chains.c.owner_kind == "user", users.c.name),
        else_=func.coalesce(agents.c.name, "a shared block"),
    )
    statement = (
        select(chains.c.id, chains.c.owner_kind, chains.c.owner_id, name.label("name"))
        .outerjoin(users, and_(chains.c.owner_kind == "user", users.c.id == chains.c.owner_id))
        .outerjoin(agents, and_(chains.c.owner_kind == "agent", agents.c.id == chains.c.owner_id))
        .where(chains.c.id.in_([*chain_ids]))
    )
    return {
        row.id: MemoryOwner(row.owner_kind, row.owner_id, row.name or "")
        for row in tx.all(statement)
    }


def names_of_agents(tx: Transaction, scope: Scope, ids: Iterable[str]) -> Mapping[str, str]:
    """Return the names of these agents, of those that are there, by their ids."""
    wanted = sorted(set(ids))[:_MOST_NAMES]
    statement = select(agents.c.id, agents.c.name, agents.c.organization_id).where(
        agents.c.id.in_(wanted), *may_use(scope)
    )
    # With the organization among the conditions SQLite would read all of its agents, since an index leads there too.
    found = tx.all(statement) if wanted else ()
    return {row.id: row.name for row in found if row.organization_id == scope.organization_id}


def agents_used_last(tx: Transaction, scope: Scope, most: int) -> list[str]:
    """Return the ids of the agents of the newest runs, and then of the newest agents, of those that the caller may use."""
    by_time = (runs.c.created_at.desc(), runs.c.seq.desc())
    newest = (
        select(runs.c.agent_id)
        .where(runs.c.organization_id == scope.organization_id)
        .order_by(*by_time)
    )
    used = dict.fromkeys(row.agent_id for row in tx.all(newest.limit(_MOST_RUNS)))
    statement = select(agents.c.id).where(
        agents.c.organization_id == scope.organization_id, *may_use(scope)
    )
    made = tx.all(statement.order_by(agents.c.created_at.desc(), agents.c.seq.desc()).limit(most))
    allowed = names_of_agents(tx, scope, list(used)[:most])
    return list(dict.fromkeys([*(id for id in used if id in allowed), *(row.id for row in made)]))[
        :most
    ]


def summaries(tx: Transaction, scope: Scope, conversation_id: str, most: int) -> Sequence[Message]:
    """Return what took the place of messages that left the window, newest first, among the newest messages."""
    by_time = (messages.c.created_at.desc(), messages.c.seq.desc())
    mine = select(messages.c.id, messages.c.role).where(
        messages.c.conversation_id == conversation_id, *in_scope(messages, scope)
    )
    newest = mine.order_by(*by_time).limit(_MOST_SCANNED).subquery()
    ids = [
        row.id for row in tx.all(select(newest.c.id).where(newest.c.role == "summary").limit(most))
    ]
    return sorted(
        stored_messages.by_ids(tx, ids), key=lambda one: (one.created_at, one.seq), reverse=True
    )


def recent_conversations(
    tx: Transaction, scope: Scope, limit: int, *, waits: bool = False
) -> list[RecentConversation]:
    """Return the conversations with the newest messages; with `waits` those in which a tool call waits for approval."""
    newest = (
        select(conversations.c.seq)
        .where(
            *in_scope(conversations, scope),
            *may_use(scope, conversations.c.agent_id),
            conversations.c.deleted_at.is_(None),
            conversations.c.hidden.is_(False),
            conversations.c.last_message_at.is_not(None),
            *([conversations.c.last_stop_reason == "requires_approval"] if waits else []),
        )
        .order_by(conversations.c.last_message_at.desc(), conversations.c.seq.desc())
        .limit(limit)
    )
    # All conversations are looked at, and only those that are shown are joined with their agents and users.
    statement = (
        select(conversations, agents.c.name.label("agent_name"), users.c.name.label("user_name"))
        .join(agents, agents.c.id == conversations.c.agent_id)
        .outerjoin(users, users.c.id == conversations.c.user_id)
        .where(conversations.c.seq.in_(newest))
        .order_by(conversations.c.last_message_at.desc(), conversations.c.seq.desc())
    )
    return [
        RecentConversation(
            row.id,
            row.agent_id,
            row.agent_name,
            row.summary,
            row.user_id,
            row.user_name,
            row.last_message_at,
            row.last_stop_reason == "requires_approval",
        )
        for row in tx.all(statement)
    ]


def owners_of_blocks(
    tx: Transaction, scope: Scope, ids: Sequence[str]
) -> Mapping[str, MemoryOwner]:
    """Return whose memory these blocks belong to, by their ids."""
    statement = select(blocks.c.id, blocks.c.chain_id, blocks.c.organization_id).where(
        blocks.c.id.in_([*ids][:_MOST_NAMES])
    )
    rows = tx.all(statement) if ids else ()
    chain_of = {
        row.id: row.chain_id for row in rows if row.organization_id == scope.organization_id
    }
    owners = owners_of(tx, chain_of.values()) if chain_of else {}
    return {id: owners[chain_id] for id, chain_id in chain_of.items() if chain_id in owners}


@dataclass(frozen=True, slots=True)
class ListedBlock:
    """A block as a list shows it; `id` is empty where it is only proposed yet. `length` and `limit` are in characters."""

    id: str
    label: str
    title: str | None
    length: int
    limit: int
    policy: str
    is_untrusted: bool
    waiting: int
    path: str


@dataclass(frozen=True, slots=True)
class Person:
    """A user as the list of people shows one: how many blocks, of how many characters, and what waits."""

    user: User
    blocks: int
    characters: int
    waiting: int


def names_of_users(tx: Transaction, scope: Scope, ids: Iterable[str | None]) -> Mapping[str, str]:
    """Return the names of these users, of those that are there, by their ids."""
    wanted = sorted({id for id in ids if id})[:_MOST_NAMES]
    statement = select(users.c.id, users.c.name, users.c.organization_id).where(
        users.c.id.in_(wanted)
    )
    found = tx.all(statement) if wanted else ()
    return {row.id: row.name for row in found if row.organization_id == scope.organization_id}


def people(tx: Transaction, scope: Scope, wanted: Page, words: str) -> list[Person]:
    """Return one page of the users, with these words in their names, newest first."""
    columns = (users.c.name, users.c.identifier)
    is_named = (
        or_(*(column.icontains(words, autoescape=True) for column in columns)) if words else None
    )
    found = stored_users.ROWS.page(tx, scope, wanted, is_named, id=scope.subject_id)
    is_theirs = and_(
        chains.c.owner_kind == "user", chains.c.owner_id.in_([user.id for user in found])
    )
    sizes = select(
        chains.c.owner_id,
        func.count().label("blocks"),
        func.sum(func.length(blocks.c.value)).label("characters"),
    ).join(chains, chains.c.id == blocks.c.chain_id)
    waits = select(chains.c.owner_id, func.count().label("waiting")).join(
        chains, chains.c.id == proposals.c.chain_id
    )
    held = {row.owner_id: row for row in tx.all(sizes.where(is_theirs).group_by(chains.c.owner_id))}
    waiting = tx.all(waits.where(is_theirs, _WAITS).group_by(chains.c.owner_id))
    asked = {row.owner_id: row.waiting for row in waiting}
    return [
        Person(
            user,
            held[user.id].blocks if user.id in held else 0,
            int(held[user.id].characters or 0) if user.id in held else 0,
            asked.get(user.id, 0),
        )
        for user in found
    ]


def blocks_of_chain(tx: Transaction, owner: MemoryOwner, chain_id: str) -> list[ListedBlock]:
    """Return a user's blocks by their labels, and what is only proposed yet; what the caller may see is checked before."""
    counts = stored_proposals.waiting_counts(tx, chain_id)
    found = _listed(
        tx, blocks.c.chain_id == chain_id, lambda row: f"{owner.path}/blocks/{quote(row.label)}"
    )
    known = {one.label for one in found}
    new = [
        ListedBlock(
            "", label, None, 0, 0, "", False, waiting, f"{owner.path}/blocks/{quote(label)}"
        )
        for label, waiting in sorted(counts.items())
        if label not in known
    ]
    return found + new


def blocks_with_ids(tx: Transaction, ids: Sequence[str]) -> list[ListedBlock]:
    """Return an agent's blocks by their labels; what the caller may see is checked before."""
    return _listed(tx, blocks.c.id.in_([*ids]), lambda row: f"/ui/blocks/{row.id}") if ids else []


def _listed(
    tx: Transaction, which: ColumnElement[bool], path: Callable[[Any], str]
) -> list[ListedBlock]:
    of_block = and_(proposals.c.chain_id == blocks.c.chain_id, proposals.c.label == blocks.c.label)
    waiting = select(func.count()).select_from(proposals).where(of_block, _WAITS).scalar_subquery()
    names = ("id", "label", "title", "limit", "policy", "read_only", "is_untrusted")
    columns = (blocks.c[name] for name in names)
    statement = select(
        *columns, func.length(blocks.c.value).label("length"), waiting.label("waiting")
    )
    return [
        ListedBlock(
            row.id,
            row.label,
            row.title,
            row.length,
            row.limit,
            "read_only" if row.read_only else row.policy,
            row.is_untrusted,
            row.waiting,
            path(row),
        )
        for row in tx.all(statement.where(which).order_by(blocks.c.label).limit(_MOST_NAMES))
    ]


def deleted_labels(tx: Transaction, chain_id: str) -> list[str]:
    """Return the labels of blocks that were deleted and did not come back."""
    is_deleted = (blocks_log.c.chain_id == chain_id) & blocks_log.c.deleted_label.is_not(None)
    is_back = select(blocks.c.label).where(blocks.c.chain_id == chain_id)
    statement = select(blocks_log.c.deleted_label).distinct().where(is_deleted).limit(_MOST_NAMES)
    rows = tx.all(statement.where(blocks_log.c.deleted_label.not_in(is_back)))
    return sorted(row.deleted_label for row in rows)


def messages_of_runs(
    tx: Transaction, scope: Scope, run_ids: Iterable[str | None]
) -> Mapping[str, str]:
    """Return by run the address of the message that began it, as far as the caller may read messages."""
    wanted = sorted({id for id in run_ids if id})[:_MOST_NAMES]
    if not wanted or not scope.may("messages:read"):
        return {}
    is_first = select(func.min(messages.c.seq)).where(
        messages.c.run_id.in_(wanted), messages.c.role == "user"
    )
    columns = (messages.c[name] for name in ("run_id", "agent_id", "conversation_id", "id"))
    statement = select(*columns).where(messages.c.seq.in_(is_first.group_by(messages.c.run_id)))
    return {
        row.run_id: f"/ui/agents/{row.agent_id}/chat?conversation={row.conversation_id}&message={row.id}"
        for row in tx.all(statement.where(*in_scope(messages, scope)))
    }


def memory_in_numbers(tx: Transaction, user_id: str, chain_id: str) -> Mapping[str, int]:
    """Return how much there is of a user, by its name for people; what the caller may see is checked before."""
    of_chain = select(chains.c.versions).where(chains.c.id == chain_id)
    counted = {
        "blocks": blocks.c.chain_id == chain_id,
        "proposals": proposals.c.chain_id == chain_id,
        "conversations": and_(
            conversations.c.user_id == user_id, conversations.c.deleted_at.is_(None)
        ),
        "messages": messages.c.conversation_id.in_(
            select(conversations.c.id).where(conversations.c.user_id == user_id)
        ),
        "passages": passages.c.user_id == user_id,
        "remotes": memory_remotes.c.chain_id == chain_id,
    }
    found = {"versions": of_chain.scalar_subquery()} | {
        name: select(func.count()).where(which).scalar_subquery() for name, which in counted.items()
    }
    row = tx.all(select(*(column.label(name) for name, column in found.items())))[0]
    return {name: getattr(row, name) or 0 for name in ("blocks", *found)}


@dataclass(frozen=True, slots=True)
class RunChanges:
    """What a run did to memory: labels of whose blocks it changed, and proposals that wait since. `users` may undo it."""

    applied: Sequence[tuple[MemoryOwner, str]]
    proposed: Sequence[WaitingProposal]

    @property
    def users(self) -> list[MemoryOwner]:
        return list(dict.fromkeys(owner for owner, _ in self.applied if owner.kind == "user"))


def changes_of_runs(
    tx: Transaction, scope: Scope, run_ids: Iterable[str]
) -> Mapping[str, RunChanges]:
    """Return what each of these runs changed in memory that the caller may see, and what it proposed that waits."""
    ids = sorted(set(run_ids))[:_MOST_NAMES]
    rows = history.of_runs(tx, scope, ids, _MOST_NAMES)
    owners = owners_of(tx, {row.chain_id for row in rows}) if rows else {}
    waits = stored_proposals.of_runs(tx, scope, ids)
    proposed = _with_owners(tx, waits) if waits else []
    return {
        id: RunChanges(
            list(
                dict.fromkeys((owners[row.chain_id], row.label) for row in rows if row.run_id == id)
            ),
            [one for one in proposed if one.proposal.run_id == id],
        )
        for id in ids
    }


def pages_of_blocks(tx: Transaction, found: Sequence[BlockVersion]) -> Mapping[bytes, str]:
    """Return by the id of a version the page of its block as it was then, of those whose block or person is there."""
    owners = owners_of(tx, {one.chain_id for one in found}) if found else {}
    ids = _ids_of(tx, {(one.chain_id, one.label) for one in found})
    pages = {}
    for one in found:
        owner, id = owners.get(one.chain_id), ids.get((one.chain_id, one.label))
        if owner and owner.kind == "user":
            pages[one.id] = f"{owner.path}/blocks/{quote(one.label)}/versions/{one.id.hex()}"
        elif id:
            pages[one.id] = f"/ui/blocks/{id}/versions/{one.id.hex()}"
    return pages
