"""Queries of access tokens, with which web pages of one origin use certain agents.

Tokens are rows of the table of API keys. They are looked up, expire and are erased like keys.
"""

from collections.abc import Sequence

from sqlalchemy import ColumnElement, String, bindparam, cast, delete, func, or_, select, true

from ricordo.domain.scope import Scope
from ricordo.storage.engine.repository import Repository
from ricordo.storage.engine.store import Transaction
from ricordo.storage.keys import ApiKey
from ricordo.storage.schema.core_tables import api_keys

_ROWS = Repository(ApiKey, api_keys)
_IS_TOKEN = api_keys.c.kind == "token"
_IS_ALIVE = _IS_TOKEN & (api_keys.c.expires_at > bindparam("now"))
_DELETE_ENDED = delete(api_keys).where(_IS_TOKEN, api_keys.c.expires_at <= bindparam("now"))
_COUNT = select(func.count().label("tokens")).where(
    _IS_ALIVE, api_keys.c.organization_id == bindparam("organization_id")
)
insert_one = _ROWS.insert


def delete_ended(tx: Transaction) -> None:
    """Delete the expired tokens of all organizations.

    Args:
        tx: The transaction.
    """
    tx.run(_DELETE_ENDED, {"now": tx.clock.now()})


def count(tx: Transaction, scope: Scope) -> int:
    """Return the number of valid tokens of the organization.

    Args:
        tx: The transaction, or a read.
        scope: The caller. All tokens of the caller's organization count.
    """
    return int(
        tx.all(_COUNT, {"now": tx.clock.now(), "organization_id": scope.organization_id})[0].tokens
    )


def page(
    tx: Transaction, scope: Scope, agent_id: str | None, limit: int, offset: int
) -> Sequence[ApiKey]:
    """Return valid tokens, the newest first.

    Args:
        tx: The transaction.
        scope: The caller. One who sees the whole organization gets all its tokens. Others get the
            tokens that their key created.
        agent_id: Only tokens for this agent; None or "" for any agent.
        limit: The most tokens.
        offset: The number of newest tokens to skip.
    """
    has_agent: ColumnElement[bool] = true()
    if agent_id:
        has_agent = cast(api_keys.c.scopes, String).contains(f'"{agent_id}:', autoescape=True)
    statement = _ROWS.select.where(_IS_ALIVE, _is_own(scope), has_agent)
    statement = statement.order_by(api_keys.c.seq.desc()).limit(limit).offset(offset)
    return _ROWS.all(tx, statement, {"now": tx.clock.now()})


def delete_one(tx: Transaction, scope: Scope, id: str, hash: str) -> bool:
    """Delete the caller's token with this id or hash; return False without one.

    Args:
        tx: The transaction.
        scope: The caller. One who sees the whole organization may delete any of its tokens. Others
            may delete the tokens that their key created.
        id: A token's id; another text matches none.
        hash: The stored hash of a token, as `keys.hash_of` returns it.
    """
    is_named = or_(api_keys.c.id == id, api_keys.c.hash == hash)
    return tx.run(delete(api_keys).where(_IS_TOKEN, _is_own(scope), is_named)) > 0


def _is_own(scope: Scope) -> ColumnElement[bool]:
    is_in_organization = api_keys.c.organization_id == scope.organization_id
    if scope.subject_id is None:
        return is_in_organization
    return is_in_organization & (api_keys.c.created_by == scope.key_id)
