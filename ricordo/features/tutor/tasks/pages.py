"""The page of background tasks: what is done for whom, how it went, and buttons to pause a task and to run it."""

from typing import Any

from fastapi import Request, Response

from ricordo.pages.inside import Api
from ricordo.pages.shell import Pages, address_of, done, render

router = Pages("/ui/tasks", scope="agents")
_MOST, _EACH = 200, 50


@router.get("")
async def list_tasks(request: Request) -> Response:
    """All tasks, by their names."""
    listed: list[Any] = await Api(request).get("/background/tasks", limit=_MOST)
    return await render(
        request, "tutor.tasks/list.html", tasks=sorted(listed, key=lambda task: task["name"])
    )


@router.get("/{task_name}")
async def show(request: Request, task_name: str) -> Response:
    """One task with its runs, the newest first."""
    api, after = Api(request), request.query_params.get("after")
    task: Any = await api.get(f"/background/tasks/{task_name}")
    runs: list[Any] = await api.get(
        f"/background/tasks/{task_name}/runs", limit=_EACH + 1, after=after
    )
    page = f"/ui/tasks/{task_name}"
    older = address_of(page, after=runs[_EACH - 1]["id"]) if len(runs) > _EACH else ""
    agent: Any = await api.get(f"/v1/agents/{task['agent_id']}")
    return await render(
        request,
        "tutor.tasks/one.html",
        task=task,
        agent=agent,
        runs=runs[:_EACH],
        older=older,
        page=page,
    )


@router.post("/{task_name}/enable")
async def enable(request: Request, task_name: str) -> Response:
    """Let the task go on."""
    return await _ask(request, task_name, "enable", "The task goes on.")


@router.post("/{task_name}/disable")
async def disable(request: Request, task_name: str) -> Response:
    """Pause the task."""
    return await _ask(request, task_name, "disable", "The task is paused.")


@router.post("/{task_name}/run")
async def run(request: Request, task_name: str) -> Response:
    """Let the task run now."""
    return await _ask(request, task_name, "run", "The task runs now.")


async def _ask(request: Request, task_name: str, change: str, words: str) -> Response:
    await Api(request).ask("POST", f"/background/tasks/{task_name}/{change}")
    return done(request, f"/ui/tasks/{task_name}", words)
