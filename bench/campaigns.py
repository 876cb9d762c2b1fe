"""The long form of the campaigns in `tests/campaigns`: 300 kills, and 50 clients with 20 agents and 1,000 turns.

Either raises AssertionError with its seed and the first faults; what it returns was without fault.
"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.report import Figure
from tests.support import concurrency, crash

KILLS = 300
TURNS = 1_000


def measure_campaigns() -> list[Figure]:
    """Run both campaigns; tells what they did and how quickly a killed server was back."""
    with TemporaryDirectory(prefix="ricordo-bench-") as folder:
        crashed = crash.run_campaign(Path(folder), kills=KILLS)
    with TemporaryDirectory(prefix="ricordo-bench-") as folder:
        crowd = asyncio.run(concurrency.run_campaign(Path(folder), turns=TURNS))
    return [
        Figure("crash campaign: kills without a fault", crashed.kills, "", KILLS, more_is_better=True),
        Figure("  messages that were acknowledged", crashed.acknowledged, ""),
        Figure("  turns that a kill cut off", crashed.interrupted_runs, ""),
        Figure("  valid transcripts the model was sent", crashed.transcripts, ""),
        Figure("  from start to healthy, forked from a loaded process", crashed.restart_seconds, "s"),
        Figure("crowd of 50 clients: turns without a fault", crowd.turns, "", TURNS, more_is_better=True),
        Figure("  refusals as busy, tried again", crowd.busy, ""),
        Figure("  seconds in all", crowd.seconds, "s"),
    ]
