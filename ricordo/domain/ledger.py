"""What tokens were spent on, beside the steps of turns."""

from dataclasses import dataclass
from typing import Literal

from ricordo.domain.usage import Usage

Purpose = Literal["turn", "compaction", "sleeptime", "embedding", "other"]


@dataclass(frozen=True, slots=True)
class Expense:
    """Tokens of one piece of work outside of a turn's steps; `model` is a handle, `created_at` in microseconds."""

    organization_id: str
    purpose: Purpose
    model: str
    usage: Usage
    agent_id: str | None = None
    user_id: str | None = None
    created_at: int = 0
