"""API keys: identity and rights of callers.

A key is stored as a keyed hash, so that a copy of the database gives no access.
"""

import hmac
import secrets
from dataclasses import dataclass, replace
from typing import Literal

from sqlalchemy import and_, bindparam, delete, func, or_, select, update

from ricordo.domain.ids import new_id
from ricordo.domain.scope import (
    LOCAL_ORGANIZATION,
    NOBODY,
    ROLE_SCOPES,
    Limits,
    Reach,
    Role,
    Scope,
    User,
)
from ricordo.errors import Invalid
from ricordo.storage import users
from ricordo.storage.engine.repository import Missing, Page, Repository, equal, require_found
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import agents, api_keys, providers
from ricordo.storage.schema.core_tables import users as users_table
from ricordo.storage.schema.memory_tables import memory_remotes

PREFIX = "ricordo_"
# Prefix of a browser's token.
TOKEN = f"{PREFIX}token_"
# Length of a key's hint, which tells keys apart in a list.
_HINT = len(PREFIX) + 4


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A stored key of a user or a service.

    Times are in microseconds UTC.

    Attributes:
        kind: A `session` is a browser's key from a login. A `token` works only for web pages of the
            origin `name`, and only for certain agents. An `access` key works only for the path
            `name`. The row of kind `requirement` is created with the first key. It stays even if
            the users of all keys are erased. Otherwise the server would then accept requests
            without keys.
        name: The name that a person gave the key; of a token the origin, and of an access key the
            path.
        hash: The keyed hash of the key.
        hint: The beginning of the key.
        user_id: The user of the key; None for a service.
        created_by: The id of the caller who created it. For a token or an access key it is the id
            of another key. The token or access key ends when that key ends.
        scopes: The scopes of the key; if there are none, those of its role apply. A token also has
            "<id of an agent>:<access>" here.
    """

    id: str
    organization_id: str
    kind: Literal["key", "session", "token", "access", "requirement"]
    name: str
    hash: str
    hint: str
    user_id: str | None
    role: Role
    created_by: str | None
    created_at: int
    expires_at: int | None = None
    scopes: tuple[str, ...] = ()
    last_used_at: int | None = None
    revoked_at: int | None = None
    requests_per_minute: int | None = None
    max_body_bytes: int | None = None


_ROWS = Repository(ApiKey, api_keys)
_BY_HASH = (
    select(*_ROWS.columns, *users.ROWS.columns)
    .outerjoin(
        users_table,
        and_(
            users_table.c.id == api_keys.c.user_id,
            users_table.c.organization_id == api_keys.c.organization_id,
        ),
    )
    .where(equal(api_keys, "hash"))
)
_OF_USER = select(api_keys.c.id).where(equal(api_keys, "user_id")).limit(1)
_LAST_ROLE = (
    select(api_keys.c.role)
    .where(equal(api_keys, "user_id"), api_keys.c.kind == "key", api_keys.c.revoked_at.is_(None))
    .order_by(api_keys.c.created_at.desc(), api_keys.c.seq.desc())
    .limit(1)
)
_ANY = select(api_keys.c.seq).where(equal(api_keys, "hash"))
_REQUIREMENT: Literal["requirement"] = "requirement"
_INSERT = Missing(api_keys)
_DELETE_ENDED = delete(api_keys).where(
    equal(api_keys, "user_id"),
    api_keys.c.kind == "session",
    or_(api_keys.c.revoked_at.is_not(None), api_keys.c.expires_at <= bindparam("now")),
)
_END_SESSIONS = (
    update(api_keys)
    .where(
        equal(api_keys, "user_id"), api_keys.c.kind == "session", api_keys.c.revoked_at.is_(None)
    )
    .values(revoked_at=bindparam("now"))
)
_NEEDS = ("API keys", "keys of providers", "passwords of remotes", "agents with secrets")
_PASSWORD = memory_remotes.c.settings["password"].as_string()
_SECRETS = agents.c.settings["secrets"].as_string()
_NEEDING = select(
    *(
        select(func.count()).where(condition).scalar_subquery()
        for condition in (
            (api_keys.c.kind == "key") & api_keys.c.revoked_at.is_(None),
            providers.c.secret.is_not(None),
            _PASSWORD.is_not(None),
            _SECRETS.is_not(None) & (_SECRETS != "{}"),
        )
    )
)
_revoke = _ROWS.updates("revoked_at", locked=None)
_use = _ROWS.updates("last_used_at", locked=None)


@dataclass(frozen=True, slots=True)
class KeyDraft:
    """A key to create, for a user, or for a service named `name`.

    Attributes:
        role: One of `ROLE_SCOPES`. The key of a "service" has no user; any other key needs one.
        user: The user's id or identifier; None for a service.
        scopes: The scopes of the key; without any, those of the role.
        expires_at: A future time in microseconds UTC; None: it never expires.
        requests_per_minute: The limit of this key; None: that of the server.
        max_body_bytes: The most bytes of a request's body; None: the limit of the server.
    """

    name: str
    role: Role = "user"
    user: str | None = None
    scopes: tuple[str, ...] = ()
    expires_at: int | None = None
    kind: Literal["key", "session"] = "key"
    requests_per_minute: int | None = None
    max_body_bytes: int | None = None


def hash_of(secret: bytes, key: str) -> str:
    """Return the stored hash of a key. A random key needs no slow hash.

    Args:
        secret: The key of the hash, derived from the installation's secret key.
        key: The whole API key.
    """
    return hmac.digest(secret, key.encode("utf-8", "surrogatepass"), "sha256").hex()


def create(tx: Transaction, scope: Scope, secret: bytes, draft: KeyDraft) -> tuple[ApiKey, str]:
    """Store a new key, and return it with the text of the key, which is not stored.

    Args:
        tx: The transaction.
        scope: The creator, whose organization gets the key.
        secret: The key of the stored hash (see `hash_of`).
        draft: The key to create. Its `user` is an id or identifier, and a new user is created for
            an unknown identifier.

    Raises:
        Invalid: The role, the user, the service or the time of expiry does not fit.
        NotFound: The user does not exist, and the caller may not create it.
        Collision: The name of a new user looks like that of another one.
    """
    now = tx.clock.now()
    if draft.role not in ROLE_SCOPES:
        raise Invalid(f'There is no role "{draft.role}". Use: {", ".join(ROLE_SCOPES)}.')
    if draft.role == "service" and draft.user:
        raise Invalid(
            "A service's key belongs to no user: leave user out. Each of its requests names a user."
        )
    if draft.role != "service" and not draft.user:
        raise Invalid(f"A key with the role {draft.role} belongs to a user: name the user.")
    if draft.expires_at is not None and draft.expires_at <= now:
        raise Invalid("The key would expire at once. Choose a time in the future.")
    if draft.user:
        user = users.find_or_make(tx, scope, draft.user)
    else:
        user = None
    if user and user.disabled_at is not None:
        raise Invalid(f'The user "{user.name}" is disabled. Enable the user first.')
    key = PREFIX + secrets.token_urlsafe(32)
    stored = ApiKey(
        id=new_id("key"),
        organization_id=scope.organization_id,
        kind=draft.kind,
        name=draft.name,
        hash=hash_of(secret, key),
        hint=key[:_HINT],
        user_id=user.id if user else None,
        role=draft.role,
        created_by=scope.user_id,
        created_at=now,
        expires_at=draft.expires_at,
        scopes=tuple(sorted(set(draft.scopes))),
        requests_per_minute=draft.requests_per_minute,
        max_body_bytes=draft.max_body_bytes,
    )
    if draft.kind == "session":  # so that ended sessions do not pile up
        tx.run(_DELETE_ENDED, {"user_id": stored.user_id, "now": now})
    _ROWS.insert(tx, stored)
    if draft.kind == "key":
        tx.run(_INSERT, _ROWS.values(_requirement(now)))
    return stored, key


def get(tx: Transaction, scope: Scope, id: str) -> ApiKey:
    """Return the key with this id.

    Args:
        tx: The transaction.
        scope: The caller.
        id: The key's id.

    Raises:
        NotFound: There is no such key. Sessions and tokens do not count as keys.
    """
    key = _ROWS.find(tx, scope, id)
    return require_found(key if key and key.kind == "key" else None, "Key", id)


def page(tx: Transaction, scope: Scope, page: Page, user_id: str | None = None) -> list[ApiKey]:
    """Return one page of an organization's or a user's keys, without sessions and tokens.

    Args:
        tx: The transaction.
        scope: The caller.
        page: The part of the list.
        user_id: Only keys of this user; None: those of all users and services.
    """
    return _ROWS.page(tx, scope, page, kind="key", user_id=user_id)


def _requirement(now: int) -> ApiKey:
    return ApiKey(
        id=f"key-{_REQUIREMENT}",
        organization_id=LOCAL_ORGANIZATION,
        kind=_REQUIREMENT,
        name=_REQUIREMENT,
        hash=_REQUIREMENT,
        hint="",
        user_id=None,
        role="user",
        created_by=None,
        created_at=now,
        revoked_at=now,
    )


def had_any(tx: Transaction, user_id: str) -> bool:
    """Return True if the user has a key, or had one that is still stored.

    Args:
        tx: The transaction.
        user_id: The user. Sessions and tokens count too.
    """
    return tx.first(_OF_USER, {"user_id": user_id}) is not None


def last_role(tx: Transaction, user_id: str) -> Role | None:
    """Return the role of the user's newest key that is not revoked; sessions do not count.

    Args:
        tx: The transaction.
        user_id: The user to whom the keys belong.

    Returns:
        The role; None if there is no such key.
    """
    row = tx.first(_LAST_ROLE, {"user_id": user_id})
    role: Role | None = row.role if row else None
    return role


def are_any(tx: Transaction) -> bool:
    """Return True if a key was ever created, even if it was revoked.

    From then on every caller needs a key.

    Args:
        tx: The transaction.
    """
    return tx.first(_ANY, {"hash": _REQUIREMENT}) is not None


def needing_secret(tx: Transaction) -> str:
    """Return the numbers of stored things that need the installation's secret key.

    The result is a text such as "2 API keys, 1 agents with secrets"; "" if there are none.

    Args:
        tx: The transaction.
    """
    counts = tx.all(_NEEDING)[0]
    return ", ".join(
        f"{count:,} {kind}" for kind, count in zip(_NEEDS, counts, strict=True) if count
    )


def revoke(tx: Transaction, scope: Scope, id: str) -> ApiKey:
    """Revoke the key permanently; a revoked key stays as it is.

    Args:
        tx: The transaction.
        scope: The caller.
        id: The key's id.

    Raises:
        NotFound: There is no such key.
    """
    key = get(tx, scope, id)
    if key.revoked_at is None:
        key = replace(key, revoked_at=tx.clock.now())
        _revoke(tx, key)
    return key


def end_session(tx: Transaction, scope: Scope) -> bool:
    """Revoke the caller's session; return False if the caller has no session.

    Args:
        tx: The transaction.
        scope: The caller, with the id of the key that the request sent.
    """
    if scope.key_id:
        key = _ROWS.find(tx, scope, scope.key_id)
    else:
        key = None
    if key is None or key.kind != "session":
        return False
    _revoke(tx, replace(key, revoked_at=tx.clock.now()))
    return True


def end_sessions_of(tx: Transaction, user_id: str) -> None:
    """Revoke all sessions of the user's browsers.

    Args:
        tx: The transaction.
        user_id: The user.
    """
    tx.run(_END_SESSIONS, {"user_id": user_id, "now": tx.clock.now()})


def note_use(tx: Transaction, key: ApiKey) -> None:
    """Store the present time as the key's last use.

    Args:
        tx: The transaction.
        key: The key of the request.
    """
    _use(tx, replace(key, last_used_at=tx.clock.now()))


def authenticate(tx: Transaction, hash: str) -> tuple[ApiKey, Scope] | None:
    """Return the key with this hash and its scope.

    Returns None for a key that is unknown, revoked or expired, or whose user is disabled or
    deleted. The same holds for a token or access key whose creating key is no longer valid.

    Args:
        tx: The transaction.
        hash: The keyed hash of the key that the request sent (see `hash_of`).
    """
    row = tx.first(_BY_HASH, {"hash": hash})
    if row is None:
        return None
    stored = _ROWS.of(row[: len(_ROWS.columns)])
    now = tx.clock.now()
    is_expired = stored.expires_at is not None and stored.expires_at <= now
    if stored.revoked_at is not None or is_expired:
        return None
    if stored.kind in ("token", "access") and stored.created_by:
        maker = _ROWS.find(tx, Scope(stored.organization_id), stored.created_by)
        if maker is None or authenticate(tx, maker.hash) is None:
            return None
        stored = replace(
            stored,
            requests_per_minute=maker.requests_per_minute,
            max_body_bytes=maker.max_body_bytes,
        )
    if stored.user_id is None:
        return stored, scope_of(stored, None)
    if row[len(_ROWS.columns)] is None:
        return None  # the user is being erased
    user = users.ROWS.of(row[len(_ROWS.columns) :])
    if user.disabled_at is not None:
        return None
    return (stored, scope_of(stored, user))


def is_withdrawn(tx: Transaction, scope: Scope, id: str) -> bool:
    """Return whether work that was begun with this key may no longer be done.

    A key counts that was revoked or has expired, or whose user is disabled. For a token, the key
    that created it counts. The token itself, or a login, may have ended since. The keys of a
    deleted user are deleted too, and a deleted key does not count, so check the user as well.

    Args:
        tx: The transaction.
        scope: The organization of the key.
        id: The id of a key, a session or a token.
    """
    key = _ROWS.find(tx, scope, id)
    while key is not None and key.kind in ("token", "access") and key.created_by:
        key = _ROWS.find(tx, scope, key.created_by)
    return key is not None and key.kind == "key" and authenticate(tx, key.hash) is None


def _reach_of(key: ApiKey) -> Reach | None:
    """Return the limits of a token or an access key; None for any other key."""
    if key.kind == "token":
        pairs = (scope.partition(":") for scope in key.scopes if scope.startswith("agent-"))
        return Reach(key.name, frozenset((id, access) for id, _, access in pairs))
    if key.kind == "access":
        return Reach("", frozenset(), key.name)
    return None


def scope_of(key: ApiKey, user: User | None) -> Scope:
    """Return the scope of the key.

    A user or guardian sees the user's data and shared data. A service sees shared data until it
    names a user to act for. An administrator, or a developer with `memory:read`, sees the whole
    organization; any other developer sees shared data.

    Args:
        key: The stored key.
        user: The user of the key; None for the key of a service.
    """
    scopes = frozenset(key.scopes) or ROLE_SCOPES[key.role]
    sees_all = key.role == "admin" or (key.role == "developer" and "memory:read" in scopes)
    subject: str | None = NOBODY
    if user and key.role in ("user", "guardian"):
        subject = user.id
    elif sees_all:
        subject = None
    return Scope(
        organization_id=key.organization_id,
        user_id=user.id if user else key.id,
        subject_id=subject,
        user_name=user.name if user else key.name,
        role=key.role,
        scopes=scopes,
        caller=key.name if key.role == "service" else "",
        key_id=key.id,
        key_name=key.name if key.kind == "key" else key.kind,
        identifier=user.identifier if user else None,
        reach=_reach_of(key),
        limits=Limits(_counted_as(key), key.requests_per_minute, key.max_body_bytes),
    )


def _counted_as(key: ApiKey) -> str:
    """Return the name under which requests with this key are counted.

    A token or access key counts as the key that created it. All sessions of a user count together.
    """
    match key.kind:
        case "token" | "access":
            return key.created_by or key.id
        case "session":
            return key.user_id or key.id
    return key.id
