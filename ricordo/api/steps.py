"""Steps: one call of a model each."""

from dataclasses import dataclass, replace
from datetime import UTC
from typing import Annotated, Literal

from fastapi import Depends, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from ricordo.api.call import Here, Paged, answer
from ricordo.api.routing import Routes
from ricordo.api.wire.message_schemas import AnyMessage
from ricordo.api.wire.messages import MessageView, messages_to_wire
from ricordo.api.wire.runs import step_metrics_to_wire, step_to_wire
from ricordo.api.wire.schemas import StepMetricsShape, StepShape
from ricordo.domain.clock import parse_date
from ricordo.domain.ids import unique
from ricordo.domain.message import Message
from ricordo.domain.run import Step
from ricordo.storage import messages, runs
from ricordo.storage.runs import StepFilter
from ricordo.storage.store import Transaction

router = Routes(prefix="/v1/steps", tags=["steps"])


@dataclass(frozen=True, slots=True)
class StepQuery:
    """Which steps are wanted."""

    agent_id: str | None = None
    model: str | None = None
    feedback: Literal["positive", "negative"] | None = None
    has_feedback: bool | None = None
    tags: Annotated[list[str] | None, Query(description="Steps with any of these tags.")] = None
    start_date: Annotated[str | None, Query(description="Steps from this day or moment on, UTC without a zone.")] = None
    end_date: Annotated[str | None, Query(description="Steps up to this day or moment, UTC without a zone.")] = None

    def equal(self) -> dict[str, str]:
        """The columns that are compared as they are."""
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


class FeedbackBody(BaseModel):
    """What somebody thinks of a step; what is left out stays as it is, null and an empty list take it back."""

    model_config = ConfigDict(extra="ignore")

    feedback: Literal["positive", "negative"] | None = None
    tags: list[Annotated[str, Field(min_length=1, max_length=200)]] | None = Field(None, max_length=100)


@router.get("/", response_model=list[StepShape])
async def list_steps(here: Here, paging: Paged, which: Annotated[StepQuery, Depends()]) -> Response:
    """Steps, newest first unless told otherwise; of an agent or a model, by feedback, tags and dates."""
    wanted = which.filter()
    found = await here.store.read(lambda tx: runs.page_of_steps(tx, here.scope, paging.page(), wanted, **which.equal()))
    return answer([step_to_wire(step) for step in found])


@router.get("/{step_id}", response_model=StepShape)
async def retrieve(here: Here, step_id: str) -> Response:
    """One step."""
    return answer(step_to_wire(await _step(here, step_id)))


@router.get("/{step_id}/metrics", response_model=StepMetricsShape)
async def metrics(here: Here, step_id: str) -> Response:
    """How long the step took, and where the time went."""
    return answer(step_metrics_to_wire(await _step(here, step_id)))


@router.patch("/{step_id}/feedback", response_model=StepShape)
async def give_feedback(here: Here, step_id: str, body: FeedbackBody) -> Response:
    """Say whether the step was good, and why, in tags; tags take the place of those it had."""

    def change(tx: Transaction) -> Step:
        step = runs.get_step(tx, here.scope, step_id)
        if "feedback" in body.model_fields_set:
            step = replace(step, feedback=body.feedback)
        if "tags" in body.model_fields_set:
            step = replace(step, tags=tuple(unique(body.tags or [])))
        runs.set_feedback(tx, step)
        return step

    return answer(step_to_wire(await here.store.write(change)))


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
