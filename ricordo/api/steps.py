"""Steps: one call of a model each."""

from typing import Any

from fastapi import APIRouter, Response

from ricordo.api.call import Here, Paged, answer
from ricordo.api.wire.message_schemas import AnyMessage
from ricordo.api.wire.messages import MessageView, messages_to_wire
from ricordo.api.wire.runs import step_metrics_to_wire, step_to_wire
from ricordo.api.wire.schemas import StepMetricsShape, StepShape
from ricordo.domain.message import Message
from ricordo.domain.run import Step
from ricordo.storage import messages, runs
from ricordo.storage.store import Transaction

router = APIRouter(prefix="/v1/steps", tags=["steps"])


@router.get("/", response_model=list[StepShape])
async def list_steps(here: Here, paging: Paged, agent_id: str | None = None, model: str | None = None) -> Response:
    """Steps, newest first unless told otherwise; of an agent, or of a model."""
    equal: dict[str, Any] = {"agent_id": agent_id, "model": model}
    found = await here.store.read(
        lambda tx: runs.page_of_steps(
            tx, here.scope, paging.page(), **{name: value for name, value in equal.items() if value is not None}
        )
    )
    return answer([step_to_wire(step) for step in found])


@router.get("/{step_id}", response_model=StepShape)
async def retrieve(here: Here, step_id: str) -> Response:
    """One step."""
    return answer(step_to_wire(await _step(here, step_id)))


@router.get("/{step_id}/metrics", response_model=StepMetricsShape)
async def metrics(here: Here, step_id: str) -> Response:
    """How long the step took, and where the time went."""
    return answer(step_metrics_to_wire(await _step(here, step_id)))


@router.get("/{step_id}/messages", response_model=list[AnyMessage])
async def list_messages(here: Here, step_id: str, paging: Paged) -> Response:
    """The step's messages."""
    page = paging.page(default=100, order="asc")

    def read(tx: Transaction) -> list[Message]:
        step = runs.get_step(tx, here.scope, step_id)
        return messages.page(tx, here.scope, page, run_id=step.run_id, step_id=step_id)

    return answer(messages_to_wire(await here.store.read(read), MessageView(), newest_first=page.order == "desc"))


async def _step(here: Here, step_id: str) -> Step:
    return await here.store.read(lambda tx: runs.get_step(tx, here.scope, step_id))
