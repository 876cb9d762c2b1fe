"""A running server with its clients."""

from tests.api.conftest import (
    Api,
    agent,
    api,
    client,
    http,
    running_client,
    running_http,
    running_server,
    server,
)
from tests.seams.jobs import quick_jobs

__all__ = [
    "Api",
    "agent",
    "api",
    "client",
    "http",
    "quick_jobs",
    "running_client",
    "running_http",
    "running_server",
    "server",
]
