"""Traces of model calls, as far as the settings store them."""

from typing import Annotated

from fastapi import Query, Response

from ricordo.api.call import Here, RequestContext, answer
from ricordo.api.routing import Routes
from ricordo.domain.run import Run, Step, Trace
from ricordo.errors import NotFound
from ricordo.features.traces.models import TraceResponse
from ricordo.storage import runs, traces
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/v1", tags=["telemetry"])
TraceFacts = tuple[Trace, Step | None, Run]


@router.get("/steps/{step_id}/trace", response_model=TraceResponse)
async def trace_of_step(here: Here, step_id: str) -> Response:
    """Return the request and reply of the step's model call."""
    return answer(TraceResponse.from_trace(*await _of_step(here, step_id)))


@router.get("/telemetry/{step_id}", response_model=TraceResponse)
async def telemetry(here: Here, step_id: str) -> Response:
    """Return the same, at the older address."""
    return answer(TraceResponse.from_trace(*await _of_step(here, step_id)))


@router.get("/runs/{run_id}/trace", response_model=list[TraceResponse])
async def traces_of_run(
    here: Here,
    run_id: str,
    limit: Annotated[int, Query(ge=1, le=1000, description="The most traces to return.")] = 1000,
) -> Response:
    """Return the traces of the run's steps and summaries, oldest first."""

    def read(tx: Transaction) -> list[TraceFacts]:
        run = runs.get(tx, here.scope, run_id)
        kept = traces.of_run(tx, here.scope, run_id, limit)
        return [(trace, runs.find_step(tx, here.scope, trace.step_id), run) for trace in kept]

    return answer([TraceResponse.from_trace(*found) for found in await here.store.read(read)])


async def _of_step(here: RequestContext, step_id: str) -> TraceFacts:
    def read(tx: Transaction) -> TraceFacts:
        trace = traces.of_step(tx, here.scope, step_id)
        if trace is None:
            runs.get_step(tx, here.scope, step_id)
            raise NotFound(
                f"No trace of {step_id} is stored. RICORDO_TRACES says which steps have one, RICORDO_TRACE_DAYS for how long."
            )
        return trace, runs.find_step(tx, here.scope, step_id), runs.get(tx, here.scope, trace.run_id)

    return await here.store.read(read)
