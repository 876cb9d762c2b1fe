"""Batches over HTTP: create, list, read and cancel them, and list their messages."""

from types import NoneType

from ricordo.api.call import Paged, RequestContext
from ricordo.api.messages import request_of, sent_again
from ricordo.api.models.af_messages import to_af
from ricordo.api.routing import Routes
from ricordo.domain.text import Json
from ricordo.features.automation.batches import queries, service
from ricordo.features.automation.batches.models import BatchRequest, BatchResponse
from ricordo.llm.addresses import require_callable
from ricordo.storage import jobs
from ricordo.storage.engine.store import Transaction

router = Routes(
    prefix="/v1/messages/batches",
    tags=["batches"],
    scope="messages",
    goes_first=True,  # the core's route for one message would take "batches" for the message's id
)


@router.post("", response_model=BatchResponse)
async def create(context: RequestContext, body: BatchRequest) -> Json:
    """Send requests to agents and return at once; a job answers them.

    When the batch has ended, `callback_url` is called.
    """
    if body.callback_url:
        require_callable(
            body.callback_url, allow_private=context.runtime.settings.allow_private_callbacks
        )
    for item in body.requests:
        item.refuse_unsupported()
        request_of(context.scope, item.agent_id, item)
    digest, is_retry = await sent_again(context)
    batch = await context.store.write(
        lambda tx: service.create(tx, context.scope, body, digest, is_retry=is_retry)
    )
    return BatchResponse.of(batch, counts={"waiting": len(body.requests)})


@router.get("", response_model=list[BatchResponse])
def list_batches(tx: Transaction, context: RequestContext, paging: Paged) -> list[Json]:
    """List the batches, by default the newest first."""
    batches = jobs.page(tx, context.scope, paging.page(default=100), kind=service.RUN)
    counts = queries.counts(tx, [batch.id for batch in batches])
    return [BatchResponse.of(batch, counts=counts[batch.id]) for batch in batches]


@router.get("/{batch_id}", response_model=BatchResponse)
def retrieve(tx: Transaction, context: RequestContext, batch_id: str) -> Json:
    """Return a batch with its progress and its failed requests."""
    batch = service.get(tx, context.scope, batch_id)
    counts = queries.counts(tx, [batch_id])[batch_id]
    return BatchResponse.of(batch, counts=counts, problems=queries.problems(tx, batch_id))


@router.patch("/{batch_id}/cancel", response_model=NoneType)
def cancel(tx: Transaction, context: RequestContext, batch_id: str) -> None:
    """Cancel a batch: running turns end within seconds, and no more requests are sent."""
    service.cancel(tx, context.scope, batch_id)


@router.get("/{batch_id}/messages", response_model=dict[str, list[Json]])
def list_messages(
    tx: Transaction,
    context: RequestContext,
    batch_id: str,
    paging: Paged,
    agent_id: str | None = None,
) -> Json:
    """List agents' messages in the batch, by default the newest first.

    With `agent_id`, only messages of this agent.
    """
    service.get(tx, context.scope, batch_id)
    messages = queries.page_of_messages(
        tx, context.scope, paging.page(default=100), batch_id, agent_id
    )
    return {
        "messages": [
            to_af(message, message.id, message.agent_id)
            | {"run_id": message.run_id, "step_id": message.step_id}
            for message in messages
        ]
    }
