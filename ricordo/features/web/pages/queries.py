"""Queries of pages that show several things at once, one statement each.

The API would have to be called once for each row.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from sqlalchemy import ColumnElement, String, and_, case, cast, false, func, or_, select

from ricordo.domain.block import NEVER_REMEMBER, OwnerKind
from ricordo.domain.message import Message, TextPart
from ricordo.domain.scope import Scope, User
from ricordo.domain.version import BlockVersion, Proposal
from ricordo.errors import RicordoError
from ricordo.features.web.pages.memory_text import without_day
from ricordo.memory.course_blocks import COPY, FOR_ALL
from ricordo.storage import blocks as stored_blocks
from ricordo.storage import history
from ricordo.storage import messages as stored_messages
from ricordo.storage import proposals as stored_proposals
from ricordo.storage import users as stored_users
from ricordo.storage.agent_access import may_use
from ricordo.storage.engine.repository import Page, in_scope
from ricordo.storage.engine.store import Transaction
from ricordo.storage.proposals import WAITS, ProposalFilter
from ricordo.storage.schema.core_tables import (
    agents,
    conversations,
    messages,
    passages,
    runs,
    users,
)
from ricordo.storage.schema.memory_tables import (
    agents_blocks,
    blocks,
    blocks_log,
    chains,
    memory_remotes,
    proposals,
)

# A list of agents' names in one statement.
_MOST_NAMES = 500
_MOST_RUNS = 1000  # newest runs whose agents count as recently used
_MOST_SCANNED = 5000  # newest messages of a conversation that are searched for summaries


@dataclass(frozen=True, slots=True)
class MemoryOwner:
    """The owner of a chain's memory; `path` is the page of that memory."""

    kind: OwnerKind
    id: str
    name: str

    @property
    def path(self) -> str:
        return f"/ui/people/{self.id}" if self.kind == "user" else f"/ui/agents/{self.id}/memory"


@dataclass(frozen=True, slots=True)
class WaitingProposal:
    """A proposal with the owner of its memory, and its block if that exists."""

    proposal: Proposal
    owner: MemoryOwner
    block_id: str | None

    def path(self, action: str) -> str:
        """Return the API's path for a decision: `approve` or `reject`."""
        block = f"/v1/blocks/{self.block_id}"
        if self.owner.kind == "user":
            block = f"/users/{self.owner.id}/blocks/{self.proposal.label}"
        return f"{block}/diffs/{self.proposal.id}/{action}"


@dataclass(frozen=True, slots=True)
class RecentConversation:
    """A conversation in the list of the home page. Times are in microseconds."""

    id: str
    agent_id: str
    agent_name: str
    title: str | None
    user_id: str | None
    user_name: str | None
    last_message_at: int | None
    waits: bool


def waiting(
    tx: Transaction, scope: Scope, page: Page, proposal_filter: ProposalFilter | None = None
) -> list[WaitingProposal]:
    """Return waiting proposals that the caller may see, newest first."""
    proposal_filter = proposal_filter or ProposalFilter(waits=True)
    return _with_owners(tx, stored_proposals.page(tx, scope, page, proposal_filter))


def undo_of_approval(tx: Transaction, scope: Scope, proposal_ids: Sequence[str]) -> str:
    """Return the address to which a page posts to undo the approval of these proposals.

    It is read before the decision. Undoing gives the block its present text again, or removes a new
    block. Empty where the proposals are of several blocks.
    """
    try:
        found = [proposal(tx, scope, id) for id in proposal_ids]
    except RicordoError:
        return ""
    if len({(waiting.owner.path, waiting.proposal.label) for waiting in found}) != 1:
        return ""
    owner, label, block_id = found[0].owner, found[0].proposal.label, found[0].block_id
    block = stored_blocks.get(tx, scope, block_id) if block_id else None
    if block is None:
        return f"{owner.path}/remove/{quote(label)}" if owner.kind == "user" else ""
    if block.head is None:
        return ""
    page = f"/ui/blocks/{block.id}"
    if owner.kind == "user":
        page = f"{owner.path}/blocks/{quote(label)}"
    return f"{page}/restore?sha={block.head.hex()}"


@dataclass(frozen=True, slots=True)
class WaitingCount:
    """The number of changes that wait for one owner."""

    owner: MemoryOwner
    count: int


def waiting_by_owner(
    tx: Transaction, scope: Scope, limit: int, *, without: str | None = None
) -> list[WaitingCount]:
    """Return the owners for whom changes wait, most first, by one statement.

    `without` is the id of a user who is left out.
    """
    name = case(
        (chains.c.owner_kind == "user", users.c.name),
        else_=func.coalesce(agents.c.name, "a shared block"),
    )
    count = func.count()
    columns = (chains.c.owner_kind, chains.c.owner_id, name.label("name"))
    statement = (
        select(*columns, count.label("waiting"))
        .select_from(proposals)
        .join(chains, chains.c.id == proposals.c.chain_id)
        .outerjoin(users, and_(chains.c.owner_kind == "user", users.c.id == chains.c.owner_id))
        .outerjoin(agents, and_(chains.c.owner_kind == "agent", agents.c.id == chains.c.owner_id))
        .where(*in_scope(proposals, scope), WAITS)
        .group_by(chains.c.owner_kind, chains.c.owner_id, users.c.name, agents.c.name)
        .order_by(count.desc(), chains.c.owner_id)
        .limit(limit)
    )
    if without is not None:
        statement = statement.where(chains.c.owner_id != without)
    return [
        WaitingCount(MemoryOwner(row.owner_kind, row.owner_id, row.name or ""), row.waiting)
        for row in tx.all(statement)
    ]


@dataclass(frozen=True, slots=True)
class ExpectedBlock:
    """A block that an agent of a course will keep about a user, once they talk."""

    agent_id: str
    agent_name: str
    label: str
    title: str | None
    description: str | None


def expected_blocks(
    tx: Transaction, scope: Scope, user: User, labels: Collection[str], limit: int
) -> list[ExpectedBlock]:
    """Return the blocks that courses will keep about a user, without those with these labels."""
    users_scope = replace(scope, subject_id=user.id, role="user")
    statement = (
        select(
            agents.c.id,
            agents.c.name,
            blocks.c.label,
            blocks.c.title,
            blocks.c.description,
            blocks.c.metadata,
        )
        .join(agents_blocks, agents_blocks.c.block_id == blocks.c.id)
        .join(agents, agents.c.id == agents_blocks.c.agent_id)
        .where(
            agents.c.organization_id == scope.organization_id,
            *may_use(users_scope),
            agents.c.hidden.is_(False),
            blocks.c.shared.is_(False),
            cast(blocks.c.metadata, String).contains(FOR_ALL),
            blocks.c.label.not_in([*labels]),
        )
        .order_by(agents.c.seq, agents_blocks.c.seq)
        .limit(limit)
    )
    return [
        ExpectedBlock(row.id, row.name, row.label, row.title, row.description)
        for row in tx.all(statement)
        if row.metadata.get(COPY) == FOR_ALL
    ]


@dataclass(frozen=True, slots=True)
class SourceMessage:
    """The message that began a run: its page, and its text."""

    path: str
    text: str


def source_of_run(tx: Transaction, scope: Scope, run_id: str | None) -> SourceMessage | None:
    """Return the message that began a run, if the caller may read it."""
    path = messages_of_runs(tx, scope, [run_id]).get(run_id or "")
    if path is None:
        return None
    message = stored_messages.by_ids(tx, [path.rpartition("=")[2]])[0]
    texts = [part.text for part in message.parts if isinstance(part, TextPart)]
    return SourceMessage(path, "\n".join(texts))


def proposal(tx: Transaction, scope: Scope, id: str) -> WaitingProposal:
    """Return one proposal; raises NotFound."""
    return _with_owners(tx, [stored_proposals.get(tx, scope, id)])[0]


def _with_owners(tx: Transaction, waiting: Sequence[Proposal]) -> list[WaitingProposal]:
    owners = owners_of(tx, {proposal.chain_id for proposal in waiting})
    ids = _ids_of(tx, {(proposal.chain_id, proposal.label) for proposal in waiting})
    return [
        WaitingProposal(
            proposal, owners[proposal.chain_id], ids.get((proposal.chain_id, proposal.label))
        )
        for proposal in waiting
    ]


def _ids_of(tx: Transaction, keys: Collection[tuple[str, str]]) -> Mapping[tuple[str, str], str]:
    """Return the ids of existing blocks by their chain and label."""
    if not keys:
        return {}
    conditions = [
        and_(blocks.c.chain_id == chain_id, blocks.c.label == label) for chain_id, label in keys
    ]
    statement = select(blocks.c.chain_id, blocks.c.label, blocks.c.id)
    rows = tx.all(statement.where(or_(false(), *conditions)))
    return {(row.chain_id, row.label): row.id for row in rows}


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
    """Return the names of existing agents by their ids."""
    agent_ids = sorted(set(ids))[:_MOST_NAMES]
    statement = select(agents.c.id, agents.c.name, agents.c.organization_id).where(
        agents.c.id.in_(agent_ids), *may_use(scope)
    )
    # The organization is checked here: as a condition it would make SQLite use the index of the
    # organization, and read all of its agents.
    if not agent_ids:
        return {}
    rows = tx.all(statement)
    return {row.id: row.name for row in rows if row.organization_id == scope.organization_id}


def agents_used_last(tx: Transaction, scope: Scope, limit: int) -> list[str]:
    """Return the ids of recently used agents, then of the newest agents.

    Only agents that the caller may use are returned.
    """
    by_time = (runs.c.created_at.desc(), runs.c.seq.desc())
    newest = (
        select(runs.c.agent_id)
        .where(runs.c.organization_id == scope.organization_id)
        .order_by(*by_time)
    )
    recent = dict.fromkeys(row.agent_id for row in tx.all(newest.limit(_MOST_RUNS)))
    statement = select(agents.c.id).where(
        agents.c.organization_id == scope.organization_id, *may_use(scope)
    )
    newest_agents = tx.all(
        statement.order_by(agents.c.created_at.desc(), agents.c.seq.desc()).limit(limit)
    )
    allowed = names_of_agents(tx, scope, list(recent)[:limit])
    ids = [*(id for id in recent if id in allowed), *(row.id for row in newest_agents)]
    return list(dict.fromkeys(ids))[:limit]


def summaries(tx: Transaction, scope: Scope, conversation_id: str, limit: int) -> Sequence[Message]:
    """Return summaries of messages that left the window, newest first.

    Only the newest messages are searched.
    """
    by_time = (messages.c.created_at.desc(), messages.c.seq.desc())
    own_messages = select(messages.c.id, messages.c.role).where(
        messages.c.conversation_id == conversation_id, *in_scope(messages, scope)
    )
    newest = own_messages.order_by(*by_time).limit(_MOST_SCANNED).subquery()
    ids = [
        row.id for row in tx.all(select(newest.c.id).where(newest.c.role == "summary").limit(limit))
    ]
    return sorted(
        stored_messages.by_ids(tx, ids),
        key=lambda message: (message.created_at, message.seq),
        reverse=True,
    )


def recent_conversations(
    tx: Transaction, scope: Scope, limit: int, *, waits: bool = False, is_own: bool = False
) -> list[RecentConversation]:
    """Return the conversations with the newest messages.

    With `waits` only those in which a tool call waits for approval, with `is_own` only those of the
    caller.
    """
    own_id = scope.subject or scope.user_id
    newest = (
        select(conversations.c.seq)
        .where(
            *in_scope(conversations, scope),
            *may_use(scope, conversations.c.agent_id),
            conversations.c.deleted_at.is_(None),
            # A user's first conversation with an agent is hidden, since only its agent names it.
            or_(
                conversations.c.hidden.is_(False),
                and_(
                    conversations.c.user_id == own_id,
                    conversations.c.forked_from.is_(None),
                ),
            ),
            conversations.c.last_message_at.is_not(None),
            *([conversations.c.last_stop_reason == "requires_approval"] if waits else []),
            *([conversations.c.user_id == own_id] if is_own else []),
        )
        .order_by(conversations.c.last_message_at.desc(), conversations.c.seq.desc())
        .limit(limit)
    )
    # Only the shown conversations are joined with their agents and users.
    statement = (
        select(conversations, agents.c.name.label("agent_name"), users.c.name.label("user_name"))
        .join(agents, agents.c.id == conversations.c.agent_id)
        .outerjoin(users, users.c.id == conversations.c.user_id)
        .where(conversations.c.seq.in_(newest))
        .order_by(conversations.c.last_message_at.desc(), conversations.c.seq.desc())
    )
    return [
        RecentConversation(
            id=row.id,
            agent_id=row.agent_id,
            agent_name=row.agent_name,
            title=row.summary,
            user_id=row.user_id,
            user_name=row.user_name,
            last_message_at=row.last_message_at,
            waits=row.last_stop_reason == "requires_approval",
        )
        for row in tx.all(statement)
    ]


def owners_of_blocks(
    tx: Transaction, scope: Scope, ids: Sequence[str]
) -> Mapping[str, MemoryOwner]:
    """Return the owners of these blocks' memory by block id."""
    statement = select(blocks.c.id, blocks.c.chain_id, blocks.c.organization_id).where(
        blocks.c.id.in_([*ids][:_MOST_NAMES])
    )
    if not ids:
        return {}
    rows = tx.all(statement)
    chain_of = {
        row.id: row.chain_id for row in rows if row.organization_id == scope.organization_id
    }
    owners = owners_of(tx, chain_of.values()) if chain_of else {}
    return {id: owners[chain_id] for id, chain_id in chain_of.items() if chain_id in owners}


@dataclass(frozen=True, slots=True)
class ListedBlock:
    """A block in a list; `id` is empty if it is only proposed.

    `length` and `limit` are in characters.
    """

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
    """A user in the list of people, with the size of their memory.

    `waiting` is the number of waiting proposals.
    """

    user: User
    blocks: int
    characters: int
    waiting: int


def names_of_users(tx: Transaction, scope: Scope, ids: Iterable[str | None]) -> Mapping[str, str]:
    """Return the names of existing users by their ids."""
    user_ids = sorted({id for id in ids if id})[:_MOST_NAMES]
    statement = select(users.c.id, users.c.name, users.c.organization_id).where(
        users.c.id.in_(user_ids)
    )
    if not user_ids:
        return {}
    rows = tx.all(statement)
    return {row.id: row.name for row in rows if row.organization_id == scope.organization_id}


def people(tx: Transaction, scope: Scope, page: Page, search_text: str) -> list[Person]:
    """Return one page of the users with this text in their names, newest first."""
    columns = (users.c.name, users.c.identifier)
    is_named = None
    if search_text:
        is_named = or_(*(column.icontains(search_text, autoescape=True) for column in columns))
    found_users = stored_users.ROWS.page(tx, scope, page, is_named, id=scope.subject_id)
    is_theirs = and_(
        chains.c.owner_kind == "user", chains.c.owner_id.in_([user.id for user in found_users])
    )
    sizes = select(
        chains.c.owner_id,
        func.count().label("blocks"),
        func.sum(func.length(blocks.c.value)).label("characters"),
    ).join(chains, chains.c.id == blocks.c.chain_id)
    waits = select(chains.c.owner_id, func.count().label("waiting")).join(
        chains, chains.c.id == proposals.c.chain_id
    )
    size_rows = tx.all(sizes.where(is_theirs).group_by(chains.c.owner_id))
    waiting_rows = tx.all(waits.where(is_theirs, WAITS).group_by(chains.c.owner_id))
    block_counts = {row.owner_id: row.blocks for row in size_rows}
    characters = {row.owner_id: int(row.characters or 0) for row in size_rows}
    waiting_counts = {row.owner_id: row.waiting for row in waiting_rows}
    return [
        Person(
            user,
            blocks=block_counts.get(user.id, 0),
            characters=characters.get(user.id, 0),
            waiting=waiting_counts.get(user.id, 0),
        )
        for user in found_users
    ]


def blocks_of_chain(tx: Transaction, owner: MemoryOwner, chain_id: str) -> list[ListedBlock]:
    """Return a user's blocks by label, and labels that are only proposed.

    The caller's access is checked before.
    """
    counts = stored_proposals.waiting_counts(tx, chain_id)
    existing = _listed(
        tx,
        and_(blocks.c.chain_id == chain_id, blocks.c.label != NEVER_REMEMBER),
        lambda row: f"{owner.path}/blocks/{quote(row.label)}",
    )
    labels = {block.label for block in existing}
    proposed = [
        ListedBlock(
            id="",
            label=label,
            title=None,
            length=0,
            limit=0,
            policy="",
            is_untrusted=False,
            waiting=waiting,
            path=f"{owner.path}/blocks/{quote(label)}",
        )
        for label, waiting in sorted(counts.items())
        if label not in labels
    ]
    return existing + proposed


def blocks_with_ids(tx: Transaction, ids: Sequence[str]) -> list[ListedBlock]:
    """Return an agent's blocks by label.

    The caller's access is checked before.
    """
    return _listed(tx, blocks.c.id.in_([*ids]), lambda row: f"/ui/blocks/{row.id}") if ids else []


def _listed(
    tx: Transaction, condition: ColumnElement[bool], path: Callable[[Any], str]
) -> list[ListedBlock]:
    of_block = and_(proposals.c.chain_id == blocks.c.chain_id, proposals.c.label == blocks.c.label)
    waiting = select(func.count()).select_from(proposals).where(of_block, WAITS).scalar_subquery()
    names = ("id", "label", "title", "limit", "policy", "read_only", "is_untrusted")
    columns = (blocks.c[name] for name in names)
    statement = select(
        *columns, func.length(blocks.c.value).label("length"), waiting.label("waiting")
    )
    return [
        ListedBlock(
            id=row.id,
            label=row.label,
            title=row.title,
            length=row.length,
            limit=row.limit,
            policy="read_only" if row.read_only else row.policy,
            is_untrusted=row.is_untrusted,
            waiting=row.waiting,
            path=path(row),
        )
        for row in tx.all(statement.where(condition).order_by(blocks.c.label).limit(_MOST_NAMES))
    ]


def first_lines(tx: Transaction, chain_id: str, limit: int) -> list[str]:
    """Return the first lines of a user's memory, without headings; those about the person first."""
    is_about = case((blocks.c.label.in_(["human", "user", "student", "person"]), 0), else_=1)
    statement = (
        select(func.substr(blocks.c.value, 1, 2_000).label("text"))
        .where(blocks.c.chain_id == chain_id, blocks.c.label != NEVER_REMEMBER)
        .order_by(is_about, blocks.c.label)
        .limit(limit)
    )
    lines: list[str] = []
    for row in tx.all(statement):
        for line in row.text.split("\n"):
            if line.strip() and not line.startswith("#"):
                lines.append(without_day(line)[1].lstrip(" -*").strip())
    return lines[:limit]


def deleted_labels(tx: Transaction, chain_id: str) -> list[str]:
    """Return the labels of deleted blocks that did not come back."""
    is_deleted = (blocks_log.c.chain_id == chain_id) & blocks_log.c.deleted_label.is_not(None)
    is_back = select(blocks.c.label).where(blocks.c.chain_id == chain_id)
    statement = select(blocks_log.c.deleted_label).distinct().where(is_deleted).limit(_MOST_NAMES)
    rows = tx.all(statement.where(blocks_log.c.deleted_label.not_in(is_back)))
    return sorted(row.deleted_label for row in rows)


def messages_of_runs(
    tx: Transaction, scope: Scope, run_ids: Iterable[str | None]
) -> Mapping[str, str]:
    """Return by run the page of the message that began it.

    It is empty for a caller who may not read messages.
    """
    ids = sorted({id for id in run_ids if id})[:_MOST_NAMES]
    if not ids or not scope.may("messages:read"):
        return {}
    # Events are user messages that the server wrote. A database may put a space after the colon.
    parts = cast(messages.c.parts, String)
    is_said = ~or_(parts.contains('"kind":"event"'), parts.contains('"kind": "event"'))
    is_first = select(func.min(messages.c.seq)).where(
        messages.c.run_id.in_(ids), messages.c.role == "user", is_said
    )
    columns = (messages.c[name] for name in ("run_id", "agent_id", "conversation_id", "id"))
    statement = select(*columns).where(messages.c.seq.in_(is_first.group_by(messages.c.run_id)))
    rows = tx.all(statement.where(*in_scope(messages, scope)))
    return {
        row.run_id: (
            f"/ui/agents/{row.agent_id}/chat?conversation={row.conversation_id}&message={row.id}"
        )
        for row in rows
    }


def memory_in_numbers(tx: Transaction, user_id: str, chain_id: str) -> Mapping[str, int]:
    """Return the number of a user's versions, blocks, messages and the like.

    The caller's access is checked before.
    """
    of_chain = select(chains.c.versions).where(chains.c.id == chain_id)
    conditions = {
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
    columns = {"versions": of_chain.scalar_subquery()}
    for name, condition in conditions.items():
        columns[name] = select(func.count()).where(condition).scalar_subquery()
    row = tx.all(select(*(column.label(name) for name, column in columns.items())))[0]
    return {name: getattr(row, name) or 0 for name in ("blocks", *columns)}


@dataclass(frozen=True, slots=True)
class RunChanges:
    """The changes of a run in memory: labels by owner, and waiting proposals.

    `users` are the owners whose changes can be undone.
    """

    applied: Sequence[tuple[MemoryOwner, str]]
    proposed: Sequence[WaitingProposal]

    @property
    def users(self) -> list[MemoryOwner]:
        return list(dict.fromkeys(owner for owner, _ in self.applied if owner.kind == "user"))


def changes_of_runs(
    tx: Transaction, scope: Scope, run_ids: Iterable[str]
) -> Mapping[str, RunChanges]:
    """Return the changes of each run in memory that the caller may see."""
    ids = sorted(set(run_ids))[:_MOST_NAMES]
    rows = history.of_runs(tx, scope, ids, _MOST_NAMES)
    owners = owners_of(tx, {row.chain_id for row in rows}) if rows else {}
    waits = stored_proposals.of_runs(tx, scope, ids)
    proposed = _with_owners(tx, waits) if waits else []
    changes = {}
    for id in ids:
        labels = [(owners[row.chain_id], row.label) for row in rows if row.run_id == id]
        waiting_since = [entry for entry in proposed if entry.proposal.run_id == id]
        changes[id] = RunChanges(list(dict.fromkeys(labels)), waiting_since)
    return changes


def proposal_states(
    tx: Transaction, scope: Scope, run_ids: Iterable[str]
) -> Mapping[tuple[str, str], str]:
    """Return the states of the proposals that runs made, by step and label."""
    ids = sorted(set(run_ids))[:_MOST_NAMES]
    columns = (proposals.c[name] for name in ("step_id", "label", "status"))
    statement = select(*columns).where(*in_scope(proposals, scope), proposals.c.run_id.in_(ids))
    return {
        (row.step_id, row.label): row.status for row in tx.all(statement.order_by(proposals.c.seq))
    }


def users_of_conversations(
    tx: Transaction, scope: Scope, ids: Iterable[str | None]
) -> Mapping[str, tuple[str | None, str]]:
    """Return the id and name of each conversation's user; no id for a shared conversation."""
    conversation_ids = sorted({id for id in ids if id})[:_MOST_NAMES]
    if not conversation_ids:
        return {}
    statement = select(conversations.c.id, conversations.c.user_id)
    is_one = conversations.c.id.in_(conversation_ids)
    rows = tx.all(statement.where(*in_scope(conversations, scope), is_one))
    names = names_of_users(tx, scope, [row.user_id for row in rows])
    return {row.id: (row.user_id, names.get(row.user_id, "")) for row in rows}


def pages_of_blocks(tx: Transaction, block_versions: Sequence[BlockVersion]) -> Mapping[bytes, str]:
    """Return by version id the page of its block at that version.

    Versions whose block or person does not exist are left out.
    """
    owners = (
        owners_of(tx, {version.chain_id for version in block_versions}) if block_versions else {}
    )
    ids = _ids_of(tx, {(version.chain_id, version.label) for version in block_versions})
    pages = {}
    for version in block_versions:
        owner = owners.get(version.chain_id)
        id = ids.get((version.chain_id, version.label))
        if owner and owner.kind == "user":
            pages[version.id] = (
                f"{owner.path}/blocks/{quote(version.label)}/versions/{version.id.hex()}"
            )
        elif id:
            pages[version.id] = f"/ui/blocks/{id}/versions/{version.id.hex()}"
    return pages
