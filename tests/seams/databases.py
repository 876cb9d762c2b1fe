"""A fixture for the tests of a feature that run on both databases.

A `conftest.py` or a module imports it.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import SecretStr

from tests.support import postgres


@pytest.fixture(
    scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.soak)]
)
def on_database(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """Return the settings for a server on SQLite, and under `make soak` on PostgreSQL too."""
    if request.param == "sqlite":
        yield {}
        return
    url = postgres.server().new_database()
    try:
        yield {"database_url": SecretStr(url), "database_connections": 4}
    finally:
        postgres.server().drop(url)
