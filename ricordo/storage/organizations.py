"""Organizations: isolated tenants, each named by its id or its unique name."""

from collections.abc import Sequence

from sqlalchemy import bindparam, or_, select

from ricordo.domain.ids import is_id, new_id
from ricordo.domain.scope import LOCAL_ORGANIZATION, Organization, Scope
from ricordo.errors import Collision, NotFound
from ricordo.storage.deletion import DELETED
from ricordo.storage.engine.repository import Page, Repository, equal
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import organizations
from ricordo.storage.users import require_fit_name

_ROWS = Repository(Organization, organizations)
# Deleted rows that are not purged yet belong to this organization, which has no members.
_IS_REAL = organizations.c.id != DELETED
_IS_NAMED = or_(organizations.c.id == bindparam("name"), organizations.c.name == bindparam("name"))
_IS_ANOTHER = _IS_REAL & (organizations.c.id != bindparam("first_id"))
_ANOTHER = select(organizations.c.seq).where(_IS_ANOTHER).limit(1)
_LOCK = select(organizations.c.id).where(equal(organizations, "id")).with_for_update(key_share=True)
_NAMED = _ROWS.select.where(_IS_NAMED, _IS_REAL).order_by(organizations.c.seq).limit(1)


def named(tx: Transaction, name: str) -> Organization | None:
    """Return the organization with this id or name; None if there is none.

    Args:
        tx: The transaction.
        name: An id or a name.
    """
    if "\0" in name:
        return None
    return _ROWS.first(tx, _NAMED, {"name": name})


def require(tx: Transaction, name: str) -> Organization:
    """Return the organization with this id or name.

    Args:
        tx: The transaction.
        name: An id or a name.

    Raises:
        NotFound: There is no such organization.
    """
    organization = named(tx, name)
    if organization is None:
        raise NotFound(
            f'There is no organization "{name[:80]}". `ricordo organization list` shows them.'
        )
    return organization


def lock(tx: Transaction, id: str) -> None:
    """Lock an organization until the transaction ends. Does nothing on SQLite.

    Args:
        tx: The transaction.
        id: The organization.
    """
    tx.lock(_LOCK, {"id": id})


def create(tx: Transaction, name: str) -> Organization:
    """Create an organization.

    Args:
        tx: The transaction.
        name: The name, unique on this server. It may not have the form of an id.

    Raises:
        Invalid: No organization can have this name.
        Collision: The name is used, or has the form of an id.
    """
    require_fit_name(name, "An organization")
    if is_id(name, "org"):
        raise Collision("No organization can be named by the form of an id. Choose another name.")
    if named(tx, name):
        raise Collision(f'An organization "{name}" already exists. Choose another name.')
    organization = Organization(new_id("org"), name, tx.clock.now())
    _ROWS.insert(tx, organization)
    return organization


def page(tx: Transaction, page: Page) -> list[Organization]:
    """Return one page of the organizations.

    Args:
        tx: The transaction.
        page: The part of the list.
    """
    return _ROWS.page(tx, None, page, _IS_REAL)


def every_id(tx: Transaction) -> Sequence[str]:
    """Return the ids of all organizations, the oldest first, without that of deleted rows.

    Args:
        tx: The transaction.
    """
    statement = _ROWS.select.where(_IS_REAL).order_by(organizations.c.seq)
    return [organization.id for organization in _ROWS.all(tx, statement)]


def may_see_server(tx: Transaction, scope: Scope) -> bool:
    """Return True if the caller may see data of the whole server, such as backups.

    They hold all organizations. If there are several, only the operator may see them.

    Args:
        tx: The transaction.
        scope: An administrator.
    """
    if scope.organization_id != LOCAL_ORGANIZATION:
        return False
    return scope.is_operator or tx.first(_ANOTHER, {"first_id": LOCAL_ORGANIZATION}) is None
