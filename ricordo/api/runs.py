"""Routes of runs, steps, all agents' messages, and the memory behind an answer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from typing import Annotated, Any

from fastapi import Depends, Query

from ricordo.api.call import Paged, Paging, RequestContext, note
from ricordo.api.messages import Types, by_time, keeps_some, run_view, types_of
from ricordo.api.models.base import NoteResponse, without_none
from ricordo.api.models.memory import ContextBlockResponse, LineageResponse
from ricordo.api.models.messages import (
    AnyMessage,
    MessageFormat,
    message_responses,
)
from ricordo.api.models.runs import (
    Feedback,
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
from ricordo.domain.text import Json
from ricordo.errors import NotFound, Unsupported
from ricordo.storage import archives, history, messages, proposals, runs, tools
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction
from ricordo.storage.runs import StepFilter

router = Routes(prefix="/v1/runs", tags=["runs"], scope="messages")
_steps = Routes(prefix="/v1/steps", tags=["steps"], scope="messages")
_messages = Routes(prefix="/v1/messages", tags=["messages"], scope="messages")


@dataclass(frozen=True, slots=True)
class RunQuery:
    """The selection of runs."""

    agent_id: str | None = None
    agent_ids: Annotated[list[str] | None, Query()] = None
    conversation_id: str | None = None
    statuses: Annotated[list[str] | None, Query()] = None
    background: bool | None = None
    stop_reason: str | None = None
    active: bool = False


@router.get("/", response_model=list[RunResponse])
def list_runs(
    tx: Transaction, context: RequestContext, paging: Paged, query: Annotated[RunQuery, Depends()]
) -> Sequence[Run]:
    """List runs, by default newest first.

    Filters include agents, conversation, status and whether they are open.
    """
    agent_ids = [*(query.agent_ids or ()), *((query.agent_id,) if query.agent_id else ())]
    statuses = [*(query.statuses or ()), *(("created", "running") if query.active else ())]
    columns = without_none(
        conversation_id=query.conversation_id,
        background=query.background,
        stop_reason=query.stop_reason,
    )
    columns |= without_none(user_id=context.scope.subject if paging.user_id else None)
    return runs.page(
        tx,
        context.scope,
        paging.page(default=100),
        agent_ids=agent_ids,
        statuses=statuses,
        **columns,
    )


@router.get("/active", response_model=list[RunResponse])
def list_active(
    tx: Transaction,
    context: RequestContext,
    agent_id: str | None = None,
    agent_ids: Annotated[list[str] | None, Query()] = None,
    background: bool | None = None,
) -> Sequence[Run]:
    """List open runs, newest first. Older clients use this instead of the list with `active`."""
    ids = [*(agent_ids or ()), *((agent_id,) if agent_id else ())]
    columns = without_none(background=background)
    return runs.page(
        tx,
        context.scope,
        Page(limit=100),
        agent_ids=ids,
        statuses=["created", "running"],
        **columns,
    )


@router.get("/{run_id}", response_model=RunResponse)
def retrieve(tx: Transaction, context: RequestContext, run_id: str) -> Run:
    """Return one run."""
    return runs.get(tx, context.scope, run_id)


@router.delete("/{run_id}", response_model=NoteResponse)
def delete(tx: Transaction, context: RequestContext, run_id: str) -> Json:
    """Delete a run that has ended, with its steps and traces.

    Its messages and its cost in the ledger stay.
    """
    runs.delete_one(tx, context.scope, run_id)
    return note(f"{run_id} was deleted.")


@router.get("/{run_id}/metrics", response_model=RunMetricsResponse)
def metrics(tx: Transaction, context: RequestContext, run_id: str) -> Json:
    """Return the run's duration, its number of steps and its tools."""
    run = runs.get(tx, context.scope, run_id)
    names = unique(
        [call.name for message in messages.of_run(tx, run_id) for call in message.tool_calls]
    )
    if names:
        rows = tools.by_names(tx, context.scope, names)
    else:
        rows = {}
    return RunMetricsResponse.of(run, tools_used=[rows[name].id for name in names if name in rows])


@router.get("/{run_id}/messages", response_model=list[AnyMessage])
def list_messages(
    tx: Transaction, context: RequestContext, run_id: str, paging: Paged
) -> list[Json]:
    """List the run's messages with the incoming ones, of the types that its request selected.

    A talk's run has its input, and the agents' messages in all its turns.
    """
    run = runs.get(tx, context.scope, run_id)
    view = run_view(run)
    page = paging.page(default=100, order="asc")

    def read(part: Page) -> list[Message]:
        return messages.page_of_run(tx, context.scope, part, run)

    return message_responses(messages.page_of_kept(read, page, keeps_some(view)), view)


@router.get("/{run_id}/usage", response_model=RunUsageResponse)
def usage(tx: Transaction, context: RequestContext, run_id: str) -> Run:
    """Return the run's tokens."""
    return runs.get(tx, context.scope, run_id)


@router.get("/{run_id}/steps", response_model=list[StepResponse])
def list_steps(
    tx: Transaction, context: RequestContext, run_id: str, paging: Paged
) -> Sequence[Step]:
    """List the run's steps; for a talk with a group, the steps of all its turns."""
    parts = runs.get(tx, context.scope, run_id).part_ids
    if parts:
        columns: Any = {"run_ids": parts}
    else:
        columns = {"run_id": run_id}
    return runs.page_of_steps(tx, context.scope, paging.page(default=100), **columns)


@dataclass(frozen=True, slots=True)
class StepQuery:
    """The selection of steps."""

    agent_id: str | None = None
    model: str | None = None
    feedback: Feedback | None = None
    has_feedback: bool | None = None
    tags: Annotated[list[str] | None, Query(description="Steps with any of these tags.")] = None
    trace_ids: Annotated[
        list[str] | None,
        Query(description="No step has a `trace_id`, so with any value the list is empty."),
    ] = None
    start_date: Annotated[
        str | None, Query(description="Steps from this day or time on, UTC without a zone.")
    ] = None
    end_date: Annotated[
        str | None, Query(description="Steps up to this day or time, UTC without a zone.")
    ] = None

    def filter(self) -> StepFilter:
        """Return the conditions other than agent and model. Raises Invalid for malformed dates."""
        return StepFilter(
            self.tags or (),
            self.has_feedback,
            self.feedback,
            parse_date(self.start_date, UTC, name="start_date") if self.start_date else None,
            parse_date(self.end_date, UTC, name="end_date", end=True) if self.end_date else None,
            is_none=bool(self.trace_ids),
        )


@_steps.get("/", response_model=list[StepResponse])
def list_all_steps(
    tx: Transaction, context: RequestContext, paging: Paged, query: Annotated[StepQuery, Depends()]
) -> Sequence[Step]:
    """List steps, by default newest first.

    Filters are agent, model, feedback, tags and dates.
    """
    return runs.page_of_steps(
        tx,
        context.scope,
        paging.page(),
        query.filter(),
        **without_none(agent_id=query.agent_id, model=query.model),
    )


@_steps.get("/{step_id}", response_model=StepResponse)
def retrieve_step(tx: Transaction, context: RequestContext, step_id: str) -> Step:
    """Return one step."""
    return runs.get_step(tx, context.scope, step_id)


@_steps.get("/{step_id}/metrics", response_model=StepMetricsResponse)
def step_metrics(tx: Transaction, context: RequestContext, step_id: str) -> Step:
    """Return the step's duration and its parts."""
    return runs.get_step(tx, context.scope, step_id)


@_steps.patch("/{step_id}/feedback", response_model=StepResponse)
def give_feedback(
    tx: Transaction,
    context: RequestContext,
    step_id: str,
    body: FeedbackRequest | None = None,
    feedback: Annotated[
        Feedback | None, Query(description="The form that older clients send.")
    ] = None,
) -> Step:
    """Store a person's feedback on the step, and tags. An omitted field keeps its value."""
    if body is None:
        if feedback is None:
            raise Unsupported("Send feedback, tags, or both.")
        body = FeedbackRequest(feedback=feedback)
    step = runs.get_step_for_change(tx, context.scope, step_id)
    context.scope.require_owns(runs.get(tx, context.scope, step.run_id).user_id)
    if "feedback" in body.model_fields_set:
        step = replace(step, feedback=body.feedback)
    if "tags" in body.model_fields_set:
        step = replace(step, tags=tuple(unique(body.tags or [])))
    runs.set_feedback(tx, step)
    return step


@_steps.get("/{step_id}/messages", response_model=list[AnyMessage])
def list_step_messages(
    tx: Transaction, context: RequestContext, step_id: str, paging: Paged
) -> list[Json]:
    """List the step's messages."""
    step = runs.get_step(tx, context.scope, step_id)
    return _messages_json(tx, context, paging, MessageFormat(), run_id=step.run_id, step_id=step_id)


@_messages.get("/", response_model=list[AnyMessage])
def list_all_messages(
    tx: Transaction,
    context: RequestContext,
    paging: Paged,
    conversation_id: str | None = None,
    include_return_message_types: Types = None,
) -> list[Json]:
    """List the messages of all conversations or of one, by default the newest `limit`.

    They are in order, oldest first.
    """
    view = MessageFormat(types=types_of(include_return_message_types))
    return by_time(tx, context, paging, view, **without_none(conversation_id=conversation_id))


@_messages.get("/{message_id}", response_model=list[AnyMessage])
def retrieve_message(tx: Transaction, context: RequestContext, message_id: str) -> list[Json]:
    """Return the pieces of one stored message, such as reasoning, text and calls."""
    return message_responses([messages.get(tx, context.scope, message_id)], MessageFormat())


@_messages.get("/{message_id}/memory", response_model=LineageResponse)
def lineage(tx: Transaction, context: RequestContext, message_id: str) -> Json:
    """Return the memory in an answer's context, and the changes and proposals of its step."""
    scope = context.scope
    message = messages.get(tx, scope, message_id)
    step_id = message.step_id
    try:
        step = runs.get_step(tx, scope, step_id or "")
    except NotFound:  # the message has no step, or was saved before its step
        step = None
    memory: Json = step.memory if step else {}
    shas: dict[str, str] = memory.get("blocks", {})
    block_versions = history.of_blocks(tx, scope, shas)
    passage_ids: list[str] = memory.get("passages", [])
    passages = archives.visible_passages(tx, scope, passage_ids)
    return LineageResponse.of(
        message,
        message_id=message.id,
        is_untrusted=bool(step and step.is_untrusted),
        blocks=[
            ContextBlockResponse.of(block_versions.get(id), block_id=id, sha=sha)
            for id, sha in shas.items()
        ],
        passages=passages,
        forgotten_passage_ids=[
            id for id in passage_ids if id not in {passage.id for passage in passages}
        ],
        changed=history.of_step(tx, scope, message.run_id or "", step_id) if step_id else [],
        proposed=proposals.of_step(tx, scope, step_id) if step_id else [],
    )


router.routes += [*_steps.routes, *_messages.routes]


def _messages_json(
    tx: Transaction, context: RequestContext, paging: Paging, view: MessageFormat, **columns: Any
) -> list[Json]:
    page = paging.page(default=100, order="asc")

    def read(part: Page) -> list[Message]:
        return messages.page(tx, context.scope, part, **columns)

    return message_responses(messages.page_of_kept(read, page, keeps_some(view)), view)
