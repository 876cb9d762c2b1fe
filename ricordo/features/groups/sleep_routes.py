"""Sleeptime agents over HTTP: their work, and its pause by the user ("not now")."""

from ricordo.api.call import Paged, RequestContext
from ricordo.api.routing import Routes
from ricordo.domain.text import Json
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
    """Return the agents that work on this agent's memory, and whether the caller said "not now"."""
    return SleeptimeResponse.from_pair(sleep_view.pair_of(tx, context.scope, agent_id))


@router.patch("", response_model=SleeptimeResponse)
def modify(tx: Transaction, context: RequestContext, agent_id: str, body: SleeptimeRequest) -> Json:
    """Pause the reading of messages ("not now"), or resume it.

    Messages that are sent during the pause are not read later.
    """
    return SleeptimeResponse.from_pair(
        sleep_view.set_paused(tx, context.scope, agent_id, is_paused=body.paused)
    )


@router.get("/transcripts", response_model=list[SleepWorkResponse])
def list_transcripts(
    tx: Transaction, context: RequestContext, agent_id: str, paging: Paged
) -> list[Json]:
    """List the work of sleeptime agents, by default newest first.

    A user sees only the work on the user's messages.
    """
    pair = sleep_view.pair_of(tx, context.scope, agent_id)
    return [
        SleepWorkResponse.from_work(work)
        for work in sleep_view.work_of(tx, context.scope, pair.group, paging.page(default=20))
    ]
