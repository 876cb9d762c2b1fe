"""Create, change and delete groups, and update their agents.

Agents of a group see its blocks. A sleeptime agent works on the memory of its group's manager. So
it also gets the manager's blocks, and later changes of the attachments happen to both.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ricordo.agents.lifecycle import attach_block
from ricordo.domain.agent import ENABLE_SLEEPTIME, MANAGES, MESSAGE_BUFFER, SLEEPS_FOR, Agent
from ricordo.domain.ids import new_id
from ricordo.domain.scope import Scope
from ricordo.errors import Conflict, Invalid, NotFound
from ricordo.features.groups import queries
from ricordo.features.groups.models import GroupRequest, GroupUpdate, ManagerConfigRequest
from ricordo.features.groups.records import ASLEEP, MANAGED, Group, ManagerType
from ricordo.storage import agents, blocks
from ricordo.storage.engine.store import Transaction

DEFAULT_TOKEN = "DONE!"  # noqa: S105 - a word that ends a talk; a wire fact
_LEAST_BUFFER = 4  # a wire fact: both lengths must be greater
# The most messages in the window of a voice agent, and the number that remains after older ones
# leave. The values are those of the retired Letta V1 server.
VOICE_BUFFER = (30, 15)
_BUFFER = ("max_message_buffer_length", "min_message_buffer_length")
# The settings of each kind of group.
OF_KIND: dict[ManagerType, tuple[str, ...]] = {
    "round_robin": ("max_turns",),
    "supervisor": (),
    "dynamic": ("termination_token", "max_turns"),
    "sleeptime": ("sleeptime_agent_frequency",),
    "voice_sleeptime": _BUFFER,
}


def create(
    tx: Transaction,
    scope: Scope,
    request: GroupRequest,
    *,
    id: str | None = None,
    rests: bool = False,
) -> Group:
    """Create a group.

    Args:
        tx: The transaction.
        scope: The caller, who may use its agents and see its blocks.
        request: The members, the manager, the settings and the shared blocks.
        id: The group's id; None for a new one.
        rests: Create a sleeptime group that is switched off, such as an imported one: its members
            do not work on the manager's memory yet. Other groups ignore it.

    Raises:
        NotFound: if an agent or a block is missing.
        Invalid: if the kind, the members or the settings are not possible.
        Conflict: if the manager has another group, if a member works on another agent's memory, or
            if an agent has another block with the label of a shared one.
    """
    manager_config = request.manager_config
    now = tx.clock.now()
    kind = manager_config.manager_type
    if kind == "swarm":
        raise Invalid(
            "Groups of the kind swarm cannot be created. Use round_robin, dynamic or supervisor."
        )
    settings = _with_end_word({name: getattr(manager_config, name) for name in OF_KIND[kind]})
    group = Group(
        id=id or new_id("group"),
        organization_id=scope.organization_id,
        manager_type=kind,
        description=request.description,
        agent_ids=tuple(request.agent_ids),
        manager_agent_id=manager_config.manager_agent_id if kind in MANAGED else None,
        hidden=bool(request.hidden),
        created_by=scope.user_id,
        created_at=now,
        updated_at=now,
        **settings,
    )
    _require_buffer(group)
    members = _require_members(tx, scope, group)
    group = store_new(tx, scope, group, members, tuple(request.shared_block_ids))
    if rests and group.manager_type in ASLEEP and group.manager_agent_id:
        change_settings(tx, scope, group.manager_agent_id, **{ENABLE_SLEEPTIME: None})
    return group


def store_new(
    tx: Transaction,
    scope: Scope,
    group: Group,
    members: Sequence[Agent],
    block_ids: Sequence[str] = (),
) -> Group:
    """Store a group whose members are known, and set up its manager and members.

    Args:
        tx: The transaction.
        scope: The caller.
        group: The group with its members' ids; nothing about it is checked.
        members: The agents of these ids.
        block_ids: Blocks to attach to all agents of the group.

    Raises:
        NotFound: if a block is missing.
        Conflict: if an agent has another block of the same label, or is named twice.
    """
    queries.insert_group(tx, group)
    if group.manager_agent_id:
        change_settings(tx, scope, group.manager_agent_id, **{MANAGES: group.id})
    if group.manager_type in ASLEEP:
        _begin_memory_work(tx, scope, group, [member.id for member in members])
    return _attach_all(tx, scope, group, block_ids)


def change(tx: Transaction, scope: Scope, group_id: str, request: GroupUpdate) -> Group:
    """Change a group; fields that were not sent keep their values.

    Args:
        tx: The transaction.
        scope: The caller.
        group_id: The group.
        request: The changes. Given members and blocks replace all earlier ones.

    Raises:
        NotFound, Invalid, Conflict: as in `create`.
    """
    queries.lock(tx, group_id)
    before = queries.get(tx, scope, group_id)
    group = replace(before, updated_at=tx.clock.now())
    sent_fields = request.model_fields_set
    if request.description is not None:
        group = replace(group, description=request.description)
    if "hidden" in sent_fields:
        group = replace(group, hidden=bool(request.hidden))
    if request.manager_config:
        group = _configured(group, request.manager_config)
    if request.agent_ids is not None:
        group = replace(group, agent_ids=tuple(request.agent_ids))
    _require_members(tx, scope, group)
    if group.manager_agent_id != before.manager_agent_id:
        _change_manager(tx, scope, before, group)
    has_new_members = group.agent_ids != before.agent_ids
    queries.change(tx, group, has_new_members=has_new_members)
    if group.manager_type == "voice_sleeptime" and group.manager_agent_id:
        change_settings(
            tx, scope, group.manager_agent_id, **{MESSAGE_BUFFER: list(buffer_of(group))}
        )
    if has_new_members:
        _change_members(tx, scope, before, group)
    if request.shared_block_ids is not None:
        for block_id in set(before.block_ids) - set(request.shared_block_ids):
            detach(tx, scope, group, block_id)
        group = _attach_all(tx, scope, replace(group, block_ids=()), request.shared_block_ids)
    return group


def delete(tx: Transaction, scope: Scope, group_id: str) -> None:
    """Delete a group; its agents and their messages stay.

    Args:
        tx: The transaction.
        scope: The caller.
        group_id: The group.

    Raises:
        NotFound: The caller may not use such a group.
    """
    queries.lock(tx, group_id)
    group = queries.get(tx, scope, group_id)
    _end_memory_work(tx, scope, group, group.agent_ids)
    if group.manager_agent_id:
        change_settings(tx, scope, group.manager_agent_id, **_without_group(group))
    queries.remove(tx, group.id)


def attach(tx: Transaction, scope: Scope, group: Group, block_id: str) -> None:
    """Attach a block to all agents of the group; attaching it again has no effect.

    Args:
        tx: The transaction.
        scope: The caller.
        group: The group with its agents.
        block_id: The block.

    Raises:
        NotFound: if the block or an agent is missing.
        Conflict: if an agent has another block of the same label.
    """
    for agent_id in group.everyone:
        attach_block(tx, scope, agent_id, block_id)
    queries.add_blocks(tx, group.id, [block_id])


def detach(tx: Transaction, scope: Scope, group: Group, block_id: str) -> None:
    """Detach a block of the group from its agents.

    A block that is not shared by the group stays attached to agents that have it.

    Args:
        tx: The transaction.
        scope: The caller.
        group: The group with its agents and blocks.
        block_id: The block.

    Raises:
        NotFound: if the block is missing.
    """
    blocks.get(tx, scope, block_id)
    if block_id not in group.block_ids:
        return
    for agent_id in group.everyone:
        blocks.detach(tx, agent_id, block_id)
    queries.remove_block(tx, group.id, block_id)


def buffer_of(group: Group) -> tuple[int, int]:
    """Return the limits for the window of the voice agent that manages the group.

    Args:
        group: The group. If it sets no lengths, `VOICE_BUFFER` applies.

    Returns:
        The most messages, and the number that remains after older ones leave.
    """
    if group.max_message_buffer_length is None or group.min_message_buffer_length is None:
        return VOICE_BUFFER
    return group.max_message_buffer_length, group.min_message_buffer_length


def _attach_all(tx: Transaction, scope: Scope, group: Group, block_ids: Iterable[str]) -> Group:
    ids = tuple(dict.fromkeys(block_ids))
    for block_id in ids:
        attach(tx, scope, group, block_id)
    return replace(group, block_ids=ids)


def _configured(group: Group, manager_config: ManagerConfigRequest) -> Group:
    """Return the group with the settings that were sent. Raises Invalid."""
    if manager_config.manager_type != group.manager_type:
        raise Invalid(
            f"A group of the kind {group.manager_type} cannot become "
            f"{manager_config.manager_type}. Create a new group."
        )
    names = OF_KIND[group.manager_type]
    changes = _with_end_word(
        {
            name: getattr(manager_config, name)
            for name in names
            if name in manager_config.model_fields_set
        }
    )
    if group.manager_type in MANAGED and manager_config.manager_agent_id:
        changes["manager_agent_id"] = manager_config.manager_agent_id
    group = replace(group, **changes)
    _require_buffer(group)
    return group


def _with_end_word(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings of a group; a null `termination_token` gets the default word."""
    if settings.get("termination_token", DEFAULT_TOKEN) is None:
        return {**settings, "termination_token": DEFAULT_TOKEN}
    return settings


def _require_buffer(group: Group) -> None:
    """Raise Invalid unless both lengths are null, or both are valid.

    Valid lengths are above 4, and the maximum is above the minimum.
    """
    maximum = group.max_message_buffer_length
    minimum = group.min_message_buffer_length
    if maximum is None and minimum is None:
        return
    if maximum is None or minimum is None:
        raise Invalid(
            "Give both max_message_buffer_length and min_message_buffer_length, or neither."
        )
    if minimum <= _LEAST_BUFFER or maximum <= _LEAST_BUFFER or maximum <= minimum:
        raise Invalid(
            f"max_message_buffer_length ({maximum}) and min_message_buffer_length ({minimum}) must "
            f"both be greater than {_LEAST_BUFFER}, and the maximum must be greater than the "
            "minimum."
        )


def _require_members(tx: Transaction, scope: Scope, group: Group) -> list[Agent]:
    """Return the members.

    Raises NotFound with the ids of missing agents, Conflict as `create` does, and Invalid if an
    agent is named twice or leads itself, or if members of a dynamic group have the same name.
    """
    agents_by_id: dict[str, Agent] = {}
    for id in group.everyone:
        with suppress(NotFound):
            agents_by_id[id] = agents.get(tx, scope, id)
    if missing := [id for id in dict.fromkeys(group.everyone) if id not in agents_by_id]:
        raise NotFound(f"Agent with ID {', '.join(missing)} not found")
    if twice := _first_twice(group.agent_ids):
        raise Invalid(f"The agent {twice} is named twice. Name each member once.")
    if group.manager_agent_id in group.agent_ids:
        raise Invalid(
            "The manager of a group cannot be one of its members. Remove it from agent_ids."
        )
    members = [agents_by_id[id] for id in group.agent_ids]
    same = _first_twice([member.name for member in members])
    if same and group.manager_type == "dynamic":
        raise Invalid(
            f'Two members are called "{same}", and the manager calls them by name. Rename one of '
            "them."
        )
    manager = agents_by_id.get(group.manager_agent_id or "")
    if manager and manager.settings.get(MANAGES, group.id) != group.id:
        raise Conflict(
            f"The agent {manager.id} already manages another group. Choose another manager."
        )
    if group.manager_type in ASLEEP:
        _require_no_other_manager(members, group.manager_agent_id)
    return members


def _first_twice(names: Sequence[str]) -> str | None:
    """Return the first name that occurs more than once."""
    return next((name for name in names if names.count(name) > 1), None)


def _require_no_other_manager(members: Sequence[Agent], manager_id: str | None) -> None:
    for member in members:
        if member.is_asleep_for not in (None, manager_id):
            raise Conflict(
                f"The agent {member.id} already works on another agent's memory. Choose another "
                "agent."
            )


def _change_manager(tx: Transaction, scope: Scope, before: Group, group: Group) -> None:
    _end_memory_work(tx, scope, before, before.agent_ids)
    if before.manager_agent_id:
        change_settings(tx, scope, before.manager_agent_id, **_without_group(before))
    if group.manager_agent_id:
        managed = {MANAGES: group.id, MESSAGE_BUFFER: None}
        change_settings(tx, scope, group.manager_agent_id, **managed)
    for block_id in group.block_ids:
        if before.manager_agent_id:
            blocks.detach(tx, before.manager_agent_id, block_id)
        if group.manager_agent_id:
            attach_block(tx, scope, group.manager_agent_id, block_id)
    if group.manager_type in ASLEEP:
        _begin_memory_work(
            tx, scope, group, [id for id in before.agent_ids if id in group.agent_ids]
        )


def _without_group(group: Group) -> dict[str, None]:
    """Return the settings that the manager of a group loses with it."""
    lost: dict[str, None] = {MANAGES: None, MESSAGE_BUFFER: None}
    if group.manager_type in ASLEEP:
        lost[ENABLE_SLEEPTIME] = None
    return lost


def _change_members(tx: Transaction, scope: Scope, before: Group, group: Group) -> None:
    removed_ids = [id for id in before.agent_ids if id not in group.agent_ids]
    new_ids = [id for id in group.agent_ids if id not in before.agent_ids]
    _end_memory_work(tx, scope, before, removed_ids)
    for block_id in group.block_ids:
        for id in removed_ids:
            blocks.detach(tx, id, block_id)
        for id in new_ids:
            attach_block(tx, scope, id, block_id)
    if group.manager_type in ASLEEP:
        _begin_memory_work(tx, scope, group, new_ids)


def _begin_memory_work(
    tx: Transaction, scope: Scope, group: Group, member_ids: Iterable[str]
) -> None:
    """Let these members work on the manager's memory.

    They get its blocks, except those whose label they already use.
    """
    manager_id = group.manager_agent_id or ""
    if group.manager_type == "voice_sleeptime":
        buffer = list(buffer_of(group))
    else:
        buffer = None
    change_settings(tx, scope, manager_id, **{ENABLE_SLEEPTIME: True, MESSAGE_BUFFER: buffer})
    for id in member_ids:
        change_settings(tx, scope, id, **{SLEEPS_FOR: manager_id})
        member_blocks = blocks.attached(tx, id)
        used_names = {block.id for block in member_blocks} | {
            block.label for block in member_blocks
        }
        new_blocks = [
            block
            for block in blocks.attached(tx, manager_id)
            if not used_names & {block.id, block.label}
        ]
        blocks.attach(tx, id, new_blocks)
        blocks.pair(tx, manager_id, id)


def _end_memory_work(
    tx: Transaction, scope: Scope, group: Group, member_ids: Iterable[str]
) -> None:
    """End the work of these members on the manager's memory; their blocks stay attached."""
    if group.manager_type not in ASLEEP or not group.manager_agent_id:
        return
    for id in member_ids:
        change_settings(tx, scope, id, **{SLEEPS_FOR: None})
        blocks.unpair(tx, group.manager_agent_id, id)


def change_settings(tx: Transaction, scope: Scope, agent_id: str, **changes: Any) -> None:
    """Change settings of an agent, if it exists.

    Args:
        tx: The transaction.
        scope: The caller; only its organization matters.
        agent_id: The agent. Its row is locked until the transaction ends.
        **changes: New values by the setting's name; None removes a setting.
    """
    organization = Scope(scope.organization_id)
    agents.lock(tx, organization, agent_id)
    agent = agents.find(tx, organization, agent_id)
    if agent is None:
        return
    settings = {
        name: setting
        for name, setting in {**agent.settings, **changes}.items()
        if setting is not None
    }
    agents.update(tx, replace(agent, settings=settings))
