"""A running server that may call addresses of this machine, where the tests' MCP servers are."""

from collections.abc import Iterator

import pytest

from tests.seams.server import ServerInThread, serving


@pytest.fixture(scope="module")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    """Run a server for the tests of one module."""
    with serving(tmp_path_factory.mktemp("data"), allow_private_providers=True) as server:
        yield server
