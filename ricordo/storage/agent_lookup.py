"""Conditions on agents and lookups of their ids, for features that refer to agents."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, bindparam, exists, func, or_, select

from ricordo.domain.scope import Scope
from ricordo.storage.agent_access import may_use
from ricordo.storage.agents import is_made_from
from ricordo.storage.engine.repository import Page, equal, known_to, read_page, tagged_with
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import agents, agents_tags

_NAMES = select(agents.c.id, agents.c.name, agents.c.created_at, agents.c.agent_type)
_SHOWN = _NAMES.where(equal(agents, "organization_id"), agents.c.hidden.is_(False)).order_by(
    agents.c.seq
)
_NAMED = _NAMES.where(
    equal(agents, "organization_id"),
    or_(agents.c.id == bindparam("name"), agents.c.name == bindparam("name")),
)
_OF_COURSE = (
    select(agents.c.id)
    .where(
        equal(agents, "organization_id"),
        agents.c.metadata["course"].as_string() == bindparam("course"),
        agents.c.hidden.is_(False),
    )
    .order_by(agents.c.seq)
    .limit(1)
)


def exists_as(id: ColumnElement[str], organization_id: ColumnElement[str]) -> ColumnElement[bool]:
    """Return the condition that an agent exists.

    Args:
        id: The column with the agent's id.
        organization_id: The column with the organization to which it must belong.
    """
    return exists().where(agents.c.id == id, agents.c.organization_id == organization_id)


def is_other_than(agent_id: str) -> ColumnElement[bool]:
    """Return the condition that an agent has another id.

    Args:
        agent_id: The agent to leave out.
    """
    return agents.c.id != agent_id


def has_any_tag(tags: Sequence[str]) -> ColumnElement[bool]:
    """Return the condition that an agent has one of these tags.

    Args:
        tags: The tags, in any order.
    """
    return tagged_with(agents_tags, agents.c.id, tags, all_tags=False)


def ids_among(
    tx: Transaction, organization_id: str, agent_ids: Select[Any], limit: int
) -> list[str]:
    """Return the first of the selected agents' ids that are in the organization, ordered by id.

    Args:
        tx: The transaction, or a read.
        organization_id: The organization. Its restricted and hidden agents are returned too.
        agent_ids: A select of agent ids, perhaps of several organizations.
        limit: The most agents.
    """
    statement = select(agents.c.id).where(*_is_among(agent_ids, organization_id))
    statement = statement.order_by(agents.c.id).limit(limit)
    return [row.id for row in tx.all(statement)]


def page_of_ids(tx: Transaction, scope: Scope, page: Page, agent_ids: Select[Any]) -> list[str]:
    """Return one page of the ids of the selected agents that the caller may use.

    Args:
        tx: The transaction.
        scope: The caller.
        page: The part of the list, by creation. Its cursor must be an agent that the caller may
            use.
        agent_ids: A select of agent ids.
    """
    statement = select(agents.c.id).where(
        *_is_among(agent_ids, scope.organization_id), *may_use(scope)
    )
    marks = known_to(agents, scope, lambda agent: may_use(scope, agent.c.id))
    return [row.id for row in read_page(tx, statement, agents, page, marks=marks)]


def _is_among(agent_ids: Select[Any], organization_id: str) -> list[ColumnElement[bool]]:
    """Return the conditions that an agent is selected and in the organization.

    The second one is an expression instead of the bare column. Otherwise SQLite would prefer the
    column's index, and read all agents of the organization.
    """
    return [
        agents.c.id.in_(agent_ids),
        func.coalesce(agents.c.organization_id, "") == organization_id,
    ]


def of_older_version(
    tx: Transaction, organization_id: str, template_id: str, version: int
) -> list[str]:
    """Return the ids of the agents made from an older version of the template, oldest first.

    Args:
        tx: The transaction.
        organization_id: The organization of the template.
        template_id: The template, which the agents' settings name as `base_template_id`.
        version: Agents of versions below this number are returned.
    """
    statement = select(agents.c.id).where(
        agents.c.organization_id == organization_id,
        agents.c.settings[("template", "version")].as_integer() < version,
        is_made_from(base_template_id=template_id),
    )
    return [row.id for row in tx.all(statement.order_by(agents.c.seq))]


def of_course(tx: Transaction, organization_id: str, course: str) -> str | None:
    """Return the id of the course's first agent.

    Args:
        tx: The transaction, or a read.
        organization_id: The organization of the course.
        course: The name of the course.

    Returns:
        The oldest agent that is not hidden; None if the course has none.
    """
    if "\0" in course:
        return None  # PostgreSQL would refuse the parameter
    row = tx.first(_OF_COURSE, {"organization_id": organization_id, "course": course})
    return row[0] if row else None


def shown(tx: Transaction, scope: Scope) -> Sequence[Row[Any]]:
    """Return id, name, time and type of the agents that the caller may use, the oldest first.

    Hidden agents are left out.

    Args:
        tx: The transaction, or a read.
        scope: The caller.
    """
    return tx.all(_SHOWN.where(*may_use(scope)), {"organization_id": scope.organization_id})


def named(tx: Transaction, scope: Scope, name: str) -> Sequence[Row[Any]]:
    """Return id, name, time and type of the agents with this id or name.

    Args:
        tx: The transaction, or a read.
        scope: The caller. Agents that the caller may not use are left out.
        name: The id, or the exact name. Several agents may have one name.
    """
    parameters = {"organization_id": scope.organization_id, "name": name}
    return tx.all(_NAMED.where(*may_use(scope)), parameters)
