"""What pages show of several things at once, in one statement each, where the API would be asked once a row."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import and_, case, false, func, or_, select

from ricordo.domain.scope import Scope
from ricordo.domain.version import Proposal
from ricordo.storage import proposals as stored_proposals
from ricordo.storage.agent_access import may_use
from ricordo.storage.engine.repository import Page, seen_by
from ricordo.storage.engine.store import Transaction
from ricordo.storage.proposals import ProposalFilter
from ricordo.storage.schema.core_tables import agents, conversations, users
from ricordo.storage.schema.memory_tables import blocks, chains

# A list of agents' names in one statement.
_MOST_NAMES = 500


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
        return (
            f"{home if self.owner.kind == 'user' else f'/v1/blocks/{self.block_id}'}/diffs/{self.proposal.id}/{action}"
        )


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


def waiting(tx: Transaction, scope: Scope, wanted: Page, which: ProposalFilter | None = None) -> list[WaitingProposal]:
    """Return proposals that wait, newest first, of those that the caller may see."""
    return _with_owners(tx, stored_proposals.page(tx, scope, wanted, which or ProposalFilter(waits=True)))


def proposal(tx: Transaction, scope: Scope, id: str) -> WaitingProposal:
    """Return one proposal; raises NotFound."""
    return _with_owners(tx, [stored_proposals.get(tx, scope, id)])[0]


def _with_owners(tx: Transaction, found: Sequence[Proposal]) -> list[WaitingProposal]:
    owners = owners_of(tx, {one.chain_id for one in found})
    places = [and_(blocks.c.chain_id == one.chain_id, blocks.c.label == one.label) for one in found]
    statement = select(blocks.c.chain_id, blocks.c.label, blocks.c.id).where(or_(false(), *places))
    ids = {(row.chain_id, row.label): row.id for row in tx.all(statement)} if found else {}
    return [WaitingProposal(one, owners[one.chain_id], ids.get((one.chain_id, one.label))) for one in found]


def owners_of(tx: Transaction, chain_ids: Iterable[str]) -> Mapping[str, MemoryOwner]:
    name = case((chains.c.owner_kind == "user", users.c.name), else_=func.coalesce(agents.c.name, "a shared block"))
    statement = (
        select(chains.c.id, chains.c.owner_kind, chains.c.owner_id, name.label("name"))
        .outerjoin(users, and_(chains.c.owner_kind == "user", users.c.id == chains.c.owner_id))
        .outerjoin(agents, and_(chains.c.owner_kind == "agent", agents.c.id == chains.c.owner_id))
        .where(chains.c.id.in_([*chain_ids]))
    )
    return {row.id: MemoryOwner(row.owner_kind, row.owner_id, row.name or "") for row in tx.all(statement)}


def names_of_agents(tx: Transaction, scope: Scope, ids: Iterable[str]) -> Mapping[str, str]:
    """Return the names of these agents, of those that are there, by their ids."""
    wanted = sorted(set(ids))[:_MOST_NAMES]
    statement = select(agents.c.id, agents.c.name).where(
        agents.c.organization_id == scope.organization_id, agents.c.id.in_(wanted)
    )
    return {row.id: row.name for row in tx.all(statement)} if wanted else {}


def recent_conversations(tx: Transaction, scope: Scope, limit: int, *, waits: bool = False) -> list[RecentConversation]:
    """Return the conversations with the newest messages; with `waits` those in which a tool call waits for approval."""
    statement = (
        select(conversations, agents.c.name.label("agent_name"), users.c.name.label("user_name"))
        .join(agents, agents.c.id == conversations.c.agent_id)
        .outerjoin(users, users.c.id == conversations.c.user_id)
        .where(
            agents.c.organization_id == scope.organization_id,
            *([] if scope.subject_id is None else seen_by(conversations, scope.subject_id)),
            *may_use(scope),
            conversations.c.deleted_at.is_(None),
            conversations.c.hidden.is_(False),
            conversations.c.last_message_at.is_not(None),
            *([conversations.c.last_stop_reason == "requires_approval"] if waits else []),
        )
        .order_by(conversations.c.last_message_at.desc(), conversations.c.seq.desc())
        .limit(limit)
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


def owners_of_blocks(tx: Transaction, scope: Scope, ids: Sequence[str]) -> Mapping[str, MemoryOwner]:
    """Return whose memory these blocks belong to, by their ids."""
    statement = select(blocks.c.id, blocks.c.chain_id).where(
        blocks.c.organization_id == scope.organization_id, blocks.c.id.in_([*ids][:_MOST_NAMES])
    )
    chain_of = {row.id: row.chain_id for row in tx.all(statement)} if ids else {}
    owners = owners_of(tx, chain_of.values()) if chain_of else {}
    return {id: owners[chain_id] for id, chain_id in chain_of.items() if chain_id in owners}
