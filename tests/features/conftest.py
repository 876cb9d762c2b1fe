"""What tests of features share: a running server with its clients, and `ricordo` as people run it."""

from tests.api.conftest import agent, api, client, http, running_client, running_http, running_server, server
from tests.cli.conftest import new_shell, quick_command, shell

__all__ = [
    "agent",
    "api",
    "client",
    "http",
    "new_shell",
    "quick_command",
    "running_client",
    "running_http",
    "running_server",
    "server",
    "shell",
]
