"""Queries of templates, of their versions, and of the agents created from them."""

from dataclasses import dataclass

from sqlalchemy import delete, select, update

from ricordo.domain.scope import Scope
from ricordo.domain.text import Json
from ricordo.errors import NotFound
from ricordo.features.documents.templates.tables import template_versions, templates
from ricordo.storage import agent_lookup
from ricordo.storage.engine.repository import Page, Repository, equal, one_of
from ricordo.storage.engine.store import Transaction


@dataclass(frozen=True, slots=True)
class Template:
    """A template of an agent.

    `version` is the number of the newest saved version. `agent_id` is the agent that the template
    follows, or None.
    """

    id: str
    organization_id: str
    name: str
    description: str | None
    agent_id: str | None
    version: int = 0
    created_by: str | None = None
    updated_by: str | None = None
    created_at: int = 0
    updated_at: int = 0


@dataclass(frozen=True, slots=True)
class TemplateVersion:
    """A saved version without its content.

    Versions with equal `digest` have equal contents.
    """

    id: str
    template_id: str
    number: int
    message: str | None
    digest: str
    created_by: str | None = None
    created_at: int = 0


_ROWS = Repository(Template, templates)
_VERSIONS = Repository(TemplateVersion, template_versions)
_NAMED = _ROWS.select.where(equal(templates, "organization_id", "name"))
_LOCK = _NAMED.with_for_update()
_OF_TEMPLATES = _VERSIONS.select.where(
    one_of(template_versions.c.template_id, "template_ids")
).order_by(template_versions.c.number.desc())
insert_template = _ROWS.insert
_update = _ROWS.updates(*_ROWS.changeable())


def find(tx: Transaction, scope: Scope, name: str) -> Template | None:
    """Return the template with this name, or None.

    Args:
        tx: The transaction, or a read.
        scope: The caller, whose organization is searched.
        name: The whole name.
    """
    return _ROWS.first(tx, _NAMED, {"organization_id": scope.organization_id, "name": name})


def get(tx: Transaction, scope: Scope, name: str, *, locks: bool = False) -> Template:
    """Return the template with this name.

    Args:
        tx: The transaction.
        scope: The caller, whose organization is searched.
        name: The whole name.
        locks: Lock the row until this transaction ends.

    Raises:
        NotFound: if there is none.
    """
    named = {"organization_id": scope.organization_id, "name": name}
    if locks:
        template = _ROWS.first_locked(tx, _LOCK, named)
    else:
        template = _ROWS.first(tx, _NAMED, named)
    if template is None:
        raise NotFound(f'There is no template "{name[:100]}". The page Templates lists them.')
    return template


def update_template(tx: Transaction, template: Template, content: Json) -> None:
    """Store a changed template and its content.

    Args:
        tx: The transaction.
        template: The template; all columns that may change are written.
        content: The new content of the template itself; saved versions do not change.
    """
    _update(tx, template)
    tx.run(update(templates).where(templates.c.id == template.id).values(content=content))


def read_content(tx: Transaction, template_id: str) -> Json:
    """Return the content that was last written to the template itself.

    Args:
        tx: The transaction, or a read.
        template_id: An existing template.
    """
    content: Json = tx.first(
        select(templates.c.content).where(templates.c.id == template_id)
    ).content
    return content


def insert_version(tx: Transaction, version: TemplateVersion, content: Json) -> None:
    """Store a saved version.

    Args:
        tx: The transaction.
        version: The version, with an unused number.
        content: Its content, with the hash in `version.digest`.
    """
    tx.run(template_versions.insert().values(**_VERSIONS.values(version), content=content))


def read_version(
    tx: Transaction, template_id: str, number: int
) -> tuple[TemplateVersion, Json] | None:
    """Return the version with its content; None if there is none.

    Args:
        tx: The transaction.
        template_id: The template.
        number: The version's number, from 1.
    """
    statement = select(*_VERSIONS.columns, template_versions.c.content)
    row = tx.first(
        statement.where(
            template_versions.c.template_id == template_id, template_versions.c.number == number
        )
    )
    if row is None:
        return None
    return (_VERSIONS.of(row[:-1]), row.content)


def is_saved(tx: Transaction, template_id: str, digest: str) -> bool:
    """Return True if a version has this content.

    Args:
        tx: The transaction.
        template_id: The template.
        digest: The hash of the content, as in `TemplateVersion.digest`.
    """
    statement = select(template_versions.c.seq).where(
        template_versions.c.template_id == template_id, template_versions.c.digest == digest
    )
    return tx.first(statement) is not None


def delete_template(tx: Transaction, template_id: str) -> None:
    """Delete a template with its versions.

    Args:
        tx: The transaction.
        template_id: The template. Its agents remain.
    """
    tx.run(delete(templates).where(templates.c.id == template_id))


def agents_before(tx: Transaction, template: Template, number: int) -> list[str]:
    """Return the ids of the template's agents with an older version, oldest first.

    Args:
        tx: The transaction.
        template: The template.
        number: A version's number. Agents with this version or a newer one are left out.
    """
    return agent_lookup.of_older_version(tx, template.organization_id, template.id, number)


def page_with_versions(
    tx: Transaction, scope: Scope, page: Page
) -> list[tuple[Template, list[TemplateVersion]]]:
    """Return a page of templates, each with its versions, newest first.

    Args:
        tx: The transaction, or a read.
        scope: The caller, whose organization is searched.
        page: The part of the list of templates. Each has all its versions.
    """
    rows = _ROWS.page(tx, scope, page)
    if not rows:
        return []
    by_template: dict[str, list[TemplateVersion]] = {row.id: [] for row in rows}
    for version in _VERSIONS.all(tx, _OF_TEMPLATES, {"template_ids": [*by_template]}):
        by_template[version.template_id].append(version)
    return [(row, by_template[row.id]) for row in rows]
