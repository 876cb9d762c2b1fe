"""Work without a request: a row that is added in the transaction that causes it."""

from dataclasses import dataclass, field
from typing import Any, Literal

JobStatus = Literal["waiting", "running", "done", "failed"]


@dataclass(frozen=True, slots=True)
class Job:
    """One piece of work. Jobs with one `key` never overlap; it runs at most `most_attempts` times, not before `not_before`."""

    id: str
    organization_id: str
    kind: str
    payload: dict[str, Any] = field(default_factory=dict)
    key: str | None = None
    status: JobStatus = "waiting"
    attempts: int = 0
    most_attempts: int = 1
    not_before: int = 0
    heartbeat_at: int | None = None
    error: str | None = None
    created_at: int = 0
    ended_at: int | None = None
