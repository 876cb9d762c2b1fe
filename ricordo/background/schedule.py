"""Jobs that come by themselves, once in each period whatever the number of servers."""

import hashlib
from collections.abc import Iterable

from ricordo.domain.clock import SECOND
from ricordo.domain.job import Job, JobHandler
from ricordo.domain.scope import LOCAL_ORGANIZATION
from ricordo.storage import jobs
from ricordo.storage.store import Transaction

_ATTEMPTS = 3


class Schedule:
    """Adds the job of each period at its start; a period that passed while no server ran is left out."""

    def __init__(self, handlers: Iterable[JobHandler]) -> None:
        self._periods = {handler.kind: round((handler.every_seconds or 0) * SECOND) for handler in handlers}
        self._last: dict[str, int] = {}

    def due(self, now: int) -> list[Job]:
        """The jobs of periods that this server has not seen before, at this time."""
        slots = {kind: now // period for kind, period in self._periods.items()}
        return [_job(kind, slot) for kind, slot in slots.items() if self._last.get(kind) != slot]

    def add(self, tx: Transaction, wanted: Iterable[Job]) -> None:
        """Store those that no other server has stored, and that do not wait already."""
        for job in wanted:
            jobs.add(tx, job)

    def added(self, wanted: Iterable[Job]) -> None:
        """They are stored: do not ask again for their periods."""
        self._last |= {job.kind: job.payload["slot"] for job in wanted}


def _job(kind: str, slot: int) -> Job:
    # The id is made of the period, so that all servers mean the same row, even if their clocks differ.
    digits = hashlib.sha256(f"{kind}/{slot}".encode()).hexdigest()
    id = f"job-{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:32]}"
    key = f"{jobs.PERIODIC}{kind}"
    return Job(kind, LOCAL_ORGANIZATION, {"slot": slot}, key=key, is_single=True, most_attempts=_ATTEMPTS, id=id)
