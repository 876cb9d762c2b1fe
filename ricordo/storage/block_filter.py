"""Filters of lists of blocks, as conditions of a statement."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sqlalchemy import ColumnElement, func, select

from ricordo.domain.scope import Scope
from ricordo.storage.agent_access import may_use
from ricordo.storage.engine.repository import tagged_with
from ricordo.storage.schema.core_tables import agents
from ricordo.storage.schema.memory_tables import agents_blocks, blocks, blocks_tags, blocks_users


@dataclass(frozen=True, slots=True)
class AgentCount:
    """A condition on the number of agents to which a block is attached.

    `any_of` lists the allowed numbers; if it is empty, any number is allowed. The other fields are
    bounds, which the number may not equal.
    """

    any_of: tuple[int, ...] = ()
    more_than: int | None = None
    fewer_than: int | None = None


@dataclass(frozen=True, slots=True)
class BlockFilter:
    """A filter of blocks; None, and empty `pieces` or `tags`, match any block.

    Empty `ids` or `user_ids` match no block. `pieces` maps columns to texts that they must contain.
    A block matches `user_ids` if it is attached to at least one of these users.
    """

    label: str | None = None
    chain_id: str | None = None
    ids: tuple[str, ...] | None = None
    pieces: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    all_tags: bool = False
    user_ids: tuple[str, ...] | None = None
    agents: AgentCount = AgentCount()

    def conditions(self, scope: Scope) -> Iterator[ColumnElement[bool]]:
        """Yield all conditions except those on label and chain.

        Agents that the caller may not use are not counted.
        """
        for name, piece in self.pieces.items():
            yield blocks.c[name].icontains(piece, autoescape=True)
        if self.ids is not None:
            yield blocks.c.id.in_(self.ids)
        if self.tags:
            yield tagged_with(blocks_tags, blocks.c.id, self.tags, all_tags=self.all_tags)
        if self.user_ids is not None:
            yield blocks.c.id.in_(
                select(blocks_users.c.block_id).where(blocks_users.c.user_id.in_(self.user_ids))
            )
        count = (
            select(func.count())
            .select_from(agents_blocks.join(agents, agents.c.id == agents_blocks.c.agent_id))
            .where(
                agents_blocks.c.block_id == blocks.c.id,
                agents.c.organization_id == scope.organization_id,
            )
            .where(*may_use(scope))
            .correlate(blocks)
            .scalar_subquery()
        )
        if self.agents.any_of:
            yield count.in_(self.agents.any_of)
        if self.agents.more_than is not None:
            yield count > self.agents.more_than
        if self.agents.fewer_than is not None:
            yield count < self.agents.fewer_than
