"""The tools for agents to note evidence of skills, and to propose levels and grades."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from ricordo.domain.message import Message
from ricordo.domain.scope import Scope
from ricordo.errors import Invalid, NotFound
from ricordo.features.knowledge.facts.evidence import is_evidence, stands_in
from ricordo.features.knowledge.facts.records import UserFact
from ricordo.features.tutor.courses import queries as courses
from ricordo.features.tutor.courses.applying import MARK
from ricordo.features.tutor.learning import service
from ricordo.features.tutor.learning.service import Learner, NewLevel, Observation
from ricordo.features.tutor.teachers import queries as teachers
from ricordo.storage import activity, messages, users
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction
from ricordo.tools.toolbox import ServerTool, ToolContext

# A quote is searched in this number of the newest users' messages of each conversation.
_MOST_SEARCHED = 200


async def note_evidence(
    context: ToolContext,
    skill: str,
    observation: str,
    message: str,
    result: Literal["seen", "failed", "hard", "good", "easy"] = "seen",
    misconception: str = "",
) -> str:
    """Note what a message of the student shows about a skill of the course.

    Args:
        skill: The name of the skill, as "learner_state" lists it.
        observation: One sentence on what the student did or understood.
        message: The student's own words that show it, quoted exactly.
        result: "seen" if the student only met it; for an exercise failed, hard (with help), good or easy.
        misconception: One of the skill's misconceptions, in the course's words, if the message shows it.
    """

    def work(tx: Transaction) -> UserFact:
        learner = _learner(tx, context)
        known_skill = learner.skill(skill)
        said, quote = _message(tx, context, learner, message)
        noted = Observation(
            known_skill,
            observation,
            said,
            quote,
            result=service.require_result(result),
            misconception=service.require_misconception(known_skill, misconception),
            is_guarded=_is_guarded(context),
        )
        return service.note(tx, learner, noted)

    fact = await context.store.write(work)
    if fact.state == "proposed":
        return "Noted; it waits until the student agrees."
    return "Noted."


async def propose_mastery(
    context: ToolContext,
    skill: str,
    level: Literal["seen", "practised", "secure", "forgotten"],
    reason: str,
) -> str:
    """Propose the student's level in a skill. It rests on what note_evidence noted.

    Args:
        skill: The name of the skill, as "learner_state" lists it.
        level: seen; practised (has tried it); secure (managed it twice); forgotten (had it, and fails now).
        reason: One sentence on why.
    """

    def work(tx: Transaction) -> tuple[UserFact, list[str]]:
        learner = _learner(tx, context)
        known_skill = learner.skill(skill)
        new = NewLevel(
            known_skill,
            service.require_level(level),
            reason,
            agent_id=context.state.agent.id,
            conversation_id=context.state.conversation.id,
            is_guarded=_is_guarded(context),
        )
        fact = service.propose_level(tx, learner, new)
        states = {state.skill.name: state for state in service.states_of(tx, learner)}
        missing = [
            name for name in known_skill.prerequisites if states[name].level_name != "secure"
        ]
        return fact, missing

    fact, missing = await context.store.write(work)
    answer = f"The level is {level} now."
    if fact.state == "proposed":
        answer = f"Proposed: {level}. It waits until the student agrees."
    if level == "secure" and missing:
        answer += f" Not secure yet, although it comes before: {', '.join(missing)}."
    return answer


async def propose_grade(
    context: ToolContext, course: str, student: str, grade: str, reason: str
) -> str:
    """Put a proposal for a grade before the teacher you talk with. It is stored nowhere: the teacher decides.

    Args:
        course: The name of the course.
        student: The id or identifier of a student who shares their skills with teachers.
        grade: The grade that you propose.
        reason: Why, from the skills alone.
    """

    def read(tx: Transaction) -> list[str]:
        teacher = teachers.require_teacher(context.scope)
        stored = courses.get(tx, teacher, course)
        user = teachers.student(tx, teacher, stored, student).user
        learner = service.learner_of(tx, user, service.course_with_skills(tx, teacher, course))
        service.require_shared(learner)
        states = service.states_of(tx, learner)
        levels = [
            f"- {state.skill.shown_name}: {state.level_name or 'no level yet'}, "
            f"observations: {len(state.observations)}"
            for state in states
        ]
        heading = f"Proposed for {user.name} in {learner.course.title}: {grade.strip()}"
        return [heading, f"Reason: {reason.strip()}", "It rests on:", *levels]

    lines = await context.store.read(read)
    return "\n".join([*lines, "Nothing was stored. Ask the teacher to decide."])


def _is_guarded(context: ToolContext) -> bool:
    """Return whether somebody other than the student may have caused this call."""
    return context.step.is_untrusted() or bool(context.step.callers)


def _learner(tx: Transaction, context: ToolContext) -> Learner:
    """Return the student of the conversation in the agent's course. Raises Invalid."""
    user_id = context.scope.subject or context.state.conversation.user_id
    if user_id is None:
        raise Invalid("This conversation is about no user, so there is no student.")
    scope = Scope(context.state.agent.organization_id)
    mark = context.state.agent.settings.get(MARK) or {}
    try:
        course = service.course_with_skills(tx, scope, str(mark.get("course", "")))
    except NotFound as error:
        raise Invalid("This agent belongs to no course with skills.") from error
    return service.learner_of(tx, users.require(tx, scope, user_id), course)


def _message(
    tx: Transaction, context: ToolContext, learner: Learner, text: str
) -> tuple[Message, str]:
    """Return the student's newest message that contains this quote, and the quote.

    The id of a message works in place of a quote. Raises Invalid.
    """
    quote = " ".join(text.strip().strip('"“”').split())
    for said in _said(tx, context, learner):
        if said.id == quote:
            return said, " ".join(said.text.split())[: service.LONGEST_QUOTE]
        if stands_in(quote, said):
            return said, quote
    raise Invalid(
        "No message of the student contains this quote. Quote the student exactly, not yourself."
    )


def _said(tx: Transaction, context: ToolContext, learner: Learner) -> Sequence[Message]:
    """Return the student's messages, newest first.

    They are from this conversation, and from the student's newest one with the agent.
    """
    state = context.state
    scope = replace(Scope(state.agent.organization_id), subject_id=learner.user.id)
    ids = {
        state.conversation.id,
        activity.newest_conversation(tx, state.agent.id, learner.user.id),
    }
    said = [
        message
        for id in ids
        if id
        for message in messages.page(
            tx, scope, Page(limit=_MOST_SEARCHED), conversation_id=id, role="user"
        )
        if is_evidence(message, learner.user.id)
    ]
    return sorted(said, key=lambda message: (message.created_at, message.seq), reverse=True)


TOOLS = (
    ServerTool(note_evidence, "letta_builtin", acts_outside=True),
    ServerTool(propose_mastery, "letta_builtin", acts_outside=True),
    ServerTool(propose_grade, "letta_builtin", is_read_only=True),
)
