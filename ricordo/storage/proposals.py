"""Proposals: changes of memory that wait for the owner. Agents' reads never see them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Row,
    Select,
    Subquery,
    bindparam,
    case,
    func,
    insert,
    literal_column,
    select,
    update,
)

from ricordo.domain.block import require_no_secret
from ricordo.domain.git_objects import blob_id
from ricordo.domain.quotas import size_of
from ricordo.domain.redaction import redact, redact_values
from ricordo.domain.scope import Actor, Scope
from ricordo.domain.version import Proposal, ProposalStatus
from ricordo.storage import versions
from ricordo.storage.engine.repository import (
    Page,
    Repository,
    equal,
    in_scope,
    known_to,
    read_page,
    require_found,
    seen_by,
)
from ricordo.storage.engine.store import Transaction
from ricordo.storage.history_size import grow
from ricordo.storage.schema.core_tables import users
from ricordo.storage.schema.history_sum import ROW_BYTES
from ricordo.storage.schema.memory_tables import chains, proposals
from ricordo.storage.skill_labels import is_skill_label

_ROWS = Repository(Proposal, proposals)
_SELECT = select(*_ROWS.columns, proposals.c.base_blob, proposals.c.blob)
_BY_ID = _SELECT.where(equal(proposals, "id", "organization_id"))
_LOCK = select(proposals.c.id).where(equal(proposals, "id")).with_for_update()
_BY_ID_FOR_ONE = _BY_ID.where(*seen_by(proposals, bindparam("subject_id")))
_OF_STEP = _SELECT.where(equal(proposals, "step_id", "organization_id")).order_by(proposals.c.seq)
# The condition that a proposal waits for its owner. It contains no parameters: with them a database
# would not recognize the condition of the index `proposals_waiting`.
WAITS = proposals.c.status.in_([literal_column("'open'"), literal_column("'conflicted'")])
# The condition that an owner has not decided on a proposal, which waits or has expired.
IS_UNDECIDED = proposals.c.status.in_(("open", "conflicted", "expired"))
_IN_CHAIN = equal(proposals, "chain_id") & WAITS
_MOST_DECIDED = 10_000  # the newest decided proposals, whose times are read
_WAITING = _SELECT.where(_IN_CHAIN).order_by(proposals.c.seq)
_WAITING_BY = _WAITING.where(equal(proposals, "label", "author_kind", "author_id"))
_REJECTED_BY = (
    _SELECT.where(
        equal(proposals, "chain_id", "label", "author_kind", "author_id"),
        proposals.c.status == "rejected",
        proposals.c.resolved_at >= bindparam("since"),
    )
    .order_by(proposals.c.resolved_at.desc())
    .limit(bindparam("limit"))
)
_WAITING_IDS = (
    select(proposals.c.id)
    .where(_IN_CHAIN)
    # Applying a proposal with a conflict would conflict again, so these come last.
    .order_by(case((proposals.c.status == "open", 0), else_=1), proposals.c.seq)
    .limit(bindparam("limit"))
)
_COUNTS = (
    select(proposals.c.label, func.count().label("waiting"))
    .where(_IN_CHAIN)
    .group_by(proposals.c.label)
)
_COUNTS_BY = _COUNTS.where(equal(proposals, "author_kind", "author_id"))
_DUE = select(proposals.c.id).where(WAITS, proposals.c.expires_at <= bindparam("now")).limit(500)
# A new proposal is compared with the author's newest rejected proposals for the block, up to this
# number.
_REMEMBERED_REJECTIONS = 50
# Proposals of a bounded page whose texts are read at once.
_READ_AT_ONCE = 8
# Note of proposals that expired with their deleted block; they reopen if it is restored.
DELETED = "The block was deleted."
_OF_LABEL = (
    proposals.c.chain_id == bindparam("of_chain"),
    proposals.c.label == bindparam("old_label"),
)
_END_DELETED = (
    update(proposals)
    .where(*_OF_LABEL, WAITS)
    .values(status="expired", note=DELETED, resolved_at=bindparam("now"))
)
_REOPEN = (
    update(proposals)
    .where(*_OF_LABEL, proposals.c.status == "expired", proposals.c.note == DELETED)
    .values(status="open", note=None, resolved_at=None)
)
_FOLLOW = update(proposals).where(*_OF_LABEL, WAITS).values(label=bindparam("relabelled"))
_INSERT = insert(proposals)
settle = _ROWS.updates(
    *("status", "resolved_at", "resolved_by", "note", "result", "superseded_by", "is_untold"),
    locked="chain_id",
)
set_egress = _ROWS.updates("egress", locked="chain_id")
_IS_UNTOLD = (
    proposals.c.is_untold
    & (proposals.c.status == "rejected")
    & (proposals.c.author_kind == "agent")
    & (proposals.c.author_id == bindparam("agent_id"))
    & proposals.c.chain_id.in_(
        select(chains.c.id).where(
            chains.c.owner_kind == "user", chains.c.owner_id == bindparam("user_id")
        )
    )
)
_UNTOLD = (
    select(proposals.c.id, proposals.c.chain_id, proposals.c.label, proposals.c.note)
    .where(_IS_UNTOLD)
    .order_by(proposals.c.resolved_at, proposals.c.seq)
    .limit(bindparam("limit"))
    # Of two turns that start at once, the second leaves out the rows that the first has marked.
    .with_for_update()
)
_ANY_UNTOLD = select(proposals.c.seq).where(_IS_UNTOLD).limit(1)


@dataclass(frozen=True, slots=True)
class ProposalFilter:
    """A filter of proposals; None matches any.

    Attributes:
        chain_id: The chain of the memory.
        label: The block's label.
        status: The status of the proposal.
        author_id: The id of the author, such as an agent.
        run_id: The run that made the proposal.
        waits: Only proposals that the owner can still decide on.
    """

    chain_id: str | None = None
    label: str | None = None
    status: ProposalStatus | None = None
    author_id: str | None = None
    run_id: str | None = None
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Rejection:
    """A rejected proposal for its agent: its block, and the owner's reason."""

    proposal_id: str
    chain_id: str
    label: str
    reason: str


def insert_one(tx: Transaction, proposal: Proposal, base: versions.TextBase | None) -> Proposal:
    """Redact the secrets in a proposal, store it, and return it.

    Args:
        tx: The transaction.
        proposal: The new proposal.
        base: A text of the chain from which the proposal's text may be stored as a delta. None
            stores both of its texts whole.

    Raises:
        Invalid: The new label holds a secret.
    """
    author = proposal.author
    proposal = replace(
        proposal,
        value=redact_values(proposal.value),
        reasoning=redact(proposal.reasoning).text,
        description=redact_values(proposal.description),
        author=replace(author, id=redact(author.id).text, name=redact(author.name).text),
    )
    if proposal.new_label:
        require_no_secret(proposal.new_label)
    store(tx, proposal, base)
    return proposal


def store(tx: Transaction, proposal: Proposal, base: versions.TextBase | None) -> None:
    """Store a proposal exactly as it is.

    Args:
        tx: The transaction.
        proposal: The new proposal.
        base: A text of the chain from which the proposal's text may be stored as a delta. None
            stores both of its texts whole.
    """
    blob = None
    growth = ROW_BYTES + size_of(proposal.reasoning) + size_of(proposal.description)
    if proposal.value is not None:
        text = versions.put_text(tx, proposal.chain_id, proposal.value, base)
        blob = text.id
        growth += text.added_bytes
    if proposal.base_value is None:
        base_blob = None
    else:
        base_blob = blob_id(proposal.base_value)
    if base is None and proposal.base_value is not None:
        # The base may be a text that no version of the chain holds, such as the text of an agent's
        # block of which the user gets a copy. Then it is stored here.
        growth += versions.put_text(tx, proposal.chain_id, proposal.base_value, None).added_bytes
    tx.run(_INSERT, _ROWS.values(proposal) | {"base_blob": base_blob, "blob": blob})
    grow(tx, proposal.chain_id, growth)


def get(tx: Transaction, scope: Scope, id: str) -> Proposal:
    """Return the proposal with this id.

    Args:
        tx: The transaction.
        scope: The caller.
        id: The proposal's id.

    Raises:
        NotFound: There is no such proposal, or the caller may not see it.
        Conflict: One of its texts is damaged.
    """
    parameters = {"id": id, "organization_id": scope.organization_id}
    if scope.subject_id is None:
        row = tx.first(_BY_ID, parameters)
    else:
        row = tx.first(_BY_ID_FOR_ONE, parameters | {"subject_id": scope.subject_id})
    return _proposals(tx, [require_found(row, "Proposal", id)])[0]


def lock(tx: Transaction, scope: Scope, id: str) -> Proposal:
    """Lock one proposal until this transaction ends, and return its current state.

    Args:
        tx: The transaction.
        scope: The caller.
        id: The proposal's id.

    Raises:
        NotFound: There is no such proposal, or the caller may not see it.
        Conflict: One of its texts is damaged.
    """
    tx.lock(_LOCK, {"id": id})
    return get(tx, scope, id)


def of_step(tx: Transaction, scope: Scope, step_id: str) -> list[Proposal]:
    """Return the proposals that a step made, the oldest first.

    Args:
        tx: The transaction.
        scope: The caller; proposals that the caller may not see are left out.
        step_id: The step.
    """
    if scope.subject_id is None:
        visible = []
    else:
        visible = seen_by(proposals, scope.subject_id)
    rows = tx.all(
        _OF_STEP.where(*visible), {"step_id": step_id, "organization_id": scope.organization_id}
    )
    return _proposals(tx, rows)


def follow(tx: Transaction, chain_id: str, old_label: str, label: str) -> None:
    """Give the waiting proposals for a renamed block its new label.

    Args:
        tx: The transaction.
        chain_id: The chain of the block.
        old_label: The label of the block before.
        label: The label of the block now.
    """
    tx.run(_FOLLOW, {"of_chain": chain_id, "old_label": old_label, "relabelled": label})


def end_of_deleted(tx: Transaction, chain_id: str, label: str) -> None:
    """Let the waiting proposals for a deleted block expire.

    They get the note `DELETED`, by which `reopen` finds them.

    Args:
        tx: The transaction.
        chain_id: The chain of the block.
        label: The label of the deleted block.
    """
    tx.run(_END_DELETED, {"of_chain": chain_id, "old_label": label, "now": tx.clock.now()})


def reopen(tx: Transaction, chain_id: str, label: str) -> None:
    """Reopen the proposals that expired with a block which is now restored.

    Each is open again, even if it had a conflict or its time has passed.

    Args:
        tx: The transaction.
        chain_id: The chain of the block.
        label: The label of the restored block.
    """
    tx.run(_REOPEN, {"of_chain": chain_id, "old_label": label})


def waiting(tx: Transaction, chain_id: str) -> list[Proposal]:
    """Return the chain's proposals that can still be decided, the oldest first.

    Args:
        tx: The transaction.
        chain_id: The chain.
    """
    return _proposals(tx, tx.all(_WAITING, {"chain_id": chain_id}))


def waiting_by(tx: Transaction, chain_id: str, label: str, author: Actor) -> list[Proposal]:
    """Return this author's waiting proposals for this block, the oldest first.

    Args:
        tx: The transaction.
        chain_id: The chain.
        label: The block's current label, or the label of a new block.
        author: The author, compared by kind and id.
    """
    parameters = {
        "chain_id": chain_id,
        "label": label,
        "author_kind": author.kind,
        "author_id": author.id,
    }
    return _proposals(tx, tx.all(_WAITING_BY, parameters))


def rejected_by(
    tx: Transaction, chain_id: str, label: str, author: Actor, since: int
) -> list[Proposal]:
    """Return this author's last proposals for this block that were rejected since a time.

    Args:
        tx: The transaction.
        chain_id: The chain.
        label: The block's label when the proposals were decided.
        author: The author, compared by kind and id.
        since: A time in microseconds UTC.

    Returns:
        At most 50 proposals, the last rejection first.
    """
    parameters = {
        "chain_id": chain_id,
        "label": label,
        "author_kind": author.kind,
        "author_id": author.id,
        "since": since,
        "limit": _REMEMBERED_REJECTIONS,
    }
    return _proposals(tx, tx.all(_REJECTED_BY, parameters))


def waiting_ids(tx: Transaction, chain_id: str, limit: int) -> list[str]:
    """Return the ids of waiting proposals, the oldest first, those with conflicts last.

    Args:
        tx: The transaction.
        chain_id: The chain.
        limit: The most ids.
    """
    return [row.id for row in tx.all(_WAITING_IDS, {"chain_id": chain_id, "limit": limit})]


def waiting_counts(tx: Transaction, chain_id: str, author: Actor | None = None) -> dict[str, int]:
    """Return the number of waiting proposals in the chain by label.

    Args:
        tx: The transaction.
        chain_id: The chain.
        author: Only proposals by this author count, compared by kind and id; None: all.
    """
    if author is None:
        rows = tx.all(_COUNTS, {"chain_id": chain_id})
    else:
        rows = tx.all(
            _COUNTS_BY, {"chain_id": chain_id, "author_kind": author.kind, "author_id": author.id}
        )
    return {row.label: row.waiting for row in rows}


def waiting_counts_by_owner(
    tx: Transaction, user_ids: Sequence[str], agent_ids: Sequence[str]
) -> dict[str, int]:
    """Return the number of these agents' waiting proposals for each of these users.

    Args:
        tx: The transaction.
        user_ids: The users whose memory it is. Those without proposals are missing.
        agent_ids: The authors.
    """
    statement = (
        select(chains.c.owner_id, func.count())
        .join(chains, chains.c.id == proposals.c.chain_id)
        .where(chains.c.owner_kind == "user", chains.c.owner_id.in_(user_ids), WAITS)
        .where(proposals.c.author_kind == "agent", proposals.c.author_id.in_(agent_ids))
        .group_by(chains.c.owner_id)
    )
    return {row[0]: row[1] for row in tx.all(statement)}


def page(tx: Transaction, scope: Scope, page: Page, filters: ProposalFilter) -> list[Proposal]:
    """Return one page of the proposals that the caller may see.

    Args:
        tx: The transaction.
        scope: The caller.
        page: The part of the list. A bounded page ends where the texts exceed the size of a list,
            and cannot be read backwards.
        filters: The conditions.
    """
    names = ("chain_id", "label", "status", "author_id", "run_id")
    fields = {name: getattr(filters, name) for name in names}
    equal = (proposals.c[name] == field for name, field in fields.items() if field is not None)
    statement = _SELECT.where(*in_scope(proposals, scope), *equal)
    if filters.waits:
        statement = statement.where(WAITS)
    rows = read_page(tx, statement, proposals, page, marks=known_to(proposals, scope))
    if page.is_bounded:
        return _first_proposals(tx, rows)
    return _proposals(tx, rows)


def of_skills(tx: Transaction, scope: Scope, chain_id: str, limit: int) -> list[Proposal]:
    """Return the waiting proposals for a chain's skills by skill, also for new skills.

    The newest of a skill is first.

    Args:
        tx: The transaction.
        scope: The caller; proposals that the caller may not see are left out.
        chain_id: The chain.
        limit: The most proposals. There are fewer if their texts exceed the size of a list.
    """
    statement = (
        _SELECT.where(*in_scope(proposals, scope), proposals.c.chain_id == chain_id, WAITS)
        .where(is_skill_label(proposals.c.label))
        .order_by(proposals.c.label, proposals.c.created_at.desc(), proposals.c.seq.desc())
    )
    return _first_proposals(tx, tx.all(statement.limit(limit)))


def of_runs(tx: Transaction, scope: Scope, run_ids: Sequence[str]) -> list[Proposal]:
    """Return the waiting proposals of these runs, the oldest first.

    Args:
        tx: The transaction.
        scope: The caller; proposals that the caller may not see are left out.
        run_ids: The runs.
    """
    conditions = (*in_scope(proposals, scope), proposals.c.run_id.in_(run_ids), WAITS)
    return _proposals(tx, tx.all(_SELECT.where(*conditions).order_by(proposals.c.seq)))


def of_users(*conditions: ColumnElement[bool], only_enabled: bool = False) -> Subquery:
    """Return the proposals for users' memory with their owners, as a table to join with.

    Its columns are id, organization_id, owner_id, created_at and seq.

    Args:
        *conditions: Further conditions on the proposals, such as `WAITS`.
        only_enabled: Leave out proposals for disabled users.
    """
    columns = (proposals.c.id, proposals.c.organization_id, chains.c.owner_id)
    statement = (
        select(*columns, proposals.c.created_at, proposals.c.seq)
        .join(chains, chains.c.id == proposals.c.chain_id)
        .where(chains.c.owner_kind == "user", *conditions)
    )
    if only_enabled:
        statement = statement.join(users, users.c.id == chains.c.owner_id).where(
            users.c.disabled_at.is_(None)
        )
    return statement.subquery()


def existing_ids(tx: Transaction, ids: Sequence[str]) -> list[str]:
    """Return the ids of the proposals that exist, in no fixed order.

    Args:
        tx: The transaction.
        ids: Ids of proposals, of any organization.
    """
    return [row.id for row in tx.all(select(proposals.c.id).where(proposals.c.id.in_(ids)))]


def count_waiting_for(tx: Transaction, user_id: str) -> int:
    """Return the number of proposals that wait for this user.

    Args:
        tx: The transaction.
        user_id: The user who owns the memory.
    """
    waiting = of_users(WAITS)
    statement = select(func.count()).select_from(waiting).where(waiting.c.owner_id == user_id)
    return int(tx.all(statement)[0][0])


def count_all_waiting(tx: Transaction, organization_id: str | None = None) -> int:
    """Return the number of proposals that wait.

    Args:
        tx: The transaction.
        organization_id: Only proposals in this organization; None: in all.
    """
    return int(tx.all(_in_organization(select(func.count()).where(WAITS), organization_id))[0][0])


def decision_times(tx: Transaction, since: int, organization_id: str | None = None) -> list[float]:
    """Return the seconds until the last decisions on users' memory, newest proposals first.

    At most 10,000 are returned.

    Args:
        tx: The transaction.
        since: Only decisions since this time (microseconds UTC).
        organization_id: Only decisions in this organization; None: in all.
    """
    statement = (
        select(proposals.c.created_at, proposals.c.resolved_at)
        .join(chains, chains.c.id == proposals.c.chain_id)
        .where(
            chains.c.owner_kind == "user",
            proposals.c.status.in_(("approved", "rejected")),
            proposals.c.resolved_at >= since,
        )
        .order_by(proposals.c.seq.desc())
        .limit(_MOST_DECIDED)
    )
    rows = tx.all(_in_organization(statement, organization_id))
    return [(row.resolved_at - row.created_at) / 1e6 for row in rows]


def _in_organization(statement: Select[Any], organization_id: str | None) -> Select[Any]:
    if organization_id is None:
        return statement
    return statement.where(proposals.c.organization_id == organization_id)


def count_waiting(tx: Transaction, scope: Scope) -> int:
    """Return the number of waiting proposals that the caller may see.

    Args:
        tx: The transaction.
        scope: The caller.
    """
    statement = select(func.count()).select_from(proposals)
    return int(tx.all(statement.where(*in_scope(proposals, scope), WAITS))[0][0])


def count_decidable(tx: Transaction, scope: Scope) -> int:
    """Return the number of waiting proposals that the caller may decide on.

    Args:
        tx: The transaction.
        scope: The caller, who has the right to approve or to override. One who may not decide for
            everybody can decide about the memory of the key's user. With access to all data, the
            caller can also decide about memory that belongs to no user, such as that of agents.
    """
    if scope.decides_for_everybody:
        return count_waiting(tx, scope)
    user_id = scope.subject or scope.user_id
    is_own = (chains.c.owner_kind == "user") & (chains.c.owner_id == user_id)
    if scope.subject_id is None:
        is_own |= chains.c.owner_kind != "user"
    own_chains = select(chains.c.id).where(
        chains.c.organization_id == scope.organization_id, is_own
    )
    statement = select(func.count()).select_from(proposals)
    return int(tx.all(statement.where(proposals.c.chain_id.in_(own_chains), WAITS))[0][0])


def take_untold(tx: Transaction, agent_id: str, user_id: str, limit: int) -> list[Rejection]:
    """Return rejections to report to the agent, and mark them as reported.

    They are reported in the user's next turn with the agent, in any conversation.

    Args:
        tx: The transaction.
        agent_id: The author of the proposals.
        user_id: The user whose memory they would have changed.
        limit: The most rejections, the oldest first; others stay unreported.
    """
    parameters = {"agent_id": agent_id, "user_id": user_id, "limit": limit}
    rejections = [
        Rejection(row.id, row.chain_id, row.label, row.note or "")
        for row in tx.all(_UNTOLD, parameters)
    ]
    if rejections:
        ids = [rejection.proposal_id for rejection in rejections]
        tx.run(update(proposals).where(proposals.c.id.in_(ids)).values(is_untold=False))
    return rejections


def are_untold(tx: Transaction, agent_id: str, user_id: str) -> bool:
    """Return True if a rejection was not reported to the agent yet.

    Args:
        tx: The transaction.
        agent_id: The author of the proposals.
        user_id: The user whose memory they would have changed.
    """
    return tx.first(_ANY_UNTOLD, {"agent_id": agent_id, "user_id": user_id}) is not None


def expire(tx: Transaction) -> bool:
    """Mark some overdue proposals as expired, and return whether there may be more.

    Args:
        tx: The transaction.
    """
    ids = [row.id for row in tx.all(_DUE, {"now": tx.clock.now()})]
    if ids:
        # A proposal that was decided meanwhile stays unchanged.
        overdue = update(proposals).where(proposals.c.id.in_(ids), WAITS)
        tx.run(overdue.values(status="expired", resolved_at=tx.clock.now()))
    return bool(ids)


def _proposals(tx: Transaction, rows: Sequence[Row[Any]]) -> list[Proposal]:
    """Return the proposals of these rows; their texts are read at once for each chain."""
    ids: dict[str, list[bytes]] = {}
    for row in rows:
        ids.setdefault(row.chain_id, []).extend(id for id in (row.base_blob, row.blob) if id)
    texts = {
        chain_id: versions.read_texts(tx, chain_id, blob_ids) for chain_id, blob_ids in ids.items()
    }
    return [_with_texts(row, texts[row.chain_id]) for row in rows]


def _first_proposals(tx: Transaction, rows: Sequence[Row[Any]]) -> list[Proposal]:
    """Return the first of these proposals whose texts fit into one list, at least one."""
    room = tx.quotas.list_characters
    page: list[Proposal] = []
    for first in range(0, len(rows), _READ_AT_ONCE):
        for proposal in _proposals(tx, rows[first : first + _READ_AT_ONCE]):
            room -= len(proposal.base_value or "") + len(proposal.value or "")
            if room < 0 and page:
                return page
            page.append(proposal)
    return page


def _with_texts(row: Row[Any], texts: Mapping[bytes, str]) -> Proposal:
    base, text = (None if id is None else texts[id] for id in (row.base_blob, row.blob))
    return replace(_ROWS.of(row[:-2]), base_value=base, value=text)
