"""Groups of the retired Letta V1 server, pairs with a sleeping agent among them; after their agents and blocks."""

from collections.abc import Sequence
from functools import partial

from ricordo.errors import NotFound
from ricordo.features.groups import service
from ricordo.features.groups.models import GroupRequest
from ricordo.features.imports.letta_run import LettaRun
from ricordo.features.imports.letta_tables import Row
from ricordo.features.imports.queries import Outcome
from ricordo.storage.engine.store import Transaction

_SETTINGS = (
    "manager_type termination_token max_turns sleeptime_agent_frequency max_message_buffer_length"
    " min_message_buffer_length"
)


async def take_groups(run: LettaRun) -> None:
    """Take the groups whose agents were taken; one without the others is left out."""
    sleepless = {
        row["id"]
        for row in await run.rows("agents", "id enable_sleeptime")
        if not row["enable_sleeptime"]
    }
    columns = f"id description manager_agent_id agent_ids hidden {_SETTINGS}"
    for row in await run.rows("groups", columns, order="created_at id"):
        members = row["agent_ids"] or [
            one["agent_id"]
            for one in await run.rows(
                "groups_agents", "agent_id", order="agent_id", group_id=row["id"]
            )
        ]
        shared = [
            one["block_id"]
            for one in await run.rows("groups_blocks", "block_id", group_id=row["id"])
        ]
        take = partial(
            _take,
            run=run,
            row=row,
            members=[str(id) for id in members],
            shared=[run.id("block", id) for id in shared if id in run.done],
            is_off=row["manager_agent_id"] in sleepless,
        )
        await run.once(row["id"], "groups", str(row["description"] or row["manager_type"]), take)


def _take(
    tx: Transaction,
    out: Outcome,
    run: LettaRun,
    row: Row,
    members: Sequence[str],
    shared: Sequence[str],
    is_off: bool,
) -> None:
    manager = row["manager_agent_id"]
    if missing := next(
        (id for id in (*members, *([manager] if manager else [])) if id not in run.done), None
    ):
        raise NotFound(f"its agent {missing} was not taken")
    config = {name: row[name] for name in _SETTINGS.split() if row[name] is not None}
    if manager:
        config["manager_agent_id"] = run.id("agent", manager)
    request = GroupRequest.model_validate(
        {
            "agent_ids": [run.id("agent", id) for id in members],
            "description": row["description"] or "",
            "manager_config": config,
            "shared_block_ids": list(shared),
            "hidden": row["hidden"],
        }
    )
    service.create(tx, run.scope, request, id=run.id("group", row["id"]), rests=is_off)
    out.take("groups")
