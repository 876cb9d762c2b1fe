"""A running server with its clients, and the sandbox that its tools run in."""

import pytest

from tests.support.sandboxes import bubblewrap


@pytest.fixture(autouse=True, scope="session")
def _sandbox() -> None:
    bubblewrap()
