"""Making access tokens: never more than the key that makes them may itself, and bound to that key's life."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ricordo.domain.clock import SECOND
from ricordo.domain.ids import new_id
from ricordo.domain.scope import NOBODY, Scope
from ricordo.errors import Conflict, Forbidden, Invalid
from ricordo.features.access_tokens import queries
from ricordo.storage import agents
from ricordo.storage.engine.store import Transaction
from ricordo.storage.keys import TOKEN, ApiKey, hash_of

# What an agent may be used for, each with the scope that it takes.
ACCESSES: Mapping[str, str] = {
    "read_messages": "messages:read",
    "write_messages": "messages:write",
    "read_agent": "agents:read",
    "write_agent": "agents:write",
}
USUAL, LONGEST = 300 * SECOND, 30 * 24 * 3600 * SECOND
MOST = 10_000  # of one organization


def create(
    tx: Transaction,
    scope: Scope,
    secret: bytes,
    origin: str,
    pairs: Sequence[tuple[str, str]],
    expires_at: int | None,
) -> tuple[ApiKey, str]:
    """Store a token for these pairs of an agent's id and an access; returns it with the token itself, which is not kept.

    It is for the user that the caller is or acts for, else for nobody: then it sees what is shared. Raises Forbidden, NotFound,
    Invalid, Conflict.
    """
    if scope.reach:
        raise Forbidden("A token of a browser makes no further tokens.")
    now = tx.clock.now()
    until = now + USUAL if expires_at is None else expires_at
    if not now < until <= now + LONGEST:
        raise Invalid(
            "A token ends in the future, at most 30 days from now. Choose another time for expires_at."
        )
    needed = {ACCESSES[access] for _, access in pairs}
    if missing := sorted(needed - scope.scopes):
        raise Forbidden(
            f"Your key lacks {', '.join(missing)}, so it cannot give that to a token. Leave it out."
        )
    for agent_id in {agent_id for agent_id, _ in pairs}:
        agents.require(tx, scope, agent_id)
        agents.require(
            tx, replace(scope, role="user", subject_id=scope.subject or NOBODY), agent_id
        )
    queries.delete_ended(tx)
    if queries.count(tx, scope) >= MOST:
        raise Conflict(
            f"There are {MOST:,} tokens that have not expired. Delete some, or wait until they expire."
        )
    token = TOKEN + secrets.token_urlsafe(32)
    made = ApiKey(
        new_id("token"),
        scope.organization_id,
        "token",
        origin,
        hash_of(secret, token),
        token[: len(TOKEN) + 4],
        scope.subject,
        "user",
        scope.key_id,
        now,
        until,
        (*sorted(needed), *sorted({f"{agent_id}:{access}" for agent_id, access in pairs})),
    )
    queries.insert_one(tx, made)
    return made, token
