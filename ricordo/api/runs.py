"""Runs: one a turn."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from ricordo.api.call import Here, Paged, answer
from ricordo.api.wire.messages import MessageView, messages_to_wire
from ricordo.api.wire.runs import run_to_wire, run_usage_to_wire, step_to_wire
from ricordo.api.wire.schemas import AnyMessage, RunShape, RunUsageShape, StepShape
from ricordo.domain.message import Message
from ricordo.domain.run import Run, Step
from ricordo.storage import messages, runs
from ricordo.storage.store import Transaction

router = APIRouter(prefix="/v1/runs", tags=["runs"])


@router.get("/", response_model=list[RunShape])
async def list_runs(
    here: Here,
    paging: Paged,
    agent_id: str | None = None,
    agent_ids: Annotated[list[str] | None, Query()] = None,
    conversation_id: str | None = None,
    statuses: Annotated[list[str] | None, Query()] = None,
    background: bool | None = None,
    stop_reason: str | None = None,
    active: bool = False,
    ascending: bool | None = None,
) -> Response:
    """Runs, newest first unless told otherwise; of agents, of a thread, by status, or those still open."""
    wanted = (*(agent_ids or ()), *((agent_id,) if agent_id else ()))
    open_statuses = ("created", "running") if active else ()
    equal: dict[str, Any] = {
        "conversation_id": conversation_id,
        "background": background,
        "stop_reason": stop_reason,
    }
    found = await here.store.read(
        lambda tx: runs.page(
            tx,
            here.scope,
            paging.page(default=100, order="asc" if ascending else "desc"),
            agent_ids=wanted,
            statuses=(*(statuses or ()), *open_statuses),
            **{name: value for name, value in equal.items() if value is not None},
        )
    )
    return answer([run_to_wire(run) for run in found])


@router.get("/{run_id}", response_model=RunShape)
async def retrieve(here: Here, run_id: str) -> Response:
    """One run."""
    return answer(run_to_wire(await _run(here, run_id)))


@router.get("/{run_id}/messages", response_model=list[AnyMessage])
async def list_messages(here: Here, run_id: str, paging: Paged) -> Response:
    """The run's messages, those that came in among them."""

    def read(tx: Transaction) -> list[Message]:
        runs.get(tx, here.scope, run_id)
        return messages.page(tx, here.scope, paging.page(default=100, order="asc"), run_id=run_id)

    return answer(messages_to_wire(await here.store.read(read), MessageView()))


@router.get("/{run_id}/usage", response_model=RunUsageShape)
async def usage(here: Here, run_id: str) -> Response:
    """The run's tokens."""
    return answer(run_usage_to_wire((await _run(here, run_id)).usage))


@router.get("/{run_id}/steps", response_model=list[StepShape])
async def list_steps(here: Here, run_id: str, paging: Paged) -> Response:
    """The run's steps."""

    def read(tx: Transaction) -> list[Step]:
        runs.get(tx, here.scope, run_id)
        return runs.page_of_steps(tx, here.scope, paging.page(default=100), run_id=run_id)

    return answer([step_to_wire(step) for step in await here.store.read(read)])


async def _run(here: Here, run_id: str) -> Run:
    return await here.store.read(lambda tx: runs.get(tx, here.scope, run_id))
