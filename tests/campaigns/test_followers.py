"""Syncs of remotes that are killed at random: in every history both sides end the same."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.campaigns.sizes import short_and_long
from tests.support.followers import follow_dolt_histories, follow_git_histories

pytestmark = pytest.mark.campaign


@pytest.mark.parametrize("seeds", short_and_long([3], range(1, 101)))
async def test_syncs_that_are_killed_end_with_what_the_memory_has(tmp_path: Path, seeds: Sequence[int]) -> None:
    assert await follow_git_histories(tmp_path, seeds) > 0
    assert await follow_dolt_histories(tmp_path, seeds) > 0
