"""Groups in agent files, stored as requests for new groups, with the file's ids."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from ricordo.domain.scope import Scope
from ricordo.domain.text import Json
from ricordo.errors import Conflict, Invalid, NotFound
from ricordo.features.documents.agent_files.local_ids import LocalIds
from ricordo.features.documents.agent_files.tolerance import (
    ImportNotes,
    is_id_of,
    without_unknown,
)
from ricordo.features.groups import service
from ricordo.features.groups.models import GroupRequest
from ricordo.features.groups.records import Group
from ricordo.storage import blocks
from ricordo.storage.engine.store import Transaction

_GROUP = {"id", *GroupRequest.model_fields, *GroupRequest.ignored}


def group_json(ids: LocalIds, group: Group) -> Json:
    """Return a group as the request that would create it.

    Args:
        ids: The local ids of the file; ids of this group, its agents and its blocks are added.
        group: The stored group.
    """
    config: Json = {"manager_type": group.manager_type}
    if group.manager_agent_id:
        config["manager_agent_id"] = ids.of("agent", group.manager_agent_id)
    config |= {name: getattr(group, name) for name in service.OF_KIND.get(group.manager_type, ())}
    return {
        "id": ids.of("group", group.id),
        "agent_ids": [ids.of("agent", id) for id in group.agent_ids],
        "description": group.description,
        "manager_config": config,
        "shared_block_ids": [ids.of("block", id) for id in group.block_ids],
        "hidden": group.hidden,
    }


def mend_groups(groups: list[Json], content: Json, notes: ImportNotes) -> list[Json]:
    """Return the groups whose agents are all in the file.

    Other groups are left out and noted.

    Args:
        groups: The groups in the file, each with an id.
        content: The mended file, with its agents and blocks.
        notes: Gets notes on the changes.
    """
    agent_ids = {agent["id"] for agent in content["agents"]}
    block_ids = {block["id"] for block in content["blocks"]}
    mended = []
    for raw_group in groups:
        group = without_unknown(raw_group, _GROUP, "Groups", raw_group["id"], notes)
        config = group.get("manager_config")
        if not isinstance(config, dict):
            config = {"manager_type": "round_robin"}
        members = group.get("agent_ids")
        members = members if isinstance(members, list) else []
        manager = config.get("manager_agent_id")
        everyone = [*members, *([manager] if manager else [])]
        if missing := [id for id in everyone if not is_id_of(agent_ids, id)]:
            notes.add(
                f'Groups: one is left out, since its agent "{str(missing[0])[:80]}" is not in the '
                "file."
            )
            continue
        shared = group.get("shared_block_ids")
        if isinstance(shared, list):
            shared = [id for id in shared if is_id_of(block_ids, id)]
        else:
            shared = []
        mended.append(
            {**group, "agent_ids": members, "manager_config": config, "shared_block_ids": shared}
        )
    return mended


def insert_groups(
    tx: Transaction, scope: Scope, content: Json, ids: Mapping[str, str], notes: ImportNotes
) -> None:
    """Create the groups of a file.

    A group that cannot be created is left out and noted.

    Args:
        tx: The transaction.
        scope: The caller.
        content: The mended file, with its groups and agents.
        ids: The new ids of the file's agents, blocks and groups, by the ids in the file.
        notes: Gets notes on groups that are left out.
    """
    without_sleeptime = {
        ids[agent["id"]] for agent in content["agents"] if agent["enable_sleeptime"] is False
    }
    for group in content["groups"]:
        config: Json = dict(group["manager_config"])
        if config.get("manager_agent_id"):
            config["manager_agent_id"] = ids[config["manager_agent_id"]]
        fields: dict[str, Any] = {
            "agent_ids": [ids[id] for id in group["agent_ids"]],
            "description": group.get("description") or "",
            "manager_config": config,
            "hidden": group.get("hidden"),
        }
        try:
            request = GroupRequest.model_validate(fields)
            request.shared_block_ids = _shareable_blocks(
                tx, request, [ids[id] for id in group["shared_block_ids"] if id in ids]
            )
            rests = request.manager_config.manager_agent_id in without_sleeptime
            service.create(tx, scope, request, id=ids[group["id"]], rests=rests)
        except (ValidationError, Invalid, Conflict, NotFound) as error:
            if isinstance(error, ValidationError):
                reason = error.errors()[0]["msg"]
            else:
                reason = str(error)
            notes.add(f"Groups: one is left out, but its agents are imported. {reason}")


def _shareable_blocks(tx: Transaction, request: GroupRequest, block_ids: list[str]) -> list[str]:
    """Return the blocks that one agent of the group has, and that the others have or can get.

    An agent can get a block if no other block of the agent has the same label.
    """
    manager = request.manager_config.manager_agent_id
    everyone = [*request.agent_ids, *([manager] if manager else [])]
    labels = {block.id: block.label for id in everyone for block in blocks.attached(tx, id)}
    blocks_by_label = [
        {block.label: block.id for block in blocks.attached(tx, id)} for id in everyone
    ]
    return [
        id
        for id in block_ids
        if id in labels and all(by_label.get(labels[id], id) == id for by_label in blocks_by_label)
    ]
