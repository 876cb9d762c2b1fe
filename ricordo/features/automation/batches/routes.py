"""Batches over HTTP: made, listed, read and cancelled, and what agents answered in them."""

from types import NoneType

from ricordo.api.call import Paged, RequestContext
from ricordo.api.messages import request_of, sent_again
from ricordo.api.models.af_messages import to_af
from ricordo.api.models.base import Json
from ricordo.api.routing import Routes
from ricordo.features.automation.batches import queries, service
from ricordo.features.automation.batches.models import BatchRequest, BatchResponse
from ricordo.llm.addresses import require_callable
from ricordo.storage import jobs
from ricordo.storage.engine.store import Transaction

router = Routes(
    prefix="/v1/messages/batches",
    tags=["batches"],
    scope="messages",
    goes_first=True,  # the core has a route for one message, whose id could be "batches"
)


@router.post("", response_model=BatchResponse)
async def create(context: RequestContext, body: BatchRequest) -> Json:
    """Send requests to agents and return at once; a job answers them. `callback_url` is called when the batch has ended."""
    if body.callback_url:
        require_callable(
            body.callback_url, allow_private=context.runtime.settings.allow_private_callbacks
        )
    for one in body.requests:
        one.refuse_unsupported()
        request_of(context.scope, one.agent_id, one)
    digest, is_retry = await sent_again(context)
    made = await context.store.write(
        lambda tx: service.create(tx, context.scope, body, digest, is_retry=is_retry)
    )
    return BatchResponse.of(made, counts={"waiting": len(body.requests)})


@router.get("", response_model=list[BatchResponse])
def list_batches(tx: Transaction, context: RequestContext, paging: Paged) -> list[Json]:
    """The batches, by default newest first."""
    found = jobs.page(tx, context.scope, paging.page(default=100), kind=service.RUN)
    counts = queries.counts(tx, [one.id for one in found])
    return [BatchResponse.of(one, counts=counts[one.id]) for one in found]


@router.get("/{batch_id}", response_model=BatchResponse)
def retrieve(tx: Transaction, context: RequestContext, batch_id: str) -> Json:
    """One batch: how far it is, and which of its requests failed."""
    found = service.get(tx, context.scope, batch_id)
    counts, problems = queries.counts(tx, [batch_id]), queries.problems(tx, batch_id)
    return BatchResponse.of(found, counts=counts[batch_id], problems=problems)


@router.patch("/{batch_id}/cancel", response_model=NoneType)
def cancel(tx: Transaction, context: RequestContext, batch_id: str) -> None:
    """End a batch: turns of it that run are cancelled within seconds, and the rest of its requests is not sent."""
    service.cancel(tx, context.scope, batch_id)


@router.get("/{batch_id}/messages", response_model=dict[str, list[Json]])
def list_messages(
    tx: Transaction,
    context: RequestContext,
    batch_id: str,
    paging: Paged,
    agent_id: str | None = None,
) -> Json:
    """What agents answered in the batch, by default newest first; of one agent, or of all."""
    service.get(tx, context.scope, batch_id)
    found = queries.page_of_messages(
        tx, context.scope, paging.page(default=100), batch_id, agent_id
    )
    told = [
        to_af(one, one.id, one.agent_id) | {"run_id": one.run_id, "step_id": one.step_id}
        for one in found
    ]
    return {"messages": told}
