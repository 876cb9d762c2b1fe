"""Background tasks over HTTP: create, pause and start them, and list their runs."""

from ricordo.api.call import Paged, RequestContext, note
from ricordo.api.models.base import NoteResponse
from ricordo.api.routing import Routes
from ricordo.domain.text import Json
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
    """List the tasks, by default the newest first."""
    tasks = queries.page(tx, context.scope, paging.page())
    return [TaskResponse.from_task(task) for task in tasks]


@router.post("/tasks", response_model=TaskResponse)
def put(tx: Transaction, context: RequestContext, body: TaskRequest) -> Json:
    """Create a task, or change the existing task with its name."""
    agent = agent_of(tx, context.scope, body.agent_id)
    return TaskResponse.from_task(service.put(tx, context.scope, agent.id, body))


@router.get("/tasks/{task_name}", response_model=TaskResponse)
def retrieve(tx: Transaction, context: RequestContext, task_name: str) -> Json:
    """Return a task."""
    return TaskResponse.from_task(queries.get(tx, context.scope, task_name))


@router.delete("/tasks/{task_name}", response_model=NoteResponse)
def delete(tx: Transaction, context: RequestContext, task_name: str) -> Json:
    """Delete a task with its history. Its changes of memory stay."""
    service.delete(tx, context.scope, task_name)
    return note(f'Task "{task_name}" deleted.')


@router.post("/tasks/{task_name}/enable", response_model=TaskResponse)
def enable(tx: Transaction, context: RequestContext, task_name: str) -> Json:
    """Resume a task. Times that passed while it was disabled are skipped."""
    return TaskResponse.from_task(service.set_enabled(tx, context.scope, task_name, is_on=True))


@router.post("/tasks/{task_name}/disable", response_model=TaskResponse)
def disable(tx: Transaction, context: RequestContext, task_name: str) -> Json:
    """Pause a task.

    Running runs are completed. Waiting ones are skipped, if nobody started them by hand.
    """
    return TaskResponse.from_task(service.set_enabled(tx, context.scope, task_name, is_on=False))


@router.post("/tasks/{task_name}/run", response_model=TaskStartResponse)
def run(
    tx: Transaction, context: RequestContext, task_name: str, body: TaskStartRequest | None = None
) -> Json:
    """Run a task now, for one user or for all of its users.

    A disabled task runs too.
    """
    runs = service.start(tx, context.scope, task_name, body.user_id if body else None)
    visible = [TaskRunResponse.from_run(run) for run in runs if context.scope.sees(run.user_id)]
    return TaskStartResponse.of(None, started=len(runs), runs=visible)


@router.get("/tasks/{task_name}/runs", response_model=list[TaskRunResponse])
def list_runs(
    tx: Transaction, context: RequestContext, task_name: str, paging: Paged
) -> list[Json]:
    """List a task's runs, by default the newest first. Users see only their own runs."""
    task = queries.get(tx, context.scope, task_name)
    runs = queries.RUNS.page(tx, context.scope, paging.page(), task_id=task.id)
    return [TaskRunResponse.from_run(run) for run in runs]


@router.get("/runs/{task_run_id}", response_model=TaskRunResponse)
def retrieve_run(tx: Transaction, context: RequestContext, task_run_id: str) -> Json:
    """Return a run with its changes and its cost."""
    return TaskRunResponse.from_run(queries.RUNS.get(tx, context.scope, task_run_id))
