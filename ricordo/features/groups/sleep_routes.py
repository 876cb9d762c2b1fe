"""Sleeping agents over HTTP: what they did with what a user said, and the user's "not now"."""

from ricordo.api.call import Paged, RequestContext
from ricordo.api.models.base import Json
from ricordo.api.routing import Routes
from ricordo.features.groups import sleep_view
from ricordo.features.groups.sleep_models import (
    SleeptimeRequest,
    SleeptimeResponse,
    SleepWorkResponse,
)
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/v1/agents/{agent_id}/sleeptime", tags=["groups"], scope="memory")


@router.get("", response_model=SleeptimeResponse)
def retrieve(tx: Transaction, context: RequestContext, agent_id: str) -> Json:
    """The agents that work on this agent's memory, and whether the caller said "not now"."""
    return SleeptimeResponse.from_pair(sleep_view.pair_of(tx, context.scope, agent_id))


@router.patch("", response_model=SleeptimeResponse)
def modify(tx: Transaction, context: RequestContext, agent_id: str, body: SleeptimeRequest) -> Json:
    """Say "not now" for what the caller says, or take that back. What was said meanwhile is not read later."""
    return SleeptimeResponse.from_pair(
        sleep_view.set_paused(tx, context.scope, agent_id, is_paused=body.paused)
    )


@router.get("/transcripts", response_model=list[SleepWorkResponse])
def list_transcripts(
    tx: Transaction, context: RequestContext, agent_id: str, paging: Paged
) -> list[Json]:
    """What sleeping agents did, by default the newest first. A user sees what came of their own words."""
    pair = sleep_view.pair_of(tx, context.scope, agent_id)
    return [
        SleepWorkResponse.from_work(work)
        for work in sleep_view.work_of(tx, context.scope, pair.group, paging.page(default=20))
    ]
