"""Export and restore a student's choices for courses, as a file of the memory archive.

Observations, levels and claims are facts, so the archive has them in `facts.jsonl`.
"""

from collections.abc import Iterable, Sequence

from pydantic import BaseModel, ConfigDict, Field

from ricordo.domain.scope import Scope, User
from ricordo.domain.text import Json
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
    """Return the user's choices in the order of the courses' names. One call returns all.

    Args:
        tx: The transaction, or a read.
        scope: The caller.
        user_id: The user whose memory is exported.
        _after: The mark of the earlier call; not used, since one call returns all.

    Returns:
        The records, and None as the mark of the end.

    Raises:
        NotFound: The caller does not see this user.
    """
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


def store_choices(tx: Transaction, user: User, records: Iterable[ChoiceRecord]) -> int:
    """Store an archive's choices for this user, and return their number.

    Args:
        tx: The transaction.
        user: The user whose memory is restored.
        records: The records of the file. Of several for one course, the last one is stored.
    """
    chosen: dict[str, LearnerChoice] = {}
    for record in records:
        choice = LearnerChoice(record.is_off, record.shares, record.retention_days)
        chosen[record.course] = choice
    for course, choice in chosen.items():
        queries.set_choice(tx, user.organization_id, user.id, course, choice)
    return len(chosen)


FILE = UserFile(_NAME, read_choices, ChoiceRecord, store_choices)
