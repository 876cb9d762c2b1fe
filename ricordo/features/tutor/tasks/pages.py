"""The pages of background tasks: runs, and buttons to pause and start."""

from typing import Any

from fastapi import Request, Response

from ricordo.pages.inside import Api
from ricordo.pages.shell import Pages, address_of, done, page_of, render

router = Pages("/ui/tasks", scope="agents")
_TASKS_PER_PAGE = 200
_RUNS_PER_PAGE = 50


@router.get("")
async def list_tasks(request: Request) -> Response:
    """List the tasks of one page by name; the first page has the newest."""
    # One more task than the page shows is read, to see whether there is another page.
    tasks: list[Any] = await Api(request).get(
        "/background/tasks",
        limit=_TASKS_PER_PAGE + 1,
        after=request.query_params.get("after") or None,
    )
    older = ""
    if len(tasks) > _TASKS_PER_PAGE:
        tasks = tasks[:_TASKS_PER_PAGE]
        older = address_of("/ui/tasks", after=tasks[-1]["id"])
    tasks.sort(key=lambda task: task["name"])
    return await render(request, "tutor.tasks/list.html", tasks=tasks, older=older)


@router.get("/{task_name}")
async def show(request: Request, task_name: str) -> Response:
    """Show a task with its runs, the newest first."""
    api = Api(request)
    task: Any = await api.get(f"/background/tasks/{task_name}")
    # One more run than the page shows is read, to see whether there is another page.
    runs: list[Any] = await api.get(
        f"/background/tasks/{task_name}/runs",
        limit=_RUNS_PER_PAGE + 1,
        after=request.query_params.get("after"),
    )
    page = page_of("tasks", task_name)
    has_more = len(runs) > _RUNS_PER_PAGE
    runs = runs[:_RUNS_PER_PAGE]
    older = address_of(page, after=runs[-1]["id"]) if has_more else ""
    agent: Any = await api.find(f"/v1/agents/{task['agent_id']}")
    return await render(
        request, "tutor.tasks/one.html", task=task, agent=agent, runs=runs, older=older, page=page
    )


@router.post("/{task_name}/enable")
async def enable(request: Request, task_name: str) -> Response:
    """Resume the task."""
    return await _ask(request, task_name, "enable", "The task runs again.")


@router.post("/{task_name}/disable")
async def disable(request: Request, task_name: str) -> Response:
    """Pause the task."""
    return await _ask(request, task_name, "disable", "The task is paused.")


@router.post("/{task_name}/run")
async def run(request: Request, task_name: str) -> Response:
    """Run the task now."""
    return await _ask(request, task_name, "run", "The task runs now.")


async def _ask(request: Request, task_name: str, action: str, sentence: str) -> Response:
    await Api(request).ask("POST", f"/background/tasks/{task_name}/{action}")
    return done(request, page_of("tasks", task_name), sentence)
