"""A running server with its clients, and the sandbox that its tools run in."""

import pytest

from tests.api.conftest import (
    Api,
    api,
    client,
    http,
    running_client,
    running_http,
    running_server,
    server,
)
from tests.support.sandboxes import bubblewrap

__all__ = [
    "Api",
    "api",
    "client",
    "http",
    "running_client",
    "running_http",
    "running_server",
    "server",
]


@pytest.fixture(autouse=True, scope="session")
def _sandbox() -> None:
    bubblewrap()
