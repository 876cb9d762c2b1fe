"""What a person consented to, and the tokens that come of it: used once, rotated, and revoked together.

Nothing is stored before a program brings its code: registered clients, questions for consent and codes are texts that this server
signed, so nobody fills the database with them. A code has the id of its grant, which can be made once.
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
from ricordo.features.mcp_oauth import RESOURCE, queries
from ricordo.storage import users
from ricordo.storage.engine.store import Transaction
from ricordo.storage.keys import PREFIX, ApiKey, authenticate, hash_of, scope_of

# Never `memory:approve`: a program decides on nothing.
SCOPES = {
    "memory:read": "read your memory",
    "memory:write": "propose changes of your memory, and write where its policies let agents write",
    "messages:read": "search your conversations",
    "messages:write": "talk with your agents as you",
    "agents:read": "see your agents",
    "archives:read": "search the archives of your agents",
    "archives:write": "keep texts in the archives of your agents",
}
ACCESS_SECONDS, REFRESH_SECONDS, CODE_SECONDS, QUESTION_SECONDS = 3600, 30 * 24 * 3600, 60, 600
_REFRESH_TOKEN = f"{PREFIX}refresh_"


@dataclass(frozen=True, slots=True)
class ProgramConsent:
    """What a program asks for, and of whom; `until` is when the question, or the code, ends, in seconds."""

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
        return sign(secret, asdict(self))

    @classmethod
    def read(cls, secret: bytes, text: str) -> "ProgramConsent | None":
        found = read_signed(secret, text)
        return None if found is None else cls(**found)


@dataclass(frozen=True, slots=True)
class Issued:
    """New tokens, and who has them."""

    access: str
    refresh: str
    caller: Scope


def sign(secret: bytes, content: Any) -> str:
    text = urlsafe_b64encode(orjson.dumps(content)).decode().rstrip("=")
    return f"{text}.{_signature(secret, text)}"


def read_signed(secret: bytes, text: str) -> Any:
    """Return what was signed with this secret; None where this was not."""
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
    """Make the grant and its first tokens. Of a code that was used before the grant ends: then whose it was comes back."""
    user = users.named(tx, consent.organization_id, consent.user_id)
    if user is None or user.disabled_at is not None:
        return None
    now, refresh = tx.clock.now(), _new_refresh(secret, consent.grant_id)
    grant = ApiKey(
        consent.grant_id,
        consent.organization_id,
        "key",
        f"{consent.client_name} (MCP)",
        _refresh_hash(secret, consent.client_id, refresh),
        "OAuth",
        user.id,
        "user",
        user.id,
        now,
        now + REFRESH_SECONDS * SECOND,
        tuple(sorted(consent.scopes)),
        now,
        requests_per_minute=consent.requests_per_minute,
        max_body_bytes=consent.max_body_bytes,
    )
    if not queries.insert(tx, grant):
        queries.revoke(tx, grant.id)
        return scope_of(grant, user)
    return Issued(
        _issue(tx, secret, grant, consent.client_id, grant.scopes), refresh, scope_of(grant, user)
    )


def refresh_grant(
    tx: Transaction, secret: bytes, client_id: str, token: str, scopes: list[str]
) -> Issued | Scope | None:
    """Return new tokens for a refresh token, which ends. One that was used before ends the grant: then whose it was comes back.

    That it was given out here is known by its signature: a grant's id alone ends nothing.
    """
    grant = find_grant(tx, token)
    found = authenticate(tx, grant.hash) if grant else None
    if grant is None or found is None:
        return None
    refresh, now = _new_refresh(secret, grant.id), tx.clock.now()
    expected = hmac.compare_digest(grant.hash, _refresh_hash(secret, client_id, token))
    until = now + REFRESH_SECONDS * SECOND
    changed = {
        "hash": _refresh_hash(secret, client_id, refresh),
        "expires_at": until,
        "last_used_at": now,
    }
    if not expected and not _is_signed(secret, token):
        return None
    if not expected or not queries.rotate(tx, grant, changed):
        queries.revoke(tx, grant.id)
        return found[1]
    queries.delete_access(tx, grant.id)
    return Issued(_issue(tx, secret, grant, client_id, tuple(scopes)), refresh, found[1])


def find_grant(tx: Transaction, token: str) -> ApiKey | None:
    """Return the grant that a refresh token names, which may be an old one."""
    id = token.removeprefix(_REFRESH_TOKEN).partition(".")[0]
    return queries.find(tx, id) if token.startswith(_REFRESH_TOKEN) and is_id(id, "key") else None


def revoke_grant(tx: Transaction, secret: bytes, client_id: str, token: str) -> Scope | None:
    """Revoke the grant of a refresh or access token of this client; returns whose it was."""
    access = queries.find_access(tx, hash_of(secret, token))
    grant = queries.find(tx, access.created_by or "") if access else find_grant(tx, token)
    if grant is None:
        return None
    its = (
        access.hint == hash_of(secret, client_id)
        if access
        else grant.hash == _refresh_hash(secret, client_id, token)
    )
    found = authenticate(tx, grant.hash) if its else None
    if found is None:
        return None
    queries.revoke(tx, grant.id)
    return found[1]


def _issue(
    tx: Transaction, secret: bytes, grant: ApiKey, client_id: str, scopes: tuple[str, ...]
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
    queries.insert_access(tx, access)
    return token


def _new_refresh(secret: bytes, grant_id: str) -> str:
    unsigned = f"{_REFRESH_TOKEN}{grant_id}.{secrets.token_urlsafe(32)}"
    return f"{unsigned}.{_signature(secret, unsigned)}"


def _is_signed(secret: bytes, token: str) -> bool:
    """Return whether a refresh token is one that was given out here."""
    unsigned, _, signature = token.rpartition(".")
    return hmac.compare_digest(
        _signature(secret, unsigned).encode(), signature.encode("utf-8", "surrogatepass")
    )


def _refresh_hash(secret: bytes, client_id: str, token: str) -> str:
    """Return what a grant keeps of its refresh token, which is of use to its client alone."""
    return f"{queries.REFRESH}{hash_of(secret, f'{client_id} {token}')}"
