"""A person's consent and its tokens.

A refresh token is used once; its use returns the next one. All tokens of a consent end together.

Nothing is stored until a program presents its code. Registered clients, questions for consent, and
codes are texts with this server's signature, so they cannot fill the database. A code contains the
id of its grant, and this grant can be created only once.
"""

import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import asdict, dataclass, replace
from typing import Any

import orjson

from ricordo.domain.clock import SECOND
from ricordo.domain.ids import is_id
from ricordo.domain.scope import Scope
from ricordo.features.mcp.oauth import RESOURCE
from ricordo.storage import oauth_grants, users
from ricordo.storage.engine.store import Transaction
from ricordo.storage.keys import PREFIX, ApiKey, authenticate, hash_of, scope_of

# The scopes that a person can grant. `memory:approve` is not among them, so no program can approve
# proposals.
SCOPES = {
    "memory:read": "read your memory",
    "memory:write": "propose changes of your memory, and write to blocks that agents may write",
    "messages:read": "search your conversations",
    "messages:write": "talk with your agents as you",
    "agents:read": "see your agents",
    "archives:read": "search the archives of your agents",
    "archives:write": "store texts in the archives of your agents",
}
ACCESS_SECONDS = 3600
REFRESH_SECONDS = 30 * 24 * 3600
CODE_SECONDS = 60
QUESTION_SECONDS = 600
_REFRESH_TOKEN = f"{PREFIX}refresh_"


@dataclass(frozen=True, slots=True)
class ProgramConsent:
    """A program's request for consent, with the person who is asked.

    `until` is the time, in seconds, at which the question or the code expires.
    """

    grant_id: str
    organization_id: str
    user_id: str
    asked_by: str
    client_id: str
    client_name: str
    scopes: list[str]
    challenge: str
    redirect_uri: str
    is_explicit: bool
    state: str | None
    until: float
    requests_per_minute: int | None = None
    max_body_bytes: int | None = None

    def sign(self, secret: bytes) -> str:
        """Return the consent as a signed text.

        Args:
            secret: The key for this purpose: a question or a code.
        """
        return sign(secret, asdict(self))

    @classmethod
    def read(cls, secret: bytes, text: str) -> "ProgramConsent | None":
        """Return the consent in a signed text; None if the signature is wrong.

        Args:
            secret: The key for this purpose: a question or a code.
            text: A text from outside, perhaps made by `sign`. Whether it has expired is not checked
                here.
        """
        fields = read_signed(secret, text)
        if fields is None:
            return None
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class Issued:
    """New tokens, with the scope of their person."""

    access: str
    refresh: str
    caller: Scope


def sign(secret: bytes, content: Any) -> str:
    """Return the content as a signed text.

    Args:
        secret: The key for this purpose, from `requests.derive`.
        content: A value for JSON.
    """
    text = urlsafe_b64encode(orjson.dumps(content)).decode().rstrip("=")
    return f"{text}.{_signature(secret, text)}"


def read_signed(secret: bytes, text: str) -> Any:
    """Return the content if it was signed with this secret, else None.

    Args:
        secret: The key of `sign` for the same purpose.
        text: A text from outside, perhaps made by `sign`.
    """
    content, _, signature = text.partition(".")
    if not hmac.compare_digest(
        _signature(secret, content).encode(), signature.encode("utf-8", "surrogatepass")
    ):
        return None
    return orjson.loads(urlsafe_b64decode(content + "=" * (-len(content) % 4)))


def _signature(secret: bytes, text: str) -> str:
    digest = hmac.digest(secret, text.encode("utf-8", "surrogatepass"), "sha256")
    return urlsafe_b64encode(digest).decode().rstrip("=")


def open_grant(tx: Transaction, secret: bytes, consent: ProgramConsent) -> Issued | Scope | None:
    """Store the grant and its first tokens.

    Args:
        tx: The transaction.
        secret: The server's key for hashes of tokens.
        consent: The person's consent, read from a code.

    Returns:
        The tokens. If the code was already used, the grant ends, and the scope of its person is
        returned. None if the person was disabled or deleted.
    """
    user = users.named(tx, consent.organization_id, consent.user_id)
    if user is None or user.disabled_at is not None:
        return None
    now = tx.clock.now()
    refresh = _new_refresh(secret, consent.grant_id)
    grant = ApiKey(
        id=consent.grant_id,
        organization_id=consent.organization_id,
        kind="key",
        name=f"{consent.client_name} (MCP)",
        hash=_refresh_hash(secret, consent.client_id, refresh),
        hint="OAuth",
        user_id=user.id,
        role="user",
        created_by=user.id,
        created_at=now,
        expires_at=now + REFRESH_SECONDS * SECOND,
        scopes=tuple(sorted(consent.scopes)),
        last_used_at=now,
        requests_per_minute=consent.requests_per_minute,
        max_body_bytes=consent.max_body_bytes,
    )
    if not oauth_grants.insert(tx, grant):
        oauth_grants.revoke(tx, grant.id)
        return scope_of(grant, user)
    access = _issue(tx, secret, grant, client_id=consent.client_id, scopes=grant.scopes)
    return Issued(access, refresh, scope_of(grant, user))


def refresh_grant(
    tx: Transaction, secret: bytes, client_id: str, *, token: str, scopes: list[str]
) -> Issued | Scope | None:
    """Return new tokens for a refresh token, which then becomes invalid.

    If the token was already used, the grant ends, and the scope of its person is returned. The
    token's signature proves that this server issued it, so a guessed id ends no grant.

    Args:
        tx: The transaction.
        secret: The server's key for hashes of tokens.
        client_id: The client that presents the token; only its tokens are valid.
        token: The refresh token.
        scopes: The scopes of the new access token, which the caller has found to be in the grant.

    Returns:
        The tokens, or the scope of the person whose grant ended; None for an invalid token.
    """
    grant = find_grant(tx, token)
    holder = authenticate(tx, grant.hash) if grant else None
    if grant is None or holder is None:
        return None
    caller = holder[1]
    refresh = _new_refresh(secret, grant.id)
    now = tx.clock.now()
    is_current = hmac.compare_digest(grant.hash, _refresh_hash(secret, client_id, token))
    changes = {
        "hash": _refresh_hash(secret, client_id, refresh),
        "expires_at": now + REFRESH_SECONDS * SECOND,
        "last_used_at": now,
    }
    if not is_current and not _is_signed(secret, token):
        return None
    if not is_current or not oauth_grants.rotate(tx, grant, changes):
        oauth_grants.revoke(tx, grant.id)
        return caller
    oauth_grants.delete_access(tx, grant.id)
    access = _issue(tx, secret, grant, client_id=client_id, scopes=tuple(scopes))
    return Issued(access, refresh, caller)


def find_grant(tx: Transaction, token: str) -> ApiKey | None:
    """Return the grant that a refresh token names, even if the token is no longer valid.

    Args:
        tx: The transaction, or a read.
        token: A text from outside; None is returned if it has not the form of a refresh token.
    """
    id = token.removeprefix(_REFRESH_TOKEN).partition(".")[0]
    if not token.startswith(_REFRESH_TOKEN) or not is_id(id, "key"):
        return None
    return oauth_grants.find(tx, id)


def revoke_grant(tx: Transaction, secret: bytes, client_id: str, token: str) -> Scope | None:
    """Revoke the grant of this client's refresh or access token.

    Args:
        tx: The transaction.
        secret: The server's key for hashes of tokens.
        client_id: The client that presents the token.
        token: A refresh token or an access token.

    Returns:
        The scope of the grant's person; None if the token is not valid or is another client's.
    """
    access = oauth_grants.find_access(tx, hash_of(secret, token))
    if access:
        grant = oauth_grants.find(tx, access.created_by or "")
    else:
        grant = find_grant(tx, token)
    if grant is None:
        return None
    if access:
        is_own = access.hint == hash_of(secret, client_id)
    else:
        is_own = grant.hash == _refresh_hash(secret, client_id, token)
    holder = authenticate(tx, grant.hash) if is_own else None
    if holder is None:
        return None
    oauth_grants.revoke(tx, grant.id)
    return holder[1]


def _issue(
    tx: Transaction, secret: bytes, grant: ApiKey, *, client_id: str, scopes: tuple[str, ...]
) -> str:
    token = f"{PREFIX}access_{secrets.token_urlsafe(32)}"
    access = replace(
        grant,
        id=grant.id.replace("key-", "access-"),
        kind="access",
        name=RESOURCE,
        hash=hash_of(secret, token),
        hint=hash_of(secret, client_id),
        created_by=grant.id,
        created_at=tx.clock.now(),
        expires_at=tx.clock.now() + ACCESS_SECONDS * SECOND,
        scopes=tuple(sorted(scopes)),
        last_used_at=None,
    )
    oauth_grants.insert_access(tx, access)
    return token


def _new_refresh(secret: bytes, grant_id: str) -> str:
    unsigned = f"{_REFRESH_TOKEN}{grant_id}.{secrets.token_urlsafe(32)}"
    return f"{unsigned}.{_signature(secret, unsigned)}"


def _is_signed(secret: bytes, token: str) -> bool:
    """Return True if this server issued the refresh token."""
    unsigned, _, signature = token.rpartition(".")
    return hmac.compare_digest(
        _signature(secret, unsigned).encode(), signature.encode("utf-8", "surrogatepass")
    )


def _refresh_hash(secret: bytes, client_id: str, token: str) -> str:
    """Return the stored form of a refresh token; only its client can use the token."""
    return f"{oauth_grants.REFRESH}{hash_of(secret, f'{client_id} {token}')}"
