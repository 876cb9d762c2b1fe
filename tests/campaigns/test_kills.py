"""Kills at every statement and every await of every kind of write, on both databases.

Each kill ends a separate process by SIGKILL. The next process finds every acknowledged write
exactly once, and its agent answers. `--count N` with `--campaigns FILE` continues after the kills
that FILE has counted.
"""

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.campaigns.sizes import RecordProperty
from tests.support import postgres
from tests.support.campaign_record import continued
from tests.support.ready import Helper
from tests.support.server_process import CAN_FORK

# Number of kills in one run of the helper program, which may take five minutes.
_AT_ONCE = 100
_PROGRAM = "from tests.support.kill_trials import main; main()"
SIZES = [
    pytest.param("sqlite", 9, 29, id="short"),
    pytest.param("sqlite", 5_000, 1, id="sqlite", marks=pytest.mark.soak),
    pytest.param("postgresql", 5_000, 1, id="postgresql", marks=pytest.mark.soak),
]


@pytest.mark.campaign
@pytest.mark.skipif(not CAN_FORK, reason="the campaign forks")
@pytest.mark.parametrize(("kind", "usual", "step"), SIZES)
def test_a_kill_at_each_statement_and_await_of_each_write_loses_and_doubles_nothing(
    kind: str,
    usual: int,
    step: int,
    helper: Helper,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    record_property: RecordProperty,
) -> None:
    first, count = continued(request, "kills", usual)
    kills: Counter[str] = Counter()
    begins_at = seed = first
    while kills.total() < count:
        asked = {
            "count": min(_AT_ONCE, count - kills.total()),
            "step": step,
            "seed": seed,
            "begins_at": begins_at,
        }
        folder = tmp_path / f"{seed}"
        folder.mkdir()
        made = _run(helper, folder, kind, asked)
        assert not made["wrong"], f"{asked}: {len(made['wrong'])} wrong:\n" + "\n".join(
            made["wrong"]
        )
        kills.update(made["kills"])
        begins_at = made["begins_at"]
        seed += asked["count"]
        print(f"{kind} {asked}: {kills.total()} kills, {made['seconds']} s", flush=True)
    print(dict(kills))
    record_property("seed", first)
    record_property("kills", kills.total())


def _run(helper: Helper, folder: Path, kind: str, asked: dict[str, int]) -> dict[str, object]:
    # The database starts without tables, since the helper program may define more of them than the
    # test process.
    address = postgres.server().new_database(empty=True) if kind == "postgresql" else None
    said = json.dumps({**asked, "folder": str(folder), "database": address})
    try:
        done = helper.run(["-c", _PROGRAM], folder, {}, said)
    finally:
        if address:
            postgres.server().drop(address)
    assert done.returncode == 0, done.stderr[-3000:]
    made: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return made
