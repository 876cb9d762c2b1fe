"""The long form of the campaigns in `tests/campaigns`: 300 kills; 50 clients with 1,000 turns; two servers with 2,000 turns;
500 faults at random awaits, on each database; 10,000 turns against their windows; and those of memory, see `bench.memory`.

Each raises AssertionError with its seed and the first faults; what it returns was without fault.
"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.memory import measure_memory
from bench.report import Figure
from tests.support import cluster, concurrency, crash, faults, faults_server, windows

KILLS = 300
TURNS = 1_000
FAULTS = 500
REAL_KILLS = 30
WINDOW_TURNS = 10_000
SHARED = cluster.Size(turns=2_000, kills=20, every=5)


def measure_campaigns() -> list[Figure]:
    """Run the campaigns; tells what they did and how quickly a killed server was back."""
    with TemporaryDirectory(prefix="ricordo-bench-") as folder:
        crashed = crash.run_campaign(Path(folder), kills=KILLS)
    with TemporaryDirectory(prefix="ricordo-bench-") as folder:
        crowd = asyncio.run(concurrency.run_campaign(Path(folder), turns=TURNS))
    with TemporaryDirectory(prefix="ricordo-bench-") as folder:
        shared = asyncio.run(cluster.run_campaign(Path(folder), SHARED))
    broken = [figure for database in ("sqlite", "postgresql") for figure in _measure_faults(database)]
    with TemporaryDirectory(prefix="ricordo-bench-") as folder:
        windowed = asyncio.run(windows.run_campaign(Path(folder), turns=WINDOW_TURNS))
    return [
        *measure_memory(),
        Figure("crash campaign: kills without a fault", crashed.kills, "", KILLS, more_is_better=True),
        Figure("  messages that were acknowledged", crashed.acknowledged, ""),
        Figure("  turns that a kill cut off", crashed.interrupted_runs, ""),
        Figure("  valid transcripts the model was sent", crashed.transcripts, ""),
        Figure("  from start to healthy, forked from a loaded process", crashed.restart_seconds, "s"),
        Figure("crowd of 50 clients: turns without a fault", crowd.turns, "", TURNS, more_is_better=True),
        Figure("  refusals as busy, tried again", crowd.busy, ""),
        Figure("  seconds in all", crowd.seconds, "s"),
        Figure(
            "two servers on one PostgreSQL: turns without a fault", shared.turns, "", SHARED.turns, more_is_better=True
        ),
        Figure("  kills of one of them", shared.kills, "", SHARED.kills, more_is_better=True),
        Figure("  turns that a kill cut off, told as interrupted", shared.interrupted, ""),
        Figure("  requests that a kill cut off, sent again", shared.broken, ""),
        Figure("  jobs, none lost", shared.jobs, ""),
        Figure("  most connections to PostgreSQL at once", shared.most_connections, ""),
        Figure("  seconds in all", shared.seconds, "s"),
        *broken,
        Figure("turns against random windows", windowed.turns, "", WINDOW_TURNS, more_is_better=True),
        Figure("  requests refused as too long, made good in the same turn", windowed.refused, ""),
        Figure("  compactions", windowed.compactions, ""),
        Figure("  messages that recall was asked for and found", windowed.found, ""),
        Figure("  seconds in all", windowed.seconds, "s"),
    ]


def _measure_faults(database: str) -> list[Figure]:
    with TemporaryDirectory(prefix="ricordo-bench-") as folder:
        killed = faults_server.run_kills(Path(folder), kills=REAL_KILLS, database=database)
    with TemporaryDirectory(prefix="ricordo-bench-") as folder:
        faulty = asyncio.run(faults.run_campaign(Path(folder), faults=FAULTS, database=database))
    kills = f"kills of a server with agents of every type, {database}"
    at_awaits = f"faults at random awaits, none of them felt later, {database}"
    return [
        Figure(kills, killed.kills, "", REAL_KILLS, more_is_better=True),
        Figure(at_awaits, faulty.faults, "", FAULTS, more_is_better=True),
        Figure("  requests to providers, all of them valid", faulty.requests, ""),
        Figure("  kills, after which the database was opened again", faulty.restarts, ""),
        Figure("  connections cut", faulty.kinds.get("cut", 0), ""),
        Figure("  runs that another server took over", faulty.kinds.get("overtaken", 0), ""),
        Figure("  seconds in all", faulty.seconds, "s"),
    ]
