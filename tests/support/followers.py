"""Followers of memory that are killed at random, in many histories: the long form of what the tests of each remote show."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from ricordo.storage.engine.sqlite import open_sqlite
from tests.features.dolt import test_sync as dolt_following
from tests.features.git import test_sync as git_following
from tests.support import dolt

_ROUNDS = 12


async def follow_git_histories(folder: Path, seeds: Iterable[int]) -> int:
    """A git remote in each history. Returns the kills; raises AssertionError where remote and memory differ at the end."""
    kills = 0
    for seed in seeds:
        store = open_sqlite(folder / f"git-{seed}" / "ricordo.db")
        try:
            world = git_following.World(store, folder / f"git-{seed}")
            await world.start()
            with pytest.MonkeyPatch.context() as patch:
                kills += await git_following.follow_random_history(world, seed, patch)
        finally:
            await store.close()
    return kills


async def follow_dolt_histories(folder: Path, seeds: Iterable[int]) -> int:
    """A Dolt database in each history. Returns the kills; raises AssertionError where it and the memory differ at the end."""
    kills = 0
    for seed in seeds:
        store = open_sqlite(folder / f"dolt-{seed}" / "ricordo.db")
        try:
            with dolt.new_place(folder / f"dolt-{seed}") as place, pytest.MonkeyPatch.context() as patch:
                memory = dolt_following.Memory(store, folder / f"dolt-{seed}", place)
                kills += await dolt_following.follow_random_history(memory, seed, _ROUNDS, patch)
        finally:
            await store.close()
    return kills
