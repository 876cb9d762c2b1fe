"""Runs, one a turn; steps, one a model call; and what of memory an answer was made from."""

from dataclasses import dataclass, replace
from datetime import UTC
from typing import Annotated, Any, Literal

from fastapi import Depends, Query, Response

from ricordo.api.call import Here, Paged, answer, note
from ricordo.api.models.base import NoteResponse
from ricordo.api.models.memory import LineageResponse
from ricordo.api.models.messages import AnyMessage, MessageFormat, messages_response
from ricordo.api.models.runs import (
    FeedbackRequest,
    RunMetricsResponse,
    RunResponse,
    RunUsageResponse,
    StepMetricsResponse,
    StepResponse,
)
from ricordo.api.routing import Routes
from ricordo.domain.clock import parse_date
from ricordo.domain.ids import unique
from ricordo.domain.message import Message
from ricordo.domain.run import Run, Step
from ricordo.memory.lineage import of_message
from ricordo.storage import messages, runs, tools
from ricordo.storage.engine.store import Transaction
from ricordo.storage.runs import StepFilter

router = Routes(prefix="/v1/runs", tags=["runs"])
_steps = Routes(prefix="/v1/steps", tags=["steps"])
_messages = Routes(prefix="/v1/messages/{message_id}", tags=["messages"])


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


@router.get("/", response_model=list[RunResponse])
async def list_runs(here: Here, paging: Paged, which: Annotated[RunQuery, Depends()]) -> Response:
    """Runs, by default newest first; of agents, of a conversation, by status, or those still open."""
    page = paging.page(default=100)
    found = await here.store.read(
        lambda tx: runs.page(
            tx, here.scope, page, agent_ids=which.agents(), statuses=which.wanted_statuses(), **which.equal()
        )
    )
    return answer([RunResponse.from_run(run) for run in found])


@router.get("/{run_id}", response_model=RunResponse)
async def retrieve(here: Here, run_id: str) -> Response:
    """One run."""
    return answer(RunResponse.from_run(await _run(here, run_id)))


@router.delete("/{run_id}", response_model=NoteResponse)
async def delete(here: Here, run_id: str) -> Response:
    """Delete a run that has ended, with its steps and traces. Its messages stay, and in the ledger what it spent."""
    await here.store.write(lambda tx: runs.delete_one(tx, here.scope, run_id))
    return note(f"{run_id} was deleted.")


@router.get("/{run_id}/metrics", response_model=RunMetricsResponse)
async def metrics(here: Here, run_id: str) -> Response:
    """How long the run took, how many steps it had, and which tools it used."""

    def read(tx: Transaction) -> tuple[Run, list[str]]:
        run = runs.get(tx, here.scope, run_id)
        said = messages.of_run(tx, run_id)
        names = unique([call.name for message in said for call in message.tool_calls])
        known = tools.by_names(tx, here.scope, names) if names else {}
        return run, [known[name].id for name in names if name in known]

    return answer(RunMetricsResponse.from_run(*await here.store.read(read)))


@router.get("/{run_id}/messages", response_model=list[AnyMessage])
async def list_messages(here: Here, run_id: str, paging: Paged) -> Response:
    """The run's messages, those that came in among them."""
    page = paging.page(default=100, order="asc")

    def read(tx: Transaction) -> list[Message]:
        runs.get(tx, here.scope, run_id)
        return messages.page(tx, here.scope, page, run_id=run_id)

    return answer(messages_response(await here.store.read(read), MessageFormat(), newest_first=page.order == "desc"))


@router.get("/{run_id}/usage", response_model=RunUsageResponse)
async def usage(here: Here, run_id: str) -> Response:
    """The run's tokens."""
    return answer(RunUsageResponse.from_usage((await _run(here, run_id)).usage))


@router.get("/{run_id}/steps", response_model=list[StepResponse])
async def list_steps(here: Here, run_id: str, paging: Paged) -> Response:
    """The run's steps."""

    def read(tx: Transaction) -> list[Step]:
        runs.get(tx, here.scope, run_id)
        return runs.page_of_steps(tx, here.scope, paging.page(default=100), run_id=run_id)

    return answer([StepResponse.from_step(step) for step in await here.store.read(read)])


@dataclass(frozen=True, slots=True)
class StepQuery:
    """Which steps are wanted."""

    agent_id: str | None = None
    model: str | None = None
    feedback: Literal["positive", "negative"] | None = None
    has_feedback: bool | None = None
    tags: Annotated[list[str] | None, Query(description="Steps with any of these tags.")] = None
    start_date: Annotated[str | None, Query(description="Steps from this day or time on, UTC without a zone.")] = None
    end_date: Annotated[str | None, Query(description="Steps up to this day or time, UTC without a zone.")] = None

    def equal(self) -> dict[str, str]:
        columns = {"agent_id": self.agent_id, "model": self.model}
        return {name: value for name, value in columns.items() if value is not None}

    def filter(self) -> StepFilter:
        """All else that is asked of them; raises Invalid for dates that are none."""
        return StepFilter(
            self.tags or (),
            self.has_feedback,
            self.feedback,
            parse_date(self.start_date, UTC, name="start_date") if self.start_date else None,
            parse_date(self.end_date, UTC, name="end_date", end=True) if self.end_date else None,
        )


@_steps.get("/", response_model=list[StepResponse])
async def list_all_steps(here: Here, paging: Paged, which: Annotated[StepQuery, Depends()]) -> Response:
    """Steps, by default newest first; of an agent or a model, by feedback, tags and dates."""
    wanted = which.filter()
    found = await here.store.read(lambda tx: runs.page_of_steps(tx, here.scope, paging.page(), wanted, **which.equal()))
    return answer([StepResponse.from_step(step) for step in found])


@_steps.get("/{step_id}", response_model=StepResponse)
async def retrieve_step(here: Here, step_id: str) -> Response:
    """Return one step."""
    return answer(StepResponse.from_step(await _step(here, step_id)))


@_steps.get("/{step_id}/metrics", response_model=StepMetricsResponse)
async def step_metrics(here: Here, step_id: str) -> Response:
    """How long the step took, and where the time went."""
    return answer(StepMetricsResponse.from_step(await _step(here, step_id)))


@_steps.patch("/{step_id}/feedback", response_model=StepResponse)
async def give_feedback(here: Here, step_id: str, body: FeedbackRequest) -> Response:
    """Say whether the step was good, and why, in tags; tags take the place of those it had."""

    def change(tx: Transaction) -> Step:
        step = runs.get_step(tx, here.scope, step_id)
        if "feedback" in body.model_fields_set:
            step = replace(step, feedback=body.feedback)
        if "tags" in body.model_fields_set:
            step = replace(step, tags=tuple(unique(body.tags or [])))
        runs.set_feedback(tx, step)
        return step

    return answer(StepResponse.from_step(await here.store.write(change)))


@_steps.get("/{step_id}/messages", response_model=list[AnyMessage])
async def list_step_messages(here: Here, step_id: str, paging: Paged) -> Response:
    """The step's messages."""
    page = paging.page(default=100, order="asc")

    def read(tx: Transaction) -> list[Message]:
        step = runs.get_step(tx, here.scope, step_id)
        return messages.page(tx, here.scope, page, run_id=step.run_id, step_id=step_id)

    return answer(messages_response(await here.store.read(read), MessageFormat(), newest_first=page.order == "desc"))


async def _step(here: Here, step_id: str) -> Step:
    return await here.store.read(lambda tx: runs.get_step(tx, here.scope, step_id))


@_messages.get("/memory", response_model=LineageResponse)
async def lineage(here: Here, message_id: str) -> Response:
    """Return the blocks' versions and the passages that were in an answer's context, and what its step changed or proposed."""
    return answer(
        LineageResponse.from_lineage(await here.store.read(lambda tx: of_message(tx, here.scope, message_id)))
    )


router.routes += [*_steps.routes, *_messages.routes]


async def _run(here: Here, run_id: str) -> Run:
    return await here.store.read(lambda tx: runs.get(tx, here.scope, run_id))
