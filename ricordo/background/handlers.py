"""Which function does jobs of which kind, which come by themselves, what went wrong with one, and when it is tried again."""

import hashlib
import random
from collections.abc import Iterable

from ricordo.domain.backoff import Backoff
from ricordo.domain.clock import SECOND
from ricordo.domain.job import Job, JobHandler
from ricordo.domain.redaction import redact
from ricordo.domain.scope import LOCAL_ORGANIZATION
from ricordo.errors import Invalid, NotFound, RicordoError
from ricordo.storage import jobs

_BACKOFF = Backoff(2, 4, 600, spread=(1, 1.2))
_PERIODIC_ATTEMPTS = 3
_LONGEST_MESSAGE = 400


class Handlers:
    """The handlers of a server, built in and of plugins, by kind."""

    def __init__(self, handlers: Iterable[JobHandler]) -> None:
        self._by_kind: dict[str, JobHandler] = {}
        for handler in handlers:
            if handler.kind in self._by_kind:
                raise Invalid(
                    f'Jobs of kind "{handler.kind}" have two handlers. Remove the plugin that brings the second.'
                )
            if handler.every_seconds is not None and handler.every_seconds < 1:
                raise Invalid(
                    f'Jobs of kind "{handler.kind}" would come more than once a second. Let them come more seldom.'
                )
            self._by_kind[handler.kind] = handler

    def get(self, kind: str) -> JobHandler | None:
        """Return the handler of this kind; None where this server has none."""
        return self._by_kind.get(kind)

    def periodic(self) -> list[JobHandler]:
        return [handler for handler in self._by_kind.values() if handler.every_seconds is not None]


def is_final(error: BaseException) -> bool:
    return isinstance(error, Invalid | NotFound)


def describe(error: BaseException) -> dict[str, str]:
    """The error as it is kept with the job: its type, and its message without secrets."""
    message = " ".join(str(error).split())
    if not isinstance(error, RicordoError):
        message = redact(message, is_strict=True).text
    return {"type": type(error).__name__, "message": message[:_LONGEST_MESSAGE]}


def retry_after(attempt: int, chance: random.Random) -> int:
    """Return the microseconds to wait after this attempt: 2, 8, 32 … seconds, at most ten minutes, up to a fifth more."""
    return round(_BACKOFF.seconds(attempt, chance.random) * SECOND)


class Schedule:
    """Adds the job of each period at its start; a period that passed while no server ran is left out."""

    def __init__(self, handlers: Iterable[JobHandler]) -> None:
        self._periods = {handler.kind: round((handler.every_seconds or 0) * SECOND) for handler in handlers}
        self._last: dict[str, int] = {}

    def due(self, now: int) -> list[Job]:
        slots = {kind: now // period for kind, period in self._periods.items()}
        return [_job(kind, slot) for kind, slot in slots.items() if self._last.get(kind) != slot]

    def added(self, wanted: Iterable[Job]) -> None:
        self._last |= {job.kind: job.payload["slot"] for job in wanted}


def _job(kind: str, slot: int) -> Job:
    # The id is made of the period, so that all servers mean the same row, even if their clocks differ.
    digits = hashlib.sha256(f"{kind}/{slot}".encode()).hexdigest()
    id = f"job-{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:32]}"
    key = f"{jobs.PERIODIC}{kind}"
    return Job(
        kind, LOCAL_ORGANIZATION, {"slot": slot}, key=key, is_single=True, most_attempts=_PERIODIC_ATTEMPTS, id=id
    )
