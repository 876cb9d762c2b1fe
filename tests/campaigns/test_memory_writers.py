"""Many writers of one user's memory, in two processes on one PostgreSQL: no edit is lost, and only those collide that have to."""

import pytest

from tests.campaigns.sizes import short_and_long
from tests.support.memory_writers import SHARED, run_campaign

pytestmark = pytest.mark.campaign


@pytest.mark.parametrize(("writers", "edits"), short_and_long((6, 8), (50, 200)))
async def test_writers_in_two_processes_lose_nothing(writers: int, edits: int) -> None:
    versions, met = await run_campaign(writers=writers, edits=edits)
    assert met > 0
    assert versions == len(SHARED) + 1 + writers * edits
