"""Lists of memory: owners, blocks and waiting proposals, in few statements each.

The caller's access to a chain is checked before.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Row,
    String,
    and_,
    case,
    cast,
    false,
    func,
    or_,
    select,
    tuple_,
)

from ricordo.domain.block import NEVER_REMEMBER, OwnerKind
from ricordo.domain.scope import Scope, User
from ricordo.storage.agent_access import may_use
from ricordo.storage.blocks import IS_SKILL
from ricordo.storage.conversation_overviews import MOST_NAMES
from ricordo.storage.engine.repository import in_scope
from ricordo.storage.engine.store import Transaction
from ricordo.storage.proposals import WAITS
from ricordo.storage.schema.core_tables import agents, conversations, messages, passages, users
from ricordo.storage.schema.memory_tables import (
    agents_blocks,
    blocks,
    blocks_log,
    chains,
    memory_remotes,
    proposals,
)

# The labels of blocks about a person, as agents name them.
_ABOUT_THE_PERSON = ("human", "user", "student", "person")
_LONGEST_BEGINNING = 2_000  # characters of a block's text
_READ_AT_ONCE = 100  # blocks that one statement reads in a search for marked ones
_OWNER_NAME = case(
    (chains.c.owner_kind == "user", users.c.name),
    else_=func.coalesce(agents.c.name, "a shared block"),
)
_IS_USER = and_(chains.c.owner_kind == "user", users.c.id == chains.c.owner_id)
# A deleted agent belongs to no organization until it is purged.
_IS_AGENT = and_(
    chains.c.owner_kind == "agent",
    agents.c.id == chains.c.owner_id,
    agents.c.organization_id == chains.c.organization_id,
)
# The block of a deleted agent stays, and is then nobody's.
_HAS_NO_AGENT = and_(chains.c.owner_kind == "agent", agents.c.id.is_(None))
_OWNER_KIND = case((_HAS_NO_AGENT, "block"), else_=chains.c.owner_kind)
_OWNER = (_OWNER_KIND.label("kind"), chains.c.owner_id, _OWNER_NAME.label("name"))


@dataclass(frozen=True, slots=True)
class ChainOwner:
    """The owner of a chain's memory."""

    kind: OwnerKind
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class AttachedBlock:
    """A block of an agent, with the agent's name."""

    agent_id: str
    agent_name: str
    label: str
    title: str | None
    description: str | None
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class MemorySize:
    """The size of one user's memory, and the number of its waiting proposals."""

    blocks: int = 0
    characters: int = 0
    waiting: int = 0


def owners_of(tx: Transaction, chain_ids: Iterable[str]) -> Mapping[str, ChainOwner]:
    """Return the owners of these chains by chain id.

    Args:
        tx: The transaction.
        chain_ids: The chains; deleted ones are left out.
    """
    statement = (
        select(chains.c.id, *_OWNER)
        .outerjoin(users, _IS_USER)
        .outerjoin(agents, _IS_AGENT)
        .where(chains.c.id.in_([*chain_ids]))
    )
    return {row.id: ChainOwner(row.kind, row.owner_id, row.name or "") for row in tx.all(statement)}


def waiting_by_owner(
    tx: Transaction, scope: Scope, limit: int, *, without: str | None = None
) -> list[tuple[ChainOwner, int]]:
    """Return the owners with their numbers of waiting proposals, the largest number first.

    Args:
        tx: The transaction.
        scope: The caller; proposals that the caller may not see do not count.
        limit: The most owners.
        without: The id of an owner to leave out, such as the caller's user; None: no owner.
    """
    count = func.count()
    statement = (
        select(*_OWNER, count.label("waiting"))
        .select_from(proposals)
        .join(chains, chains.c.id == proposals.c.chain_id)
        .outerjoin(users, _IS_USER)
        .outerjoin(agents, _IS_AGENT)
        .where(*in_scope(proposals, scope), WAITS)
        .group_by(chains.c.owner_kind, chains.c.owner_id, users.c.name, agents.c.id, agents.c.name)
        .order_by(count.desc(), chains.c.owner_id)
        .limit(limit)
    )
    if without is not None:
        statement = statement.where(chains.c.owner_id != without)
    return [
        (ChainOwner(row.kind, row.owner_id, row.name or ""), row.waiting)
        for row in tx.all(statement)
    ]


def blocks_marked_for(
    tx: Transaction,
    scope: Scope,
    user: User,
    mark: tuple[str, str],
    *,
    labels: Collection[str],
    limit: int,
) -> list[AttachedBlock]:
    """Return unshared blocks of the user's agents whose metadata has this mark.

    Args:
        tx: The transaction.
        scope: The organization.
        user: The user; agents that this user may not use are left out.
        mark: A field of the metadata, and its value in ASCII.
        labels: Blocks with these labels are left out.
        limit: The most blocks.
    """
    users_scope = replace(scope, subject_id=user.id, role="user")
    field, content = mark
    names = ("label", "title", "description", "metadata")
    place = (agents.c.seq, agents_blocks.c.seq)
    statement = (
        select(agents.c.id, agents.c.name, *(blocks.c[name] for name in names))
        .add_columns(place[0].label("agent_seq"), place[1].label("link_seq"))
        .join(agents_blocks, agents_blocks.c.block_id == blocks.c.id)
        .join(agents, agents.c.id == agents_blocks.c.agent_id)
        .where(
            agents.c.organization_id == scope.organization_id,
            *may_use(users_scope),
            agents.c.hidden.is_(False),
            blocks.c.shared.is_(False),
            # This also selects a few other blocks, such as those with the value in another field.
            # They are left out below.
            cast(blocks.c.metadata, String).contains(content, autoescape=True),
            blocks.c.label.not_in([*labels]),
        )
        .order_by(*place)
        .limit(_READ_AT_ONCE)
    )
    marked: list[AttachedBlock] = []
    after = (0, 0)
    while len(marked) < limit:
        rows = tx.all(statement.where(tuple_(*place) > tuple_(*after)))
        marked += [AttachedBlock(*row[:-2]) for row in rows if row.metadata.get(field) == content]
        if len(rows) < _READ_AT_ONCE:
            break
        after = (rows[-1].agent_seq, rows[-1].link_seq)
    return marked[:limit]


def ids_of_blocks(
    tx: Transaction, keys: Collection[tuple[str, str]]
) -> Mapping[tuple[str, str], str]:
    """Return the ids of existing blocks by their chain and label.

    Args:
        tx: The transaction.
        keys: Pairs of chain id and label. They are one condition, so there should be few.
    """
    if not keys:
        return {}
    conditions = [
        and_(blocks.c.chain_id == chain_id, blocks.c.label == label) for chain_id, label in keys
    ]
    statement = select(blocks.c.chain_id, blocks.c.label, blocks.c.id)
    rows = tx.all(statement.where(or_(false(), *conditions)))
    return {(row.chain_id, row.label): row.id for row in rows}


def chains_of_blocks(tx: Transaction, scope: Scope, ids: Sequence[str]) -> Mapping[str, str]:
    """Return the chains of the organization's blocks by block id.

    Args:
        tx: The transaction.
        scope: The organization; the caller's user does not matter.
        ids: The blocks. Only the first 500 are read.
    """
    if not ids:
        return {}
    statement = select(blocks.c.id, blocks.c.chain_id, blocks.c.organization_id).where(
        blocks.c.id.in_([*ids][:MOST_NAMES])
    )
    rows = tx.all(statement)
    return {row.id: row.chain_id for row in rows if row.organization_id == scope.organization_id}


def sizes_of_users(tx: Transaction, user_ids: Sequence[str]) -> Mapping[str, MemorySize]:
    """Return the sizes of these users' memory by user id.

    A user with neither blocks nor waiting proposals is missing.

    Args:
        tx: The transaction.
        user_ids: The users.
    """
    is_theirs = and_(chains.c.owner_kind == "user", chains.c.owner_id.in_(user_ids))
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
    waiting = {row.owner_id: row.waiting for row in waiting_rows}
    by_user = {user_id: MemorySize(waiting=count) for user_id, count in waiting.items()}
    for row in size_rows:
        by_user[row.owner_id] = MemorySize(
            row.blocks, int(row.characters or 0), waiting.get(row.owner_id, 0)
        )
    return by_user


def blocks_of_chain(tx: Transaction, chain_id: str) -> Sequence[Row[Any]]:
    """Return a chain's blocks, ordered by label, without the rules against remembering.

    Each row has the length of the text and the number of waiting proposals.

    Args:
        tx: The transaction.
        chain_id: The chain.

    Returns:
        At most 500 rows: `id`, `label`, `title`, `limit`, `policy`, `read_only`, `is_untrusted`,
        `length` and `waiting`.
    """
    return _listed(tx, and_(blocks.c.chain_id == chain_id, blocks.c.label != NEVER_REMEMBER))


def _listed(tx: Transaction, condition: ColumnElement[bool]) -> Sequence[Row[Any]]:
    of_block = and_(proposals.c.chain_id == blocks.c.chain_id, proposals.c.label == blocks.c.label)
    waiting = select(func.count()).select_from(proposals).where(of_block, WAITS).scalar_subquery()
    names = ("id", "label", "title", "limit", "policy", "read_only", "is_untrusted")
    columns = (blocks.c[name] for name in names)
    statement = select(
        *columns, func.length(blocks.c.value).label("length"), waiting.label("waiting")
    )
    return tx.all(statement.where(condition).order_by(blocks.c.label).limit(MOST_NAMES))


def beginnings(tx: Transaction, chain_id: str, limit: int) -> list[str]:
    """Return the beginnings of a chain's texts; texts about the person come first.

    Args:
        tx: The transaction.
        chain_id: The chain.
        limit: The most texts. Each has at most 2,000 characters. Skills and the rules against
            remembering are left out.
    """
    is_about = case((blocks.c.label.in_(_ABOUT_THE_PERSON), 0), else_=1)
    statement = (
        select(func.substr(blocks.c.value, 1, _LONGEST_BEGINNING).label("text"))
        .where(blocks.c.chain_id == chain_id, blocks.c.label != NEVER_REMEMBER, ~IS_SKILL)
        .order_by(is_about, blocks.c.label)
        .limit(limit)
    )
    return [row.text for row in tx.all(statement)]


def deleted_labels(tx: Transaction, chain_id: str) -> list[str]:
    """Return the labels of deleted blocks under which no block exists now, at most 500.

    Args:
        tx: The transaction.
        chain_id: The chain.
    """
    is_deleted = (blocks_log.c.chain_id == chain_id) & blocks_log.c.deleted_label.is_not(None)
    is_back = select(blocks.c.label).where(blocks.c.chain_id == chain_id)
    statement = select(blocks_log.c.deleted_label).distinct().where(is_deleted).limit(MOST_NAMES)
    rows = tx.all(statement.where(blocks_log.c.deleted_label.not_in(is_back)))
    return sorted(row.deleted_label for row in rows)


def memory_in_numbers(tx: Transaction, user_id: str, chain_id: str) -> Mapping[str, int]:
    """Return the counts of a user's versions, blocks, messages and the like.

    The caller's access is checked before.

    Args:
        tx: The transaction.
        user_id: The user.
        chain_id: The user's chain.
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


def proposal_states(
    tx: Transaction, scope: Scope, run_ids: Iterable[str]
) -> Mapping[tuple[str, str], str]:
    """Return the states of the proposals that runs made, by step and label.

    If a step made several proposals for a label, the newest counts.

    Args:
        tx: The transaction.
        scope: The caller.
        run_ids: The runs. Only the first 500 by id are read.
    """
    ids = sorted(set(run_ids))[:MOST_NAMES]
    columns = (proposals.c[name] for name in ("step_id", "label", "status"))
    statement = select(*columns).where(*in_scope(proposals, scope), proposals.c.run_id.in_(ids))
    return {
        (row.step_id, row.label): row.status for row in tx.all(statement.order_by(proposals.c.seq))
    }
