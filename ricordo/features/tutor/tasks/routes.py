"""Background tasks over HTTP: made, paused, run at once, and what came of them."""

from ricordo.api.call import Paged, RequestContext, note
from ricordo.api.models.base import Json, NoteResponse
from ricordo.api.routing import Routes
from ricordo.features.openai.queries import agent_of
from ricordo.features.tutor.tasks import queries, service
from ricordo.features.tutor.tasks.models import (
    TaskRequest,
    TaskResponse,
    TaskRunResponse,
    TaskStartRequest,
    TaskStartResponse,
)
from ricordo.storage.engine.store import Transaction

router = Routes(prefix="/background", tags=["background tasks"], scope="agents")


@router.get("/tasks", response_model=list[TaskResponse])
def list_tasks(tx: Transaction, context: RequestContext, paging: Paged) -> list[Json]:
    """The tasks, by default the newest first."""
    return [TaskResponse.from_task(one) for one in queries.page(tx, context.scope, paging.page())]


@router.post("/tasks", response_model=TaskResponse)
def put(tx: Transaction, context: RequestContext, body: TaskRequest) -> Json:
    """Make a task, or change the one with its name."""
    agent = agent_of(tx, context.scope, body.agent_id)
    return TaskResponse.from_task(service.put(tx, context.scope, agent.id, body))


@router.get("/tasks/{task_name}", response_model=TaskResponse)
def retrieve(tx: Transaction, context: RequestContext, task_name: str) -> Json:
    """One task."""
    return TaskResponse.from_task(queries.get(tx, context.scope, task_name))


@router.delete("/tasks/{task_name}", response_model=NoteResponse)
def delete(tx: Transaction, context: RequestContext, task_name: str) -> Json:
    """Delete a task with its history. What it changed in memory stays."""
    service.delete(tx, context.scope, task_name)
    return note(f'Task "{task_name}" deleted.')


@router.post("/tasks/{task_name}/enable", response_model=TaskResponse)
def enable(tx: Transaction, context: RequestContext, task_name: str) -> Json:
    """Let a task go on. What came while it was disabled is not made up for."""
    return TaskResponse.from_task(service.set_enabled(tx, context.scope, task_name, is_on=True))


@router.post("/tasks/{task_name}/disable", response_model=TaskResponse)
def disable(tx: Transaction, context: RequestContext, task_name: str) -> Json:
    """Pause a task. What it does at this moment is finished; what waits is left out."""
    return TaskResponse.from_task(service.set_enabled(tx, context.scope, task_name, is_on=False))


@router.post("/tasks/{task_name}/run", response_model=TaskStartResponse)
def run(
    tx: Transaction, context: RequestContext, task_name: str, body: TaskStartRequest | None = None
) -> Json:
    """Let a task run now, also one that is disabled: for one user, or for everybody it is for."""
    started = service.start(tx, context.scope, task_name, body.user_id if body else None)
    shown = [TaskRunResponse.from_run(one) for one in started if context.scope.sees(one.user_id)]
    return TaskStartResponse.of(None, started=len(started), runs=shown)


@router.get("/tasks/{task_name}/runs", response_model=list[TaskRunResponse])
def list_runs(
    tx: Transaction, context: RequestContext, task_name: str, paging: Paged
) -> list[Json]:
    """What came of a task, by default the newest first. A user sees their own runs."""
    task = queries.get(tx, context.scope, task_name)
    return [
        TaskRunResponse.from_run(one)
        for one in queries.runs_of(tx, context.scope, paging.page(), task.id)
    ]


@router.get("/runs/{task_run_id}", response_model=TaskRunResponse)
def retrieve_run(tx: Transaction, context: RequestContext, task_run_id: str) -> Json:
    """One run: what it changed, and what it cost."""
    return TaskRunResponse.from_run(queries.RUNS.get(tx, context.scope, task_run_id))
