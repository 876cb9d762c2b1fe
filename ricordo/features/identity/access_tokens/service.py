"""Create access tokens, which never have more rights or last longer than their key."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ricordo.domain.clock import SECOND
from ricordo.domain.ids import new_id
from ricordo.domain.scope import NOBODY, Scope
from ricordo.errors import Conflict, Forbidden, Invalid
from ricordo.storage import access_tokens, agents
from ricordo.storage.engine.store import Transaction
from ricordo.storage.keys import TOKEN, ApiKey, hash_of

# The kinds of access to an agent, each with the scope that it needs.
ACCESSES: Mapping[str, str] = {
    "read_messages": "messages:read",
    "write_messages": "messages:write",
    "read_agent": "agents:read",
    "write_agent": "agents:write",
}
USUAL = 300 * SECOND
LONGEST = 30 * 24 * 3600 * SECOND
MOST = 10_000  # of one organization


def create(
    tx: Transaction,
    scope: Scope,
    secret: bytes,
    *,
    origin: str,
    pairs: Sequence[tuple[str, str]],
    expires_at: int | None,
) -> tuple[ApiKey, str]:
    """Store a token, and return it with its secret, which is not stored.

    The token acts for the caller's user, or for the user on whose behalf the caller acts. Without a
    user it sees only shared data.

    Args:
        tx: The transaction.
        scope: The caller; a token has no scope that the caller lacks.
        secret: The server's key for hashes of tokens.
        origin: The origin of the web page that may use the token, stored as its name.
        pairs: The rights: pairs of an agent's id and a key of `ACCESSES`.
        expires_at: The token's end in microseconds; None for five minutes from now.

    Raises:
        Forbidden: if the caller is a browser token itself, or lacks a scope.
        NotFound: if the caller or the token's user may not use an agent.
        Invalid: if the end is past, or more than 30 days from now.
        Conflict: if the organization has too many tokens.
    """
    if scope.reach:
        raise Forbidden("A browser token cannot create tokens. Use a key.")
    now = tx.clock.now()
    until = now + USUAL if expires_at is None else expires_at
    if not now < until <= now + LONGEST:
        raise Invalid(
            "expires_at must be in the future, at most 30 days from now. Choose another time."
        )
    needed = {ACCESSES[access] for _, access in pairs}
    if missing := sorted(needed - scope.scopes):
        raise Forbidden(
            f"Your key lacks {', '.join(missing)}, so its tokens cannot have it either. Leave "
            "it out."
        )
    for agent_id in {agent_id for agent_id, _ in pairs}:
        agents.require(tx, scope, agent_id)
        agents.require(
            tx, replace(scope, role="user", subject_id=scope.subject or NOBODY), agent_id
        )
    access_tokens.delete_ended(tx)
    if access_tokens.count(tx, scope) >= MOST:
        raise Conflict(
            f"There are {MOST:,} tokens that have not expired. Delete some, or wait until they "
            "expire."
        )
    token = TOKEN + secrets.token_urlsafe(32)
    reach = sorted({f"{agent_id}:{access}" for agent_id, access in pairs})
    stored = ApiKey(
        id=new_id("token"),
        organization_id=scope.organization_id,
        kind="token",
        name=origin,
        hash=hash_of(secret, token),
        hint=token[: len(TOKEN) + 4],
        user_id=scope.subject,
        role="user",
        created_by=scope.key_id,
        created_at=now,
        expires_at=until,
        scopes=(*sorted(needed), *reach),
    )
    access_tokens.insert_one(tx, stored)
    return stored, token
