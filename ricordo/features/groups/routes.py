"""Groups and their blocks over HTTP. Messages to groups are in `talk_routes`."""

from types import NoneType
from typing import Annotated, Any

from fastapi import Query

from ricordo.api.call import Paged, RequestContext, note
from ricordo.api.models.base import NoteResponse, without_none
from ricordo.api.routing import Routes
from ricordo.domain.text import Json
from ricordo.features.groups import queries, service
from ricordo.features.groups.models import GroupRequest, GroupResponse, GroupUpdate
from ricordo.features.groups.records import ManagerType
from ricordo.features.groups.responses import groups_json
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/v1/groups", tags=["groups"], scope="agents")


@router.get("/", response_model=list[GroupResponse])
def list_groups(
    tx: Transaction,
    context: RequestContext,
    paging: Paged,
    manager_type: Annotated[
        ManagerType | None, Query(description="Only groups of this kind.")
    ] = None,
    show_hidden_groups: Annotated[bool, Query(description="Include hidden groups.")] = False,
) -> list[Json]:
    """List groups, by default oldest first."""
    page = paging.page(order="asc")
    return groups_json(
        tx,
        context.scope,
        queries.page(
            tx,
            context.scope,
            page,
            shows_hidden=show_hidden_groups,
            **without_none(manager_type=manager_type),
        ),
    )


@router.get("/count", response_model=int)
def count(tx: Transaction, context: RequestContext) -> int:
    """Return the number of groups; hidden ones count too."""
    return queries.count(tx, context.scope)


@router.post("/", response_model=GroupResponse)
def create(tx: Transaction, context: RequestContext, body: GroupRequest) -> Json:
    """Create a group."""
    return groups_json(tx, context.scope, [service.create(tx, context.scope, body)])[0]


@router.get("/{group_id}", response_model=GroupResponse)
def retrieve(tx: Transaction, context: RequestContext, group_id: str) -> Json:
    """Return one group."""
    return groups_json(tx, context.scope, [queries.get(tx, context.scope, group_id)])[0]


@router.patch("/{group_id}", response_model=GroupResponse)
def modify(tx: Transaction, context: RequestContext, group_id: str, body: GroupUpdate) -> Json:
    """Change a group; omitted fields keep their values."""
    return groups_json(tx, context.scope, [service.change(tx, context.scope, group_id, body)])[0]


@router.delete("/{group_id}", response_model=NoteResponse)
def delete(tx: Transaction, context: RequestContext, group_id: str) -> Json:
    """Delete a group. Its agents and their messages are not deleted."""
    service.delete(tx, context.scope, group_id)
    return note(f"Group id={group_id} successfully deleted")


@router.patch("/{group_id}/blocks/attach/{block_id}", response_model=NoneType)
def attach_block(tx: Transaction, context: RequestContext, group_id: str, block_id: str) -> Any:
    """Attach a block to all agents of the group."""
    queries.lock(tx, group_id)
    service.attach(tx, context.scope, queries.get(tx, context.scope, group_id), block_id)


@router.patch("/{group_id}/blocks/detach/{block_id}", response_model=NoneType)
def detach_block(tx: Transaction, context: RequestContext, group_id: str, block_id: str) -> Any:
    """Detach a block of the group from its agents."""
    queries.lock(tx, group_id)
    service.detach(tx, context.scope, queries.get(tx, context.scope, group_id), block_id)
