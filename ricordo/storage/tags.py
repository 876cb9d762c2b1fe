"""The tags of agents and blocks, as one list of names."""

from sqlalchemy import select, union

from ricordo.domain.scope import Scope
from ricordo.storage.agent_access import may_use
from ricordo.storage.engine.repository import Page, in_scope
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import agents, agents_tags
from ricordo.storage.schema.memory_tables import blocks, blocks_tags


def page_of_tags(tx: Transaction, scope: Scope, page: Page, name: str | None) -> list[str]:
    """Return the tags that the caller sees, each once, in alphabetical order.

    Args:
        tx: The transaction.
        scope: The caller.
        page: The part of the list. Its cursors are tags, which need not exist.
        name: Only tags that contain it, in upper or lower case. None or "": all.
    """
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
    all_tags = union(of_agents, of_blocks).subquery()
    if name:
        conditions = [all_tags.c.tag.icontains(name, autoescape=True)]
    else:
        conditions = []
    ascending = page.order == "asc"
    for cursor, is_after in ((page.after, True), (page.before, False)):
        if cursor:
            conditions.append(
                all_tags.c.tag > cursor if ascending == is_after else all_tags.c.tag < cursor
            )
    backwards = page.is_backwards
    if ascending != backwards:
        ordered = all_tags.c.tag.asc()
    else:
        ordered = all_tags.c.tag.desc()
    rows = tx.all(select(all_tags.c.tag).where(*conditions).order_by(ordered).limit(page.limit))
    names = [str(row.tag) for row in rows]
    return names[::-1] if backwards else names
