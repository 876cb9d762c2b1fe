"""The groups in which an agent is a member, over HTTP."""

from typing import Annotated

from fastapi import Query

from ricordo.api.call import Paged, RequestContext
from ricordo.api.models.base import without_none
from ricordo.api.routing import Routes
from ricordo.domain.text import Json
from ricordo.features.groups import queries
from ricordo.features.groups.models import GroupResponse
from ricordo.features.groups.records import ManagerType
from ricordo.features.groups.responses import groups_json
from ricordo.storage import agents
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/v1/agents/{agent_id}/groups", tags=["groups"], scope="agents")


@router.get("", response_model=list[GroupResponse])
def list_of_agent(
    tx: Transaction,
    context: RequestContext,
    agent_id: str,
    paging: Paged,
    manager_type: Annotated[
        ManagerType | None, Query(description="Only groups of this kind.")
    ] = None,
) -> list[Json]:
    """List the groups in which the agent is a member, by default newest first.

    Groups that it manages are not listed.
    """
    agents.require(tx, context.scope, agent_id)
    page = paging.page(default=100)
    groups = queries.page(
        tx,
        context.scope,
        page,
        shows_hidden=True,
        agent_id=agent_id,
        **without_none(manager_type=manager_type),
    )
    return groups_json(tx, context.scope, groups)
