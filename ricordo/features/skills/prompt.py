"""The skills that a prompt lists: names and descriptions, for agents that can open skills."""

from collections.abc import Sequence
from dataclasses import replace

from ricordo.domain.agent import AgentState, PromptSkill
from ricordo.features.skills.service import listed_skill
from ricordo.plugins import PromptAddition
from ricordo.storage import skills
from ricordo.storage.engine.store import Transaction
from ricordo.storage.skills import SkillBlock

OPEN_SKILL = "open_skill"
_MOST_LISTED = 100


def with_skills(tx: Transaction, states: Sequence[AgentState]) -> Sequence[AgentState]:
    """Return the states, with the skills of those agents that have the tool `open_skill`.

    One SQL query reads the skills of an agent.

    Args:
        tx: The transaction.
        states: The states; they are not changed.
    """
    return [
        replace(state, skills=skills_of(tx, state))
        if any(tool.name == OPEN_SKILL for tool in state.tools)
        else state
        for state in states
    ]


def skills_of(tx: Transaction, state: AgentState) -> tuple[PromptSkill, ...]:
    """Return the first 100 skills of the agent in its conversation, by name.

    A skill whose text does not follow the format is left out.

    Args:
        tx: The transaction.
        state: The agent in its conversation.
    """
    listed = [listed_skill(each.block) for each in skill_blocks(tx, state).values()]
    shown = [
        PromptSkill(skill.name, skill.description, skill.block.id, skill.block.egress)
        for skill in listed
        if skill.front is not None
    ]
    return tuple(sorted(shown, key=lambda skill: skill.name)[:_MOST_LISTED])


def skill_blocks(tx: Transaction, state: AgentState) -> dict[str, SkillBlock]:
    """Return the blocks of the skills of the agent in its conversation, by label.

    Args:
        tx: The transaction, or a read.
        state: The agent with its conversation. The conversation's user decides which skills of a
            person are included.
    """
    return skills.of_conversation(
        tx,
        state.agent.organization_id,
        memory_id=state.agent.memory_id,
        user_id=state.conversation.user_id,
        course=state.agent.course,
    )


ADDITION = PromptAddition(with_skills, tools=frozenset({OPEN_SKILL}))
