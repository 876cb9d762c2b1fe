"""A server with the operator's key, and a client that sends it."""

from collections.abc import Iterator

import httpx2
import pytest

from tests.seams.http import OPERATOR, bearer
from tests.seams.server import ServerInThread, serving


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    with serving(tmp_path_factory.mktemp("locked"), api_key=OPERATOR) as server:
        yield server


@pytest.fixture(scope="module")
def http(locked: ServerInThread) -> Iterator[httpx2.Client]:
    with locked.http(headers=bearer(OPERATOR)) as opened:
        yield opened
