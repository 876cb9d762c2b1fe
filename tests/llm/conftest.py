"""A mock server of a provider, and the waits of a model between its retries."""

from collections.abc import AsyncIterator

import pytest

from ricordo.llm.addresses import Connections
from tests.llm.known_models import OPENED
from tests.llm.talk import Waits
from tests.support.model_server import ModelServer


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    """A mock server of a provider, with the responses that a test sets."""
    async with ModelServer() as running:
        yield running


@pytest.fixture
async def connections() -> AsyncIterator[Connections]:
    # A timeout of 5 is httpx's default, which Google's library would not treat as a chosen one.
    opened = Connections(timeout=4)
    yield opened
    await opened.close()


@pytest.fixture
def waits() -> Waits:
    """The waits of a model between retries, which take no time."""
    return Waits()


@pytest.fixture(autouse=True)
async def _close_models() -> AsyncIterator[None]:
    yield
    while OPENED:
        await OPENED.pop().close()
