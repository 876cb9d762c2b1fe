"""The blocks of skills, by owner or by conversation."""

from dataclasses import dataclass

from sqlalchemy import and_, bindparam, case, or_, select

from ricordo.domain.block import Block, OwnerKind, is_skill
from ricordo.storage.blocks import IS_SKILL
from ricordo.storage.engine.repository import equal
from ricordo.storage.engine.store import Transaction
from ricordo.storage.listed_texts import LENGTH, LISTED_COLUMNS, block_of
from ricordo.storage.schema.memory_tables import blocks, chains

_LISTED = (
    select(*LISTED_COLUMNS, LENGTH, chains.c.owner_kind)
    .join(chains, chains.c.id == blocks.c.chain_id)
    .where(IS_SKILL)
)
_OF_CHAIN = _LISTED.where(equal(blocks, "chain_id")).order_by(blocks.c.label)
# The user comes after the agent, and the agent after the organization, since later skills replace
# earlier ones.
_NEARNESS = case(
    (chains.c.owner_kind == "organization", 0), (chains.c.owner_kind == "agent", 1), else_=2
)
_OF_CONVERSATION = _LISTED.where(
    equal(chains, "organization_id"),
    or_(
        chains.c.owner_kind == "organization",
        and_(chains.c.owner_kind == "agent", chains.c.owner_id == bindparam("memory_id")),
        and_(
            chains.c.owner_kind == "user",
            chains.c.owner_id == bindparam("user_id"),
            or_(blocks.c.agent_id.is_(None), blocks.c.agent_id == bindparam("memory_id")),
            or_(blocks.c.course.is_(None), blocks.c.course == bindparam("course")),
        ),
    ),
).order_by(_NEARNESS, blocks.c.label)


@dataclass(frozen=True, slots=True)
class SkillBlock:
    """The block of a skill, with the kind of its owner. The text may be only the beginning."""

    block: Block
    owner_kind: OwnerKind


def of_chain(tx: Transaction, chain_id: str) -> list[Block]:
    """Return the blocks of a chain's skills, ordered by label. Long texts are cut."""
    rows = tx.all(_OF_CHAIN, {"chain_id": chain_id})
    return [block for row in rows if is_skill((block := block_of(row)).label)]


def of_conversation(
    tx: Transaction,
    organization_id: str,
    *,
    memory_id: str,
    user_id: str | None,
    course: str | None,
) -> dict[str, SkillBlock]:
    """Return the skills that an agent has in a conversation, by label.

    A user's skill replaces the agent's skill with the same name. The agent's skill replaces the
    organization's.

    Args:
        tx: The transaction.
        organization_id: The organization.
        memory_id: The agent that owns the memory (`Agent.memory_id`).
        user_id: The user of the conversation; None: there is none.
        course: The agent's course. A user's skills of other courses are left out; None leaves out
            those of all courses.
    """
    parameters = {
        "organization_id": organization_id,
        "memory_id": memory_id,
        "user_id": user_id or "",
        "course": course,
    }
    rows = tx.all(_OF_CONVERSATION, parameters)
    skills = [SkillBlock(block_of(row), row.owner_kind) for row in rows]
    return {skill.block.label: skill for skill in skills if is_skill(skill.block.label)}
