"""A server that answers as a provider's, and how long a model waited before it asked again."""

from collections.abc import AsyncIterator

import pytest

from ricordo.llm.addresses import Connections
from tests.llm.known_models import OPENED
from tests.llm.talk import Waits
from tests.support.model_server import ModelServer


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    """A provider's server, which answers what a test gives it."""
    async with ModelServer() as running:
        yield running


@pytest.fixture
async def connections() -> AsyncIterator[Connections]:
    opened = Connections(timeout=4)  # at httpx's own 5, Google's library doubts that it was chosen
    yield opened
    await opened.close()


@pytest.fixture
def waits() -> Waits:
    """The waits of a model that asks again: none takes any time."""
    return Waits()


@pytest.fixture(autouse=True)
async def _close_models() -> AsyncIterator[None]:
    yield
    while OPENED:
        await OPENED.pop().close()
