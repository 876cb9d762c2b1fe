"""Fixtures of this folder: a server that keeps traces of everything."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents.conftest import open_stage, stage
from tests.conftest import BOTH
from tests.features.memory_care.erasure.test_routes import World, world_with_bob
from tests.seams.jobs import quick_jobs
from tests.seams.server import serving
from tests.support import postgres

__all__ = ["open_stage", "quick_jobs", "stage"]


@pytest.fixture(scope="module", params=[BOTH[0], pytest.param(BOTH[1], marks=pytest.mark.soak)])
def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """Run a server where Bob has an agent and memory, once for each database."""
    url = None if request.param == BOTH[0] else postgres.server().new_database()
    place = {} if url is None else {"database_url": url}
    data: Path = tmp_path_factory.mktemp("forgetting") / "data"
    with serving(data, traces="all", **place) as server, server.http() as http:
        yield world_with_bob(server, http)
    if url:
        postgres.server().drop(url)
