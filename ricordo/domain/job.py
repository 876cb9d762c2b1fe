"""Work without a request: a row that is added in the transaction that causes it, and the function that does it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from ricordo.domain.ids import new_id

JobStatus = Literal["waiting", "running", "done", "failed", "cancelled"]
ENDED: tuple[JobStatus, ...] = ("done", "failed", "cancelled")
# How often a job is tried where whoever adds it does not say.
USUAL_ATTEMPTS = 5

# Says how far a job is, as in `report(30, 100)`; saved within seconds, so it may be called as often as wanted.
Report = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Job:
    """One piece of work. Jobs with one `key` never overlap; it runs at most `most_attempts` times, not before `not_before`.

    One with `is_single` only brings something up to date: while one of its kind and key waits, no other is added. Times are in
    microseconds; `progress` holds `done` and `total`; `error` the `type` and `message` of the last failure.
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
    """How jobs of one kind are done: `await run(runtime, job, report)`.

    It may be killed anywhere and run again, so it must be repeatable. Invalid and NotFound end the job at once; other errors
    are tried again, later and later, as often as the job says. With `every_seconds` one such job is added that often.
    """

    kind: str
    # The runtime's type lies to the right of here; it is the Runtime.
    run: Callable[[Any, Job, Report], Awaitable[None]]
    every_seconds: float | None = None
