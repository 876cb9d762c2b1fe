"""Jobs: work outside requests, stored as rows, and the functions that do it.

A job's row is added in the transaction that makes the work necessary.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from ricordo.domain.ids import new_id

JobStatus = Literal["waiting", "running", "done", "failed", "cancelled"]
ENDED: tuple[JobStatus, ...] = ("done", "failed", "cancelled")
# The number of attempts, if the caller names none.
USUAL_ATTEMPTS = 5

# Reports progress, as in `report(30, 100)`. It is saved within seconds, so a job may call it often.
Report = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Job:
    """One piece of work.

    Jobs with the same `key` never overlap. A job does not run before `not_before`. It fails after
    `most_attempts` attempts. An attempt does not count if the server was shut down during it, or if
    it found a conversation busy. A job with `is_single` is not added if one of its kind and key
    already waits, since one update is enough. Times are in microseconds. `progress` holds `done`
    and `total`, and `error` holds the `type` and `message` of the last failure.
    """

    kind: str
    organization_id: str
    payload: dict[str, Any] = field(default_factory=dict)
    key: str | None = None
    is_single: bool = False
    status: JobStatus = "waiting"
    attempts: int = 0
    most_attempts: int = USUAL_ATTEMPTS
    not_before: int = 0
    worker: str | None = None
    heartbeat_at: int | None = None
    progress: dict[str, int] = field(default_factory=dict)
    error: dict[str, str] | None = None
    user_id: str | None = None
    created_at: int = 0
    started_at: int | None = None
    ended_at: int | None = None
    id: str = field(default_factory=lambda: new_id("job"))


@dataclass(frozen=True, slots=True)
class JobHandler:
    """The function that does jobs of one kind: `await run(runtime, job, report)`.

    It may be killed at any point and run again, so it must be safe to repeat. Invalid and NotFound
    end the job at once. After Busy the job is tried again as often as it takes. After other errors
    it is tried again, with growing waits, up to its number of attempts. With `every_seconds` one
    such job is added at this interval.

    A job that `adds_text` adds text to messages that are already stored. Forgetting therefore waits
    for it, or deletes it if it is not due yet. Such a job names its user, or the conversation in
    its payload's `conversation_id`.
    """

    kind: str
    # The first argument is the Runtime, a type that this package cannot import.
    run: Callable[[Any, Job, Report], Awaitable[None]]
    every_seconds: float | None = None
    adds_text: bool = False
