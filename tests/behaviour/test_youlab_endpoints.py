"""Every endpoint of YouLab's first server exists; docs/develop/compatibility.md lists them."""

import re
from pathlib import Path

from starlette.routing import Route

from tests.seams.server import serving

ENDPOINTS = {
    "POST /chat/stream",
    "GET /health",
    "GET /users/{user_id}/blocks",
    "GET /users/{user_id}/blocks/{label}",
    "PUT /users/{user_id}/blocks/{label}",
    "DELETE /users/{user_id}/blocks/{label}",
    "GET /users/{user_id}/blocks/{label}/history",
    "GET /users/{user_id}/blocks/{label}/versions/{sha}",
    "POST /users/{user_id}/blocks/{label}/restore",
    "GET /users/{user_id}/blocks/{label}/diffs",
    "POST /users/{user_id}/blocks/{label}/propose",
    "POST /users/{user_id}/blocks/{label}/diffs/{diff_id}/approve",
    "POST /users/{user_id}/blocks/{label}/diffs/{diff_id}/reject",
    "GET /background/tasks",
    "POST /background/tasks",
    "GET /background/tasks/{task_name}",
    "DELETE /background/tasks/{task_name}",
    "POST /background/tasks/{task_name}/enable",
    "POST /background/tasks/{task_name}/disable",
    "POST /background/tasks/{task_name}/run",
    "GET /background/tasks/{task_name}/runs",
    "GET /background/runs/{task_run_id}",
    "GET /users/{user_id}/workspace/files",
    "GET /users/{user_id}/workspace/files/{file_path}",
    "PUT /users/{user_id}/workspace/files/{file_path}",
    "DELETE /users/{user_id}/workspace/files/{file_path}",
    "POST /users/{user_id}/workspace/sync",
    "GET /api/you/notes/",
    "GET /api/you/notes/{note_id}",
    "POST /api/you/notes/{note_id}/update",
}


def test_every_youlab_endpoint_is_served(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        routes = [route for route in server.app.routes if isinstance(route, Route)]
        served = {
            f"{method} {re.sub(r':[a-z]+}', '}', route.path)}"
            for route in routes
            for method in route.methods or ()
        }
    assert ENDPOINTS - served == set()
