"""Export and restore a student's choices for courses, as a file of the memory archive.

Observations, levels and claims are facts, so the archive has them in `facts.jsonl`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ricordo.domain.scope import Scope, User
from ricordo.domain.text import Json
from ricordo.errors import Invalid
from ricordo.features.tutor.learning import queries
from ricordo.features.tutor.learning.queries import LearnerChoice
from ricordo.plugins import UserFile
from ricordo.storage import users
from ricordo.storage.engine.store import Transaction

_NAME = "learning.jsonl"


class ChoiceRecord(BaseModel):
    """A student's choice for a course, as stored in an archive."""

    model_config = ConfigDict(extra="ignore")

    course: str = Field(min_length=1, max_length=64)
    is_off: bool
    shares: bool
    retention_days: int | None = Field(ge=1, le=3650)


def read_choices(
    tx: Transaction, scope: Scope, user_id: str, _after: str | None
) -> tuple[Sequence[Json], None]:
    """Return the user's choices in the order of the courses' names. One call returns all."""
    user = users.require(tx, scope, user_id)
    chosen = queries.choices_of_user(tx, user.organization_id, user.id)
    records = [
        {
            "course": course,
            "is_off": choice.is_off,
            "shares": choice.shares,
            "retention_days": choice.retention_days,
        }
        for course, choice in sorted(chosen.items())
    ]
    return records, None


def store_choices(tx: Transaction, user: User, records: Iterable[Mapping[str, Any]]) -> int:
    """Store an archive's choices for this user, and return their number.

    Raises Invalid for a faulty record.
    """
    chosen: dict[str, LearnerChoice] = {}
    for number, record in enumerate(records, 1):
        try:
            one = ChoiceRecord.model_validate(record)
        except ValidationError as error:
            fault = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in fault["loc"])
            raise Invalid(f"{_NAME}, line {number}: {place}: {fault['msg']}.") from None
        chosen[one.course] = LearnerChoice(one.is_off, one.shares, one.retention_days)
    for course, choice in chosen.items():
        queries.set_choice(tx, user.organization_id, user.id, course, choice)
    return len(chosen)


FILE = UserFile(_NAME, read_choices, store_choices)
