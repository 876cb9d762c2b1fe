"""Organizations: worlds of their own, each named by an id, or by a name that no other has."""

from collections.abc import Sequence

from sqlalchemy import bindparam, or_

from ricordo.domain.ids import is_id, new_id
from ricordo.domain.scope import Organization
from ricordo.errors import Collision, NotFound
from ricordo.storage.deletion import DELETED
from ricordo.storage.engine.repository import Page, Repository
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import organizations
from ricordo.storage.users import require_fit_name

_ROWS = Repository(Organization, organizations)
# What is deleted and not yet purged is under an organization that nobody asks for.
_IS_REAL = organizations.c.id != DELETED
_IS_NAMED = or_(organizations.c.id == bindparam("name"), organizations.c.name == bindparam("name"))
_NAMED = _ROWS.select.where(_IS_NAMED, _IS_REAL).order_by(organizations.c.seq).limit(1)


def named(tx: Transaction, name: str) -> Organization | None:
    """Return the organization with this id or name; None where there is none."""
    return None if "\0" in name else _ROWS.first(tx, _NAMED, {"name": name})


def require(tx: Transaction, name: str) -> Organization:
    found = named(tx, name)
    if found is None:
        raise NotFound(
            f'There is no organization "{name[:80]}". `ricordo organization list` shows them.'
        )
    return found


def create(tx: Transaction, name: str) -> Organization:
    require_fit_name(name, "An organization")
    if is_id(name, "org") or named(tx, name):
        raise Collision(f'An organization "{name}" already exists. Choose another name.')
    made = Organization(new_id("org"), name, tx.clock.now())
    _ROWS.insert(tx, made)
    return made


def page(tx: Transaction, wanted: Page) -> list[Organization]:
    return _ROWS.page(tx, None, wanted, _IS_REAL)


def every_id(tx: Transaction) -> Sequence[str]:
    return [
        one.id for one in _ROWS.all(tx, _ROWS.select.where(_IS_REAL).order_by(organizations.c.seq))
    ]
