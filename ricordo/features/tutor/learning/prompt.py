"""The block `learner_state`, which shows a student's state to the agents of a course.

The block is stored empty. A prompt fills it with the state of the conversation's user, and of no
other user. The text has dates but no times. So the prompt changes only when the state or the day
changes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ricordo.domain.agent import AgentState
from ricordo.domain.clock import to_datetime, zone
from ricordo.domain.scope import Scope
from ricordo.features.tutor.courses import queries as courses
from ricordo.features.tutor.courses.applying import MARK, applied_course
from ricordo.features.tutor.courses.course_file import LEARNER_STATE
from ricordo.features.tutor.learning import service
from ricordo.features.tutor.learning.records import SkillState
from ricordo.features.tutor.learning.service import Learner
from ricordo.plugins import PromptAddition
from ricordo.storage import users
from ricordo.storage.engine.store import Transaction

_OFF = "This student chose that nothing is noted in this course. Note nothing."
_MOST_DUE = 20
_MOST_NEW = 10
_MOST_EXAMPLES = 2


def with_learner(tx: Transaction, states: Sequence[AgentState]) -> Sequence[AgentState]:
    """Return the states. States with the block and a user get the user's learner state.

    Args:
        tx: The transaction, or a read.
        states: Agents with their conversations, in the order of the result.
    """
    return [_with_learner(tx, state) for state in states]


def _with_learner(tx: Transaction, state: AgentState) -> AgentState:
    block = next((block for block in state.blocks if block.shown_label == LEARNER_STATE), None)
    if block is None or block.rule != "read_only":
        return state
    learner = _learner_of(tx, state)
    if learner is None:
        return state
    texts = {**state.shown_texts, LEARNER_STATE: learner_text(tx, learner)}
    return replace(state, shown_texts=texts)


def _learner_of(tx: Transaction, state: AgentState) -> Learner | None:
    user_id = state.conversation.user_id
    mark = state.agent.settings.get(MARK)
    if user_id is None or not mark:
        return None
    scope = Scope(state.agent.organization_id)
    stored = courses.find(tx, scope, mark["course"])
    course = applied_course(stored.source, stored.name) if stored else None
    user = users.find(tx, scope, user_id)
    if course is None or user is None or not course.skills:
        return None
    return service.learner_of(tx, user, course)


def learner_text(tx: Transaction, learner: Learner) -> str:
    """Return the text about a student's skills for a prompt.

    Args:
        tx: The transaction, or a read.
        learner: The student in the course. If notes are switched off, the text says only that.
    """
    if learner.choice.is_off:
        return _OFF
    return "\n".join(_lines(service.states_of(tx, learner), learner.timezone))


def _due_lines(due: Sequence[SkillState]) -> Iterator[str]:
    if due:
        yield "Due for review today:"
        yield from (f"- {state.skill.name}{_examples(state)}" for state in due[:_MOST_DUE])
        if len(due) > _MOST_DUE:
            yield f"- and {len(due) - _MOST_DUE} more"


def _lines(states: Sequence[SkillState], timezone: str) -> Iterator[str]:
    yield from _due_lines(due_first(states))
    known = [state for state in states if state.level or state.observations or state.claim]
    if known:
        yield "What the student can do, by evidence:"
        yield from (f"- {_state_line(state, timezone)}" for state in known)
    unseen = [state for state in states if state not in known]
    new = [state for state in unseen if state.is_ready]
    if new:
        yield "Not begun, and nothing is missing before it:"
        yield from (f"- {state.skill.name}{_examples(state)}" for state in new[:_MOST_NEW])
    later = [state for state in unseen if not state.is_ready]
    if later:
        yield "Later: " + ", ".join(
            f"{state.skill.name} (after {', '.join(state.skill.prerequisites)})"
            for state in later[:_MOST_NEW]
        )


def due_first(states: Sequence[SkillState]) -> list[SkillState]:
    """Return the states of the skills due today. The skill that was due first comes first.

    Args:
        states: The states of a course's skills, in any order.
    """
    return sorted((state for state in states if state.is_due), key=lambda state: state.due_at or 0)


def _examples(state: SkillState) -> str:
    examples = state.skill.examples[:_MOST_EXAMPLES]
    return f": for example {'; '.join(examples)}" if examples else ""


def _state_line(state: SkillState, timezone: str) -> str:
    parts = [f"{state.skill.name}: no level yet"]
    if state.level:
        parts = [
            f"{state.skill.name}: {state.level.value} since {_day(state.level.holds_from, timezone)}"
        ]
    parts.append(_counted(len(state.observations), "observation"))
    if state.observations:
        newest = state.observations[0]
        sentence = newest.sentence.rstrip(".")
        parts.append(f"last on {_day(newest.said_at, timezone)}: {sentence}")
    parts += [
        f"misconception, {_counted(number, 'time')}: {name}"
        for name, number in state.misconceptions.items()
    ]
    if state.claim:
        parts.append(f'the student says: "{state.claim.value}"; check it with an exercise')
    return "; ".join(parts)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _day(time: int, timezone: str) -> str:
    return f"{to_datetime(time).astimezone(zone(timezone)):%Y-%m-%d}"


ADDITION = PromptAddition(with_learner, label=LEARNER_STATE)
