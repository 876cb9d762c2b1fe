"""A server that checks for jobs often, and processes of doltlite that are forks."""

from collections.abc import Iterator

import pytest

from tests.seams.jobs import quick_jobs
from tests.support.dolt import forked_children

__all__ = ["quick_jobs"]


@pytest.fixture(scope="package", autouse=True)
def _forked_children() -> Iterator[None]:
    with forked_children():
        yield
