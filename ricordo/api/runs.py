"""Runs: one a turn."""

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Query, Response

from ricordo.api.call import Here, Paged, answer
from ricordo.api.routing import Routes
from ricordo.api.wire.message_schemas import AnyMessage
from ricordo.api.wire.messages import MessageView, messages_to_wire
from ricordo.api.wire.runs import run_to_wire, run_usage_to_wire, step_to_wire
from ricordo.api.wire.schemas import Note, RunShape, RunUsageShape, StepShape
from ricordo.api.wire.telemetry import RunMetricsShape, run_metrics_to_wire
from ricordo.domain.ids import unique
from ricordo.domain.message import Message
from ricordo.domain.run import Run, Step
from ricordo.storage import messages, runs, tools
from ricordo.storage.store import Transaction

router = Routes(prefix="/v1/runs", tags=["runs"])


@dataclass(frozen=True, slots=True)
class RunQuery:
    """Which runs are wanted."""

    agent_id: str | None = None
    agent_ids: Annotated[list[str] | None, Query()] = None
    conversation_id: str | None = None
    statuses: Annotated[list[str] | None, Query()] = None
    background: bool | None = None
    stop_reason: str | None = None
    active: bool = False

    def agents(self) -> list[str]:
        """The agents that are named, in either way."""
        return [*(self.agent_ids or ()), *((self.agent_id,) if self.agent_id else ())]

    def wanted_statuses(self) -> list[str]:
        """The statuses that are named, and those of open runs where these are asked for."""
        return [*(self.statuses or ()), *(("created", "running") if self.active else ())]

    def equal(self) -> dict[str, Any]:
        """The columns that are compared as they are."""
        columns = {
            "conversation_id": self.conversation_id,
            "background": self.background,
            "stop_reason": self.stop_reason,
        }
        return {name: value for name, value in columns.items() if value is not None}


@router.get("/", response_model=list[RunShape])
async def list_runs(here: Here, paging: Paged, which: Annotated[RunQuery, Depends()]) -> Response:
    """Runs, newest first unless told otherwise; of agents, of a thread, by status, or those still open."""
    page = paging.page(default=100)
    found = await here.store.read(
        lambda tx: runs.page(
            tx, here.scope, page, agent_ids=which.agents(), statuses=which.wanted_statuses(), **which.equal()
        )
    )
    return answer([run_to_wire(run) for run in found])


@router.get("/{run_id}", response_model=RunShape)
async def retrieve(here: Here, run_id: str) -> Response:
    """One run."""
    return answer(run_to_wire(await _run(here, run_id)))


@router.delete("/{run_id}", response_model=Note)
async def delete(here: Here, run_id: str) -> Response:
    """Delete a run that has ended, with its steps and traces. Its messages stay, and in the ledger what it spent."""
    await here.store.write(lambda tx: runs.delete_one(tx, here.scope, run_id))
    return answer({"message": f"{run_id} was deleted."})


@router.get("/{run_id}/metrics", response_model=RunMetricsShape)
async def metrics(here: Here, run_id: str) -> Response:
    """How long the run took, how many steps it had, and which tools it used."""

    def read(tx: Transaction) -> tuple[Run, list[str]]:
        run = runs.get(tx, here.scope, run_id)
        said = messages.of_run(tx, run_id)
        names = unique([call.name for message in said for call in message.tool_calls])
        known = tools.by_names(tx, here.scope, names) if names else {}
        return run, [known[name].id for name in names if name in known]

    return answer(run_metrics_to_wire(*await here.store.read(read)))


@router.get("/{run_id}/messages", response_model=list[AnyMessage])
async def list_messages(here: Here, run_id: str, paging: Paged) -> Response:
    """The run's messages, those that came in among them."""
    page = paging.page(default=100, order="asc")

    def read(tx: Transaction) -> list[Message]:
        runs.get(tx, here.scope, run_id)
        return messages.page(tx, here.scope, page, run_id=run_id)

    return answer(messages_to_wire(await here.store.read(read), MessageView(), newest_first=page.order == "desc"))


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
