"""A student's skills in a course as one file: Markdown or JSON."""

from collections.abc import Iterator, Sequence

from ricordo.domain.clock import to_datetime, zone
from ricordo.domain.text import Json
from ricordo.features.tutor.learning import service
from ricordo.features.tutor.learning.models import SkillResponse
from ricordo.features.tutor.learning.records import SkillState, result_of
from ricordo.features.tutor.learning.service import Learner
from ricordo.storage.engine.store import Transaction


def course_summary(learner: Learner, states: Sequence[SkillState]) -> Json:
    """Return the counts of a student's course: skills, levels, due reviews, waiting facts.

    Args:
        learner: The student in the course.
        states: The states of the course's skills, from `service.states_of`.
    """
    return {
        "name": learner.course.name,
        "title": learner.course.title,
        "skills": len(learner.course.skills),
        "levels": sum(state.level is not None for state in states),
        "due": sum(state.is_due for state in states),
        "waiting": sum(len(state.waiting) for state in states),
        "is_off": learner.choice.is_off,
        "guardians_see": learner.course.guardians_see,
    }


def to_markdown(tx: Transaction, learner: Learner) -> str:
    """Return the student's skills in a course as Markdown, for people.

    Args:
        tx: The transaction, or a read.
        learner: The student in the course. If notes are switched off, no skills are listed.
    """
    lines = [f"# {learner.course.title}: {learner.user.name}", ""]
    if learner.choice.is_off:
        lines.append("Nothing is noted in this course, by the student's choice.")
    for state in service.states_of(tx, learner):
        lines += [*_section(state, learner.timezone), ""]
    return "\n".join(lines).rstrip() + "\n"


def record_of(tx: Transaction, learner: Learner) -> Json:
    """Return the student's choices and skills in a course, with the evidence of the skills.

    Args:
        tx: The transaction, or a read.
        learner: The student in the course. If notes are switched off, no skills are listed.
    """
    return {
        "course": learner.course.name,
        "title": learner.course.title,
        "user_id": learner.user.id,
        "is_off": learner.choice.is_off,
        "shares": learner.choice.shares,
        "retention_days": learner.choice.retention_days,
        "skills": [SkillResponse.from_state(state) for state in service.states_of(tx, learner)],
    }


def _section(state: SkillState, timezone: str) -> Iterator[str]:
    yield f"## {state.skill.shown_name}"
    yield ""
    if state.level:
        yield f"Level: {state.level.value}, since {_day(state.level.holds_from, timezone)}."
    else:
        yield "Level: none yet."
    if state.due_at is not None:
        yield f"Next review: {_day(state.due_at, timezone)}."
    if state.claim:
        yield f"In the student's view, {_day(state.claim.said_at, timezone)}: {state.claim.value}"
    if state.observations:
        yield ""
    for fact in state.observations:
        quotes = " / ".join(f'"{piece.quote}"' for piece in fact.evidence)
        messages = ", ".join(piece.message_id for piece in fact.evidence)
        day = _day(fact.said_at, timezone)
        yield f"- {day}, {result_of(fact)}: {fact.sentence} {quotes} ({messages})"


def _day(time: int, timezone: str) -> str:
    return f"{to_datetime(time).astimezone(zone(timezone)):%Y-%m-%d}"
