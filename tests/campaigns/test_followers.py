"""Syncs with remotes are killed at random points; afterwards both sides always agree."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from ricordo.storage.engine.sqlite import open_sqlite
from tests.features.sync.dolt import test_sync as dolt_following
from tests.features.sync.git import test_sync as git_following
from tests.support import dolt

pytestmark = pytest.mark.campaign
_ROUNDS = 12


# This is the long form. The usual suite has a short one in the tests of each kind of remote, with
# one history.
@pytest.mark.soak
@pytest.mark.parametrize("seeds", [range(1, 31)], ids=["long"])
async def test_syncs_that_are_killed_end_with_what_the_memory_has(
    tmp_path: Path, seeds: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = {"git": 0, "dolt": 0}
    for seed in seeds:
        for kind in kills:
            folder = tmp_path / f"{kind}-{seed}"
            store = open_sqlite(folder / "ricordo.db")
            with monkeypatch.context() as patch:
                if kind == "git":
                    world = git_following.World(store, folder)
                    await world.start()
                    kills[kind] += await git_following.follow_random_history(world, seed, patch)
                else:
                    with dolt.new_place(folder) as place:
                        memory = dolt_following.Memory(store, folder, place)
                        kills[kind] += await dolt_following.follow_random_history(
                            memory, seed, _ROUNDS, patch
                        )
            await store.close()
    assert min(kills.values()) > 0
