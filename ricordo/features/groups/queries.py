"""The tables of groups, and the progress of sleeptime agents.

A mark belongs to one sleeptime agent and one conversation of its manager. It contains the message
(`seq`) up to which transcripts were made, and the last message to read. The transaction that stores
a transcript moves the mark, so each message that is read is in exactly one transcript.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, Index, UniqueConstraint, delete, insert, or_, select

from ricordo.domain.run import Run
from ricordo.domain.scope import Scope
from ricordo.features.groups.records import ASLEEP, Group, ManagerType
from ricordo.storage import message_lookup
from ricordo.storage.agent_access import may_use
from ricordo.storage.engine.repository import (
    Missing,
    Page,
    Repository,
    equal,
    one_of,
    require_found,
)
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.columns import (
    flag,
    numbers,
    reference,
    root,
    seq,
    strings,
    table,
    texts,
    timestamps,
)

groups = table(
    "groups",
    *root(),
    *strings("manager_type", null=False, erasure="keep"),
    *texts("description", null=False, erasure="delete"),
    *strings("manager_agent_id", erasure="keep"),
    *texts("termination_token"),
    *numbers("max_turns", "sleeptime_agent_frequency", null=True),
    *numbers("max_message_buffer_length", "min_message_buffer_length", null=True),
    flag("hidden"),
    *strings("created_by", erasure="blank"),
    *timestamps("created_at", "updated_at"),
    Index("groups_by_manager", "manager_agent_id"),
    Index("groups_by_time", "organization_id", "created_at", "seq"),
    erasure="delete",
)
groups_agents = table(
    "groups_agents",
    seq(),
    reference("group_id", "groups"),
    reference("agent_id", "agents"),
    *numbers("place"),
    UniqueConstraint("group_id", "agent_id"),
    Index("groups_agents_by_agent", "agent_id"),
    erasure="delete",
)
groups_blocks = table(
    "groups_blocks",
    seq(),
    reference("group_id", "groups"),
    reference("block_id", "blocks"),
    UniqueConstraint("group_id", "block_id"),
    Index("groups_blocks_by_block", "block_id"),
    erasure="delete",
)
# Counts a manager's turns since its sleeptime agents last ran, for each user ("": no user).
sleep_counters = table(
    "sleep_counters",
    seq(),
    reference("group_id", "groups"),
    *strings("user_id", null=False),
    *numbers("turns"),
    # Users who said "not now". Their messages are not read until they revoke it.
    flag("is_paused"),
    UniqueConstraint("group_id", "user_id"),
    Index("sleep_counters_by_user", "user_id"),
    erasure="delete",
)
sleep_marks = table(
    "sleep_marks",
    seq(),
    reference("group_id", "groups"),
    reference("agent_id", "agents"),
    reference("conversation_id", "conversations"),
    *strings("user_id", null=False),
    *numbers("read_to", "said_to"),
    UniqueConstraint("group_id", "agent_id", "conversation_id"),
    Index("sleep_marks_by_user", "user_id"),
    Index("sleep_marks_by_agent", "agent_id"),
    Index("sleep_marks_by_conversation", "conversation_id"),
    erasure="delete",
)
transcripts = table(
    "sleep_transcripts",
    *root(),
    reference("group_id", "groups"),
    reference("agent_id", "agents"),
    *strings("user_id"),
    *strings("conversation_ids", null=False, erasure="keep"),
    *numbers("first_seq", "last_seq", "message_count"),
    *strings("run_id", erasure="keep"),
    *strings("status", null=False, erasure="keep"),
    *numbers("attempts"),
    *timestamps("created_at"),
    *timestamps("ended_at", null=True),
    Index("sleep_transcripts_by_agent", "agent_id", "seq"),
    Index("sleep_transcripts_by_group", "group_id", "seq"),
    Index("sleep_transcripts_by_user", "user_id"),
    erasure="delete",
)
# A talk is a run in a hidden conversation of the group's leader. That conversation has only the
# user's messages.
talks = table(
    "group_talks",
    seq(),
    *strings("group_id", null=False, erasure="keep"),
    reference("conversation_id", "conversations"),
    UniqueConstraint("conversation_id", "group_id"),
    erasure="delete",
)
TABLES = (groups, groups_agents, groups_blocks, sleep_counters, sleep_marks, transcripts, talks)

# The value in the user's column if a talk has no user.
NO_USER = ""


@dataclass(frozen=True, slots=True)
class EndedTurn:
    """The facts about an ended turn that its sleeptime agents need.

    These are the group and its settings, the counter, and the range of the turn's messages.
    `counted` is the number of the user's earlier turns since the sleeptime agents last ran (None:
    none was counted). `first_seq` and `last_seq` are 0 if the run has no messages.
    """

    group_id: str
    organization_id: str
    manager_type: ManagerType
    frequency: int | None
    member_ids: tuple[str, ...]
    counted: int | None
    is_paused: bool
    first_seq: int
    last_seq: int


_GROUPS = Repository(Group, groups)
_OF_MANAGER = (
    _GROUPS.select.where(equal(groups, "manager_agent_id", "organization_id"))
    .order_by(groups.c.seq)
    .limit(1)
)
_MEMBERS = (
    select(groups_agents.c.group_id, groups_agents.c.agent_id)
    .where(one_of(groups_agents.c.group_id, "group_ids"))
    .order_by(groups_agents.c.place)
)
_BLOCKS = (
    select(groups_blocks.c.group_id, groups_blocks.c.block_id)
    .where(one_of(groups_blocks.c.group_id, "group_ids"))
    .order_by(groups_blocks.c.seq)
)
_FIRST_SEQ, _LAST_SEQ = message_lookup.ends_of_run()
_AT_TURN_END = (
    select(
        groups.c.id,
        groups.c.organization_id,
        groups.c.manager_type,
        groups.c.sleeptime_agent_frequency,
        groups_agents.c.agent_id,
        sleep_counters.c.turns,
        sleep_counters.c.is_paused,
        _FIRST_SEQ.label("first_seq"),
        _LAST_SEQ.label("last_seq"),
    )
    .select_from(groups)
    .outerjoin(groups_agents, groups_agents.c.group_id == groups.c.id)
    .outerjoin(
        sleep_counters,
        (sleep_counters.c.group_id == groups.c.id) & equal(sleep_counters, "user_id"),
    )
    .where(
        equal(groups, "manager_agent_id"), or_(*(groups.c.manager_type == kind for kind in ASLEEP))
    )
    .order_by(groups.c.seq, groups_agents.c.place)
)
_LOCK = select(groups.c.id).where(equal(groups, "id")).with_for_update()
_ADD_BLOCK = Missing(groups_blocks)
_ADD_MEMBER = insert(groups_agents)
_CHANGING = (
    "description",
    "manager_agent_id",
    "termination_token",
    "max_turns",
    "sleeptime_agent_frequency",
    "max_message_buffer_length",
    "min_message_buffer_length",
    "hidden",
    "updated_at",
)
_change = _GROUPS.updates(*_CHANGING)


def insert_group(tx: Transaction, group: Group) -> None:
    """Store a new group with its members.

    Args:
        tx: The transaction.
        group: The group with its members' ids; its blocks are not stored here.

    Raises:
        Collision: An agent is named twice, or does not exist.
    """
    _GROUPS.insert(tx, group)
    _add_members(tx, group)


def change(tx: Transaction, group: Group, *, has_new_members: bool) -> None:
    """Store a changed group.

    Args:
        tx: The transaction.
        group: The group after the change; its blocks are not stored here.
        has_new_members: Also store its members, who replace the earlier ones.
    """
    _change(tx, group)
    if has_new_members:
        tx.run(delete(groups_agents).where(groups_agents.c.group_id == group.id))
        _add_members(tx, group)


def remove(tx: Transaction, group_id: str) -> None:
    """Delete a group with its counters, marks and transcripts.

    Args:
        tx: The transaction.
        group_id: The group. Settings of its agents are not changed here.
    """
    tx.run(delete(groups).where(groups.c.id == group_id))


def lock(tx: Transaction, group_id: str) -> None:
    """Lock the group until the transaction ends.

    Args:
        tx: The transaction.
        group_id: The group; a missing one has no effect.
    """
    tx.lock(_LOCK, {"id": group_id})


def get(tx: Transaction, scope: Scope, group_id: str) -> Group:
    """Return the group if the caller may use all its agents.

    Args:
        tx: The transaction, or a read.
        scope: The caller.
        group_id: The group.

    Raises:
        NotFound: There is no such group, or the caller may not use one of its agents.
    """
    statement = _GROUPS.select.where(
        groups.c.id == group_id, groups.c.organization_id == scope.organization_id
    )
    group = _GROUPS.first(tx, statement.where(*_is_usable(scope)), {})
    return _whole(tx, [require_found(group, "Group", group_id)])[0]


def page(
    tx: Transaction,
    scope: Scope,
    page: Page,
    *,
    shows_hidden: bool,
    agent_id: str | None = None,
    **equal: Any,
) -> list[Group]:
    """Return one page of the groups in which the caller may use all agents.

    Args:
        tx: The transaction.
        scope: The caller.
        page: The part of the list.
        shows_hidden: Include hidden groups.
        agent_id: Only groups with this member; None for all.
        **equal: Values that columns must have, such as `manager_type`; None for any.
    """
    members = select(groups_agents.c.group_id).where(groups_agents.c.agent_id == agent_id)
    conditions = [*_is_usable(scope), *([] if shows_hidden else [~groups.c.hidden])]
    if agent_id:
        conditions.append(groups.c.id.in_(members))
    return _whole(tx, _GROUPS.page(tx, scope, page, *conditions, **equal))


def count(tx: Transaction, scope: Scope) -> int:
    """Return the number of groups in which the caller may use all agents.

    Args:
        tx: The transaction, or a read.
        scope: The caller.
    """
    return _GROUPS.count(tx, scope, *_is_usable(scope))


def of_manager(tx: Transaction, organization_id: str, agent_id: str) -> Group | None:
    """Return the group that the agent manages, or None.

    Args:
        tx: The transaction.
        organization_id: The agent's organization.
        agent_id: The manager.
    """
    group = _GROUPS.first(
        tx, _OF_MANAGER, {"manager_agent_id": agent_id, "organization_id": organization_id}
    )
    if group:
        return _whole(tx, [group])[0]
    return None


def at_turn_end(tx: Transaction, run: Run) -> EndedTurn | None:
    """Return the facts about an ended run for its agent's sleeptime agents.

    None means that the agent has no sleeptime agents.

    Args:
        tx: The transaction, or a read.
        run: The run of the manager.
    """
    parameters = {
        "manager_agent_id": run.agent_id,
        "user_id": run.user_id or NO_USER,
        "run_id": run.id,
    }
    rows = tx.all(_AT_TURN_END, parameters)
    if not rows:
        return None
    first = rows[0]
    return EndedTurn(
        group_id=first.id,
        organization_id=first.organization_id,
        manager_type=first.manager_type,
        frequency=first.sleeptime_agent_frequency,
        member_ids=tuple(row.agent_id for row in rows if row.agent_id),
        counted=first.turns,
        is_paused=bool(first.is_paused),
        first_seq=first.first_seq or 0,
        last_seq=first.last_seq or 0,
    )


def of_managers(
    tx: Transaction, organization_id: str, agent_ids: Sequence[str]
) -> dict[str, Group]:
    """Return the groups that these agents manage, by the manager's id.

    Args:
        tx: The transaction.
        organization_id: The organization of the agents.
        agent_ids: The agents; those without a group are left out of the result.
    """
    statement = _GROUPS.select.where(
        groups.c.manager_agent_id.in_(agent_ids), groups.c.organization_id == organization_id
    ).order_by(groups.c.seq)
    return {group.manager_agent_id or "": group for group in _whole(tx, _GROUPS.all(tx, statement))}


def of_member(tx: Transaction, agent_id: str) -> list[Group]:
    """Return the groups in which the agent is a member, oldest first.

    Args:
        tx: The transaction, or a read.
        agent_id: The member; groups that it only manages do not count.
    """
    members = select(groups_agents.c.group_id).where(groups_agents.c.agent_id == agent_id)
    return _whole(
        tx, _GROUPS.all(tx, _GROUPS.select.where(groups.c.id.in_(members)).order_by(groups.c.seq))
    )


def add_blocks(tx: Transaction, group_id: str, block_ids: Iterable[str]) -> None:
    """Record blocks as shared by the group; repeated ones have no effect.

    Args:
        tx: The transaction.
        group_id: The group.
        block_ids: The blocks. They are not attached to agents here.
    """
    tx.run(_ADD_BLOCK, [{"group_id": group_id, "block_id": id} for id in block_ids])


def remove_block(tx: Transaction, group_id: str, block_id: str) -> None:
    """Delete the record that the group shares this block.

    Args:
        tx: The transaction.
        group_id: The group.
        block_id: The block. It is not detached from agents here.
    """
    tx.run(
        delete(groups_blocks).where(
            groups_blocks.c.group_id == group_id, groups_blocks.c.block_id == block_id
        )
    )


def _add_members(tx: Transaction, group: Group) -> None:
    rows = [
        {"group_id": group.id, "agent_id": id, "place": number}
        for number, id in enumerate(group.agent_ids)
    ]
    tx.run(_ADD_MEMBER, rows)


def _whole(tx: Transaction, rows: Sequence[Group]) -> list[Group]:
    """Return the groups with their members and blocks."""
    if not rows:
        return []
    ids = {"group_ids": [group.id for group in rows]}
    members: dict[str, list[str]] = {}
    for row in tx.all(_MEMBERS, ids):
        members.setdefault(row.group_id, []).append(row.agent_id)
    blocks: dict[str, list[str]] = {}
    for row in tx.all(_BLOCKS, ids):
        blocks.setdefault(row.group_id, []).append(row.block_id)
    return [
        replace(
            group,
            agent_ids=tuple(members.get(group.id, ())),
            block_ids=tuple(blocks.get(group.id, ())),
        )
        for group in rows
    ]


def _is_usable(scope: Scope) -> list[ColumnElement[bool]]:
    """Return the conditions that the caller may use every agent of a group."""
    if scope.uses_every_agent:
        return []
    (member,) = may_use(scope, groups_agents.c.agent_id)
    (manager,) = may_use(scope, groups.c.manager_agent_id)
    unusable_members = (
        select(groups_agents.c.seq)
        .where(groups_agents.c.group_id == groups.c.id, ~member)
        .correlate(groups)
    )
    return [~unusable_members.exists(), or_(groups.c.manager_agent_id.is_(None), manager)]
