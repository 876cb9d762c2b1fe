"""Encrypted variables of an organization for the processes of its tools.

Their values are never shown, only their names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import UniqueConstraint, delete

from ricordo.domain.ids import new_id
from ricordo.domain.scope import Scope
from ricordo.errors import Conflict, Invalid
from ricordo.secret import Secret
from ricordo.storage import tools
from ricordo.storage.engine.repository import Page, Repository, equal
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.columns import names, root, strings, table, texts, timestamps

MOST = 100


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of an organization.

    `sealed` is its value, encrypted with the server's secret key.
    """

    id: str
    organization_id: str
    name: str
    sealed: str
    description: str | None = None
    created_by: str | None = None
    updated_by: str | None = None
    created_at: int = 0
    updated_at: int = 0


tool_variables = table(
    "tool_variables",
    *root(),
    *names("name", null=False),
    *strings("sealed", null=False),
    *texts("description"),
    *strings("created_by", "updated_by", erasure="blank"),
    *timestamps("created_at", "updated_at"),
    UniqueConstraint("organization_id", "name"),
    erasure="keep",
)
_ROWS = Repository(Variable, tool_variables)
_ALL = _ROWS.select.where(equal(tool_variables, "organization_id")).order_by(tool_variables.c.name)
_BY_NAME = _ROWS.select.where(equal(tool_variables, "organization_id", "name"))
_DELETE = delete(tool_variables).where(equal(tool_variables, "id"))
_update = _ROWS.updates("name", "sealed", "description", "updated_by", "updated_at")
get = _ROWS.get
get_for_change = _ROWS.get_for_change


def page(tx: Transaction, scope: Scope, page_request: Page) -> list[Variable]:
    """Return one page of the organization's variables.

    Args:
        tx: The transaction, or a read.
        scope: The caller.
        page_request: The part of the list, by creation.
    """
    return _ROWS.page(tx, scope, page_request)


def of_organization(tx: Transaction, scope: Scope) -> Sequence[Variable]:
    """Return all variables of the caller's organization, by name.

    Args:
        tx: The transaction, or a read.
        scope: The caller.
    """
    return _ROWS.all(tx, _ALL, {"organization_id": scope.organization_id})


def values_of(secret: Secret, variables: Sequence[Variable]) -> Mapping[str, str]:
    """Return the values by name.

    Args:
        secret: The server's secret key.
        variables: The stored variables, with encrypted values.

    Raises:
        Unavailable: A value was encrypted with another secret key.
    """
    return {variable.name: secret.decrypt(variable.sealed) for variable in variables}


def create(tx: Transaction, scope: Scope, variable: Variable) -> Variable:
    """Store a new variable.

    Args:
        tx: The transaction.
        scope: The caller, who is recorded as the creator.
        variable: The variable with its encrypted value. Its id, organization, authors and times are
            set here.

    Raises:
        Conflict: The name is taken.
        Invalid: There are too many variables.
    """
    now = tx.clock.now()
    created = replace(
        variable,
        id=new_id("sandbox-env"),
        organization_id=scope.organization_id,
        created_by=scope.user_id,
        updated_by=scope.user_id,
        created_at=now,
        updated_at=now,
    )
    tools.lock(tx, scope)  # so that no other request creates one at the same time
    _require_free(tx, created)
    if len(of_organization(tx, scope)) >= MOST:
        raise Invalid(f"There are {MOST} variables, and no more are allowed. Delete one first.")
    _ROWS.insert(tx, created)
    return created


def change(tx: Transaction, scope: Scope, variable: Variable) -> Variable:
    """Store a changed variable.

    Args:
        tx: The transaction.
        scope: The caller, who is recorded as the author of the change.
        variable: The stored variable with its changes; all columns that may change are written.

    Raises:
        Conflict: Another variable has the new name.
    """
    _require_free(tx, variable)
    changed = replace(variable, updated_by=scope.user_id, updated_at=tx.clock.now())
    _update(tx, changed)
    return changed


def remove(tx: Transaction, scope: Scope, id: str) -> None:
    """Delete a variable.

    Args:
        tx: The transaction.
        scope: The caller.
        id: The variable.

    Raises:
        NotFound: The organization has no such variable.
    """
    tx.run(_DELETE, {"id": get(tx, scope, id).id})


def _require_free(tx: Transaction, variable: Variable) -> None:
    other = _ROWS.first(
        tx, _BY_NAME, {"organization_id": variable.organization_id, "name": variable.name}
    )
    if other is not None and other.id != variable.id:
        raise Conflict(f"A variable {variable.name} already exists. Change that one.")
