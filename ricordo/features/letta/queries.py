"""The tags of agents and blocks, as one list of names."""

from sqlalchemy import select, union

from ricordo.domain.scope import Scope
from ricordo.storage.agent_access import may_use
from ricordo.storage.engine.repository import Page, in_scope
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import agents, agents_tags
from ricordo.storage.schema.memory_tables import blocks, blocks_tags


def tags(tx: Transaction, scope: Scope, wanted: Page, name: str | None) -> list[str]:
    """Return the tags that the caller sees by the alphabet, each once; `name` is a piece of them. Cursors are tags."""
    of_agents = (
        select(agents_tags.c.tag)
        .join(agents, agents.c.id == agents_tags.c.agent_id)
        .where(*in_scope(agents, scope), *may_use(scope))
    )
    of_blocks = (
        select(blocks_tags.c.tag)
        .join(blocks, blocks.c.id == blocks_tags.c.block_id)
        .where(*in_scope(blocks, scope))
    )
    every = union(of_agents, of_blocks).subquery()
    conditions = [every.c.tag.icontains(name, autoescape=True)] if name else []
    ascending = wanted.order == "asc"
    for mark, is_after in ((wanted.after, True), (wanted.before, False)):
        if mark:
            conditions.append(every.c.tag > mark if ascending == is_after else every.c.tag < mark)
    backwards = wanted.is_backwards
    ordered = every.c.tag.asc() if ascending != backwards else every.c.tag.desc()
    rows = tx.all(select(every.c.tag).where(*conditions).order_by(ordered).limit(wanted.limit))
    found = [str(row.tag) for row in rows]
    return found[::-1] if backwards else found
