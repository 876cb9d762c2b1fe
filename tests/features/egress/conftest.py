"""One server with a cloud provider and a local one, for each module."""

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.features.egress.providers import World, two_providers
from tests.seams.databases import on_database
from tests.seams.jobs import quick_jobs

__all__ = ["http", "on_database", "quick_jobs", "running_world", "world"]


@pytest.fixture(scope="module")
def running_world(
    tmp_path_factory: pytest.TempPathFactory, on_database: dict[str, Any]
) -> Iterator[World]:
    with two_providers(tmp_path_factory.mktemp("egress"), **on_database) as world:
        yield world


@pytest.fixture
def world(running_world: World) -> World:
    running_world.forget()
    return running_world


@pytest.fixture
def http(world: World) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=world.server.url, timeout=60) as client:
        yield client
