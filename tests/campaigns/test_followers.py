"""Followers of memory that are killed at random: in every history both sides end the same."""

from pathlib import Path

import pytest

from tests.support.followers import follow_dolt_histories, follow_git_histories

pytestmark = pytest.mark.campaign


async def test_followers_that_are_killed_end_with_what_the_memory_has(tmp_path: Path) -> None:
    assert await follow_git_histories(tmp_path, [3]) > 0
    assert await follow_dolt_histories(tmp_path, [3]) > 0
