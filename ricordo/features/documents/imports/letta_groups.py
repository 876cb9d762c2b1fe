"""Import groups of a Letta database, including pairs with a sleeptime agent.

Their agents and blocks are imported first.
"""

from collections.abc import Sequence
from functools import partial

from ricordo.errors import NotFound
from ricordo.features.documents.imports.letta_run import LettaRun
from ricordo.features.documents.imports.letta_tables import Row
from ricordo.features.documents.imports.queries import Outcome
from ricordo.features.groups import service
from ricordo.features.groups.models import GroupRequest
from ricordo.storage.engine.store import Transaction

_SETTINGS = (
    "manager_type termination_token max_turns sleeptime_agent_frequency max_message_buffer_length"
    " min_message_buffer_length"
)


async def import_groups(run: LettaRun) -> None:
    """Import the groups whose agents were all imported; others are left out."""
    without_sleeptime = {
        row["id"]
        for row in await run.rows("agents", "id enable_sleeptime")
        if not row["enable_sleeptime"]
    }
    columns = f"id description manager_agent_id agent_ids hidden {_SETTINGS}"
    for row in await run.rows("groups", columns, order="created_at id"):
        members = row["agent_ids"] or [
            link["agent_id"]
            for link in await run.rows(
                "groups_agents", "agent_id", order="agent_id", group_id=row["id"]
            )
        ]
        block_ids = [
            link["block_id"]
            for link in await run.rows("groups_blocks", "block_id", group_id=row["id"])
        ]
        import_group = partial(
            _import_group,
            run=run,
            row=row,
            members=[str(id) for id in members],
            shared_block_ids=[run.id("block", id) for id in block_ids if id in run.done],
            is_without_sleeptime=row["manager_agent_id"] in without_sleeptime,
        )
        await run.import_once(
            row["id"], "groups", str(row["description"] or row["manager_type"]), import_group
        )


def _import_group(
    tx: Transaction,
    outcome: Outcome,
    *,
    run: LettaRun,
    row: Row,
    members: Sequence[str],
    shared_block_ids: Sequence[str],
    is_without_sleeptime: bool,
) -> None:
    manager = row["manager_agent_id"]
    everyone = [*members, manager] if manager else members
    if missing := [id for id in everyone if id not in run.done]:
        raise NotFound(f"its agent {missing[0]} was not imported")
    config = {name: row[name] for name in _SETTINGS.split() if row[name] is not None}
    if manager:
        config["manager_agent_id"] = run.id("agent", manager)
    request = GroupRequest.model_validate(
        {
            "agent_ids": [run.id("agent", id) for id in members],
            "description": row["description"] or "",
            "manager_config": config,
            "shared_block_ids": list(shared_block_ids),
            "hidden": row["hidden"],
        }
    )
    service.create(
        tx, run.scope, request, id=run.id("group", row["id"]), rests=is_without_sleeptime
    )
    outcome.take("groups")
