"""A running server with its clients."""

from tests.api.conftest import Api, agent, api, client, http, running_client, running_http, running_server, server

__all__ = ["Api", "agent", "api", "client", "http", "running_client", "running_http", "running_server", "server"]
