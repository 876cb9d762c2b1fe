"""Many writers of one user's memory, in two processes on one PostgreSQL: no edit is lost, and only those collide that have to."""

from pathlib import Path

import pytest

from tests.support.memory_writers import SHARED, run_campaign

pytestmark = pytest.mark.campaign


async def test_writers_in_two_processes_lose_nothing(tmp_path: Path) -> None:
    report = await run_campaign(tmp_path, writers=6, edits=8)
    assert report.versions == len(SHARED) + 1 + 6 * 8
