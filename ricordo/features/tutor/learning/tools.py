"""The tools with which a course's agents note what a student can do."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from ricordo.domain.message import Message
from ricordo.domain.scope import Scope
from ricordo.errors import Invalid, NotFound
from ricordo.features.knowledge.facts.evidence import is_evidence, stands_in
from ricordo.features.knowledge.facts.records import UserFact
from ricordo.features.tutor.courses.applying import MARK
from ricordo.features.tutor.learning import service
from ricordo.features.tutor.learning.service import Learner, NewLevel, Observation
from ricordo.storage import activity, messages, users
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction
from ricordo.tools.toolbox import ServerTool, ToolContext

# The student's newest messages in which a quote is looked for.
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


def _is_guarded(context: ToolContext) -> bool:
    """Return whether others than the student may have led the agent to this call."""
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
    """Return the newest message of the student that holds these words, and the words.

    The id of a message will do too. Raises Invalid.
    """
    quote = " ".join(text.strip().strip('"“”').split())
    for said in _said(tx, context, learner):
        if said.id == quote:
            return said, " ".join(said.text.split())[: service.LONGEST_QUOTE]
        if stands_in(quote, said):
            return said, quote
    raise Invalid(
        "No message of the student holds these words. Quote the student exactly, not yourself."
    )


def _said(tx: Transaction, context: ToolContext, learner: Learner) -> Sequence[Message]:
    """Return what the student said in this conversation or before it was forked, newest first."""
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
)
