"""What one call of a model was asked and what it answered, kept for those who look for the reason of something."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Trace:
    """One call. `request` and `response` are JSON objects as text; `created_at` is in microseconds."""

    step_id: str
    run_id: str
    organization_id: str
    request: str
    response: str | None = None
    created_at: int = 0
