"""Tools and their attachment to agents."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from sqlalchemy import ColumnElement, Select, Text, cast, delete, insert, or_, select

from ricordo.domain.scope import Scope
from ricordo.domain.tool import REPLACEMENTS, Tool
from ricordo.errors import NotFound
from ricordo.storage.engine.repository import (
    Page,
    Repository,
    distinct_list,
    equal,
    one_of,
    require_found,
)
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import agents_tools, organizations, tools

ROWS = Repository(Tool, tools)
_SELECT = ROWS.select
_IN_SCOPE = equal(tools, "organization_id")
_BY_IDS = _SELECT.where(one_of(tools.c.id, "ids"), _IN_SCOPE)
_BY_NAMES = _SELECT.where(one_of(tools.c.name, "names"), _IN_SCOPE)
_BY_NAMES_OR_IDS = _SELECT.where(
    or_(one_of(tools.c.name, "names"), one_of(tools.c.id, "ids")), _IN_SCOPE
)
_OF_AGENT = (
    _SELECT.join(agents_tools, agents_tools.c.tool_id == tools.c.id)
    .where(equal(agents_tools, "agent_id"))
    .order_by(agents_tools.c.seq)
)
# Read each tool once, with its attachments: many agents share tools, and reading a tool is slow.
_IS_REQUESTED = one_of(agents_tools.c.agent_id, "agent_ids")
_ATTACHMENTS = select(
    distinct_list(cast(agents_tools.c.seq, Text) + " " + agents_tools.c.agent_id)
).where(agents_tools.c.tool_id == tools.c.id, _IS_REQUESTED)
_OF_AGENTS = _SELECT.add_columns(_ATTACHMENTS.label("attachments")).where(
    tools.c.id.in_(select(agents_tools.c.tool_id).where(_IS_REQUESTED))
)
_LOCK = select(organizations.c.id).where(equal(organizations, "id")).with_for_update(key_share=True)
_ATTACH = insert(agents_tools)
_AGENTS_WITH = select(agents_tools.c.agent_id, agents_tools.c.tool_id).where(
    one_of(agents_tools.c.tool_id, "ids")
)
_DETACH = delete(agents_tools).where(equal(agents_tools, "agent_id", "tool_id"))
_DETACH_FROM_ALL = delete(agents_tools).where(equal(agents_tools, "tool_id"))
_DELETE = delete(tools).where(equal(tools, "id"))
_DELETE_ALL = delete(tools).where(one_of(tools.c.id, "ids"))
_DETACH_ALL = delete(agents_tools).where(equal(agents_tools, "agent_id"))


@dataclass(frozen=True, slots=True)
class ToolFilter:
    """A filter of tools; an empty field matches any.

    Attributes:
        types: The tool has one of these types.
        other_types: The tool has none of these types.
        search: A piece of the name, in upper or lower case.
        agent_id: The agent that has the tool.
        is_built_in: True matches built-in tools, False all others; both together match no tool.
    """

    names: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    other_types: tuple[str, ...] = ()
    search: str = ""
    agent_id: str | None = None
    is_built_in: tuple[bool, ...] = ()


def joined(statement: Select[Any], tool_id: ColumnElement[str]) -> Select[Any]:
    """Return the statement joined with the tool whose id is in this column.

    The columns of `ROWS` follow those of the statement.

    Args:
        statement: A select. Its rows without a tool are lost.
        tool_id: The column with the id of a tool.
    """
    return statement.add_columns(*ROWS.columns).join(tools, tools.c.id == tool_id)


def lock(tx: Transaction, scope: Scope) -> None:
    """Lock the organization, so that only one transaction at a time changes its tools.

    Does nothing on SQLite.

    Args:
        tx: The transaction.
        scope: The organization.
    """
    tx.lock(_LOCK, {"id": scope.organization_id})


def insert_all(tx: Transaction, new: Sequence[Tool]) -> None:
    """Store new tools.

    Args:
        tx: The transaction.
        new: The tools, whose names are unused in their organization.

    Raises:
        Collision: A name is used.
    """
    ROWS.insert(tx, *new)


update = ROWS.updates(*ROWS.changeable(), locked="organization_id")
get = ROWS.get


def by_ids(tx: Transaction, scope: Scope, ids: Sequence[str]) -> list[Tool]:
    """Return the tools with these ids, in order.

    Args:
        tx: The transaction.
        scope: The caller.
        ids: The tools' ids.

    Raises:
        NotFound: One of the tools does not exist.
    """
    read = ROWS.all(tx, _BY_IDS, {"ids": list(ids), "organization_id": scope.organization_id})
    by_id = {tool.id: tool for tool in read}
    return [require_found(by_id.get(id), "Tool", id) for id in ids]


def by_names(tx: Transaction, scope: Scope, names: Sequence[str]) -> dict[str, Tool]:
    """Return the organization's tools with these names, by name.

    A missing tool is left out.

    Args:
        tx: The transaction.
        scope: The caller.
        names: The names, compared exactly.
    """
    read = ROWS.all(tx, _BY_NAMES, {"names": list(names), "organization_id": scope.organization_id})
    return {tool.name: tool for tool in read}


def find(tx: Transaction, scope: Scope, names: Sequence[str], ids: Sequence[str]) -> list[Tool]:
    """Return the tools with these names, then the tools with these ids, each once.

    Args:
        tx: The transaction.
        scope: The caller.
        names: Names of tools.
        ids: Ids of tools.

    Raises:
        NotFound: One of the tools does not exist. The message may name a replacement.
    """
    if not names and not ids:
        return []
    parameters = {
        "names": list(names),
        "ids": list(ids),
        "organization_id": scope.organization_id,
    }
    by_name = {tool.name: tool for tool in ROWS.all(tx, _BY_NAMES_OR_IDS, parameters)}
    by_id = {tool.id: tool for tool in by_name.values()}
    if missing := [name for name in names if name not in by_name]:
        raise NotFound(f"Tool with name {', '.join(missing)} not found{replacement(missing)}")
    named = [by_name[name] for name in names]
    with_ids = [require_found(by_id.get(id), "Tool", id) for id in ids]
    return list({tool.id: tool for tool in [*named, *with_ids]}.values())


def names(tx: Transaction, scope: Scope) -> list[str]:
    """Return the names of the organization's tools, in alphabetical order.

    Args:
        tx: The transaction.
        scope: The caller.
    """
    listed = select(tools.c.name).where(tools.c.organization_id == scope.organization_id)
    return [row.name for row in tx.all(listed.order_by(tools.c.name))]


def replacement(missing: Sequence[str]) -> str:
    """Return a hint for missing tools of the retired Letta V1 server; "" for others.

    Args:
        missing: Names of tools that do not exist.

    Returns:
        A sentence that begins with ". ".
    """
    hints = list(dict.fromkeys(REPLACEMENTS[name] for name in missing if name in REPLACEMENTS))
    if hints:
        return f". Use {'; '.join(hints)}."
    return ""


def of_agent(tx: Transaction, agent_id: str) -> tuple[Tool, ...]:
    """Return the agent's tools in order of attachment.

    Args:
        tx: The transaction.
        agent_id: The agent; the caller's access to it is checked before.
    """
    return tuple(ROWS.all(tx, _OF_AGENT, {"agent_id": agent_id}))


def of_agents(tx: Transaction, agent_ids: Sequence[str]) -> dict[str, tuple[Tool, ...]]:
    """Return the tools of each of these agents by id, in order of attachment.

    Args:
        tx: The transaction.
        agent_ids: The agents; one without tools has an empty tuple.
    """
    tools_by_seq: dict[str, dict[int, Tool]] = {id: {} for id in agent_ids}
    for row in tx.all(_OF_AGENTS, {"agent_ids": list(agent_ids)}):
        tool = ROWS.of(row[:-1])
        for seq, agent_id in map(str.split, row.attachments):
            tools_by_seq[agent_id][int(seq)] = tool
    return {
        id: tuple(tool for _, tool in sorted(attached.items(), key=itemgetter(0)))
        for id, attached in tools_by_seq.items()
    }


def page(tx: Transaction, scope: Scope, page: Page, filters: ToolFilter) -> list[Tool]:
    """Return one page of the organization's tools.

    Args:
        tx: The transaction.
        scope: The caller.
        page: The part of the list.
        filters: The conditions.
    """
    return ROWS.page(tx, scope, page, *_conditions(filters))


def count(tx: Transaction, scope: Scope, filters: ToolFilter = ToolFilter()) -> int:
    """Return the number of the organization's tools.

    Args:
        tx: The transaction.
        scope: The caller.
        filters: The conditions; by default every tool counts.
    """
    return ROWS.count(tx, scope, *_conditions(filters))


def _conditions(filters: ToolFilter) -> Iterator[ColumnElement[bool]]:
    if filters.names:
        yield tools.c.name.in_(filters.names)
    if filters.ids:
        yield tools.c.id.in_(filters.ids)
    if filters.types:
        yield tools.c.tool_type.in_(filters.types)
    if filters.other_types:
        yield tools.c.tool_type.not_in(filters.other_types)
    if filters.search:
        yield tools.c.name.icontains(filters.search, autoescape=True)
    for is_built_in in filters.is_built_in:
        yield tools.c.tool_type.startswith("letta") == is_built_in
    if filters.agent_id is not None:
        yield tools.c.id.in_(
            select(agents_tools.c.tool_id).where(agents_tools.c.agent_id == filters.agent_id)
        )


def agents_with(tx: Transaction, tool_ids: Sequence[str]) -> dict[str, list[str]]:
    """Return the ids of the agents that have these tools, by tool id.

    A tool that no agent has is missing.

    Args:
        tx: The transaction.
        tool_ids: The tools.
    """
    agent_ids: dict[str, list[str]] = {}
    for row in tx.all(_AGENTS_WITH, {"ids": list(tool_ids)}):
        agent_ids.setdefault(row.tool_id, []).append(row.agent_id)
    return agent_ids


def attach(tx: Transaction, agent_id: str, tool_ids: Sequence[str]) -> None:
    """Attach tools to the agent.

    Args:
        tx: The transaction.
        agent_id: The agent; the caller's access to it is checked before.
        tool_ids: The tools in the order of attachment.

    Raises:
        Collision: The agent has one of the tools, or a tool does not exist.
    """
    tx.run(_ATTACH, [{"agent_id": agent_id, "tool_id": tool_id} for tool_id in tool_ids])


def detach(tx: Transaction, agent_id: str, tool_id: str) -> bool:
    """Detach a tool from the agent.

    Args:
        tx: The transaction.
        agent_id: The agent; the caller's access to it is checked before.
        tool_id: The tool.

    Returns:
        False if it was not attached.
    """
    return tx.run(_DETACH, {"agent_id": agent_id, "tool_id": tool_id}) > 0


def detach_all(tx: Transaction, agent_id: str) -> None:
    """Detach all tools from the agent.

    Args:
        tx: The transaction.
        agent_id: The agent; the caller's access to it is checked before.
    """
    tx.run(_DETACH_ALL, {"agent_id": agent_id})


def delete_all(tx: Transaction, tool_ids: Sequence[str]) -> None:
    """Delete these tools, which no agent has.

    Args:
        tx: The transaction.
        tool_ids: The tools.
    """
    tx.run(_DELETE_ALL, {"ids": list(tool_ids)})


def remove(tx: Transaction, tool_id: str) -> None:
    """Detach a tool from all agents, and delete it.

    Args:
        tx: The transaction.
        tool_id: The tool; the caller's right to delete it is checked before.
    """
    tx.run(_DETACH_FROM_ALL, {"tool_id": tool_id})
    tx.run(_DELETE, {"id": tool_id})
