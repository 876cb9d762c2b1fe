"""A login with an OpenID Connect provider, and the session that it opens."""

import asyncio
import hmac
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import Any
from urllib.parse import quote_plus, urlencode, urlsplit

import httpx2
import orjson

from ricordo.domain.clock import SECOND
from ricordo.domain.ids import is_id
from ricordo.domain.scope import Scope, User
from ricordo.errors import Forbidden, Invalid, Unavailable
from ricordo.features.identity.login.tokens import Expected, verify_token
from ricordo.features.identity.sign_in_links import queries as invitations
from ricordo.settings import LOOPBACK, Settings
from ricordo.signed_tokens import Json
from ricordo.storage import keys, users
from ricordo.storage.engine.store import Transaction
from ricordo.storage.keys import KeyDraft

ATTEMPT_SECONDS = 600
_TIMEOUT = 10.0  # seconds
_FRESH = 600.0  # seconds for which the provider's document is cached
_MOST_BYTES = 1_000_000
_OK = 200
_BAD_REQUEST = 400


@dataclass(frozen=True, slots=True)
class LoginAttempt:
    """A login in progress, which the browser keeps in a signed cookie.

    `until` is in seconds.
    """

    state: str
    nonce: str
    verifier: str
    next: str
    until: float
    stays: bool = False

    def sign(self, secret: bytes) -> str:
        """Return the login as the value of a signed cookie.

        Args:
            secret: The server's key for such cookies.
        """
        text = urlsafe_b64encode(orjson.dumps(asdict(self))).decode()
        return f"{text}.{hmac.digest(secret, text.encode(), 'sha256').hex()}"


def begin(next: str, *, stays: bool = False) -> LoginAttempt:
    """Return a new login with random values, which lasts ten minutes.

    Args:
        next: The path of this server to open after the login; the caller has checked it.
        stays: The person chose to stay logged in, so the session lasts 30 days.
    """
    state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
    return LoginAttempt(state, nonce, verifier, next, time.time() + ATTEMPT_SECONDS, stays)


def read_attempt(secret: bytes, cookie: str, state: str) -> LoginAttempt:
    """Return the login that this browser began.

    Args:
        secret: The key with which the cookie was signed.
        cookie: The cookie's value, from `LoginAttempt.sign`; "" without a cookie.
        state: The `state` that the provider sent back.

    Raises:
        Invalid: if the browser began no login with this state, or did so too long ago.
    """
    text, _, signature = cookie.encode().rpartition(b".")
    is_ours = hmac.compare_digest(hmac.digest(secret, text, "sha256").hex().encode(), signature)
    if is_ours:
        attempt = LoginAttempt(**orjson.loads(urlsafe_b64decode(text)))
    else:
        attempt = None
    if (
        attempt is None
        or not hmac.compare_digest(attempt.state.encode(), state.encode())
        or attempt.until < time.time()
    ):
        raise Invalid(
            "This login has expired, was used already, or was started in another browser. Start "
            "again at /login."
        )
    return attempt


class LoginProvider:
    """The provider of the settings.

    Each request to it is limited in time and size; a wrong answer raises Unavailable.
    """

    def __init__(self, settings: Settings) -> None:
        """Raise Invalid if the settings name no provider."""
        if not (settings.oidc_issuer and settings.oidc_client_id and settings.oidc_client_secret):
            raise Invalid("Login is not set up.")
        self.issuer = settings.oidc_issuer
        self._client_id = settings.oidc_client_id
        self._secret = settings.oidc_client_secret.get_secret_value()
        self._claim = settings.oidc_claim
        self._document: dict[str, Any] = {}
        self._fresh_until = 0.0

    async def address(self, attempt: LoginAttempt, redirect_uri: str) -> str:
        """Return the address where the browser logs in.

        Args:
            attempt: The new login.
            redirect_uri: The address of this server to which the provider sends the browser back.

        Raises:
            Unavailable: if the provider's document cannot be read.
        """
        document = await self._discover()
        challenge = (
            urlsafe_b64encode(sha256(attempt.verifier.encode()).digest()).rstrip(b"=").decode()
        )
        query = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": redirect_uri,
            "scope": "openid profile email",
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        endpoint = document["authorization_endpoint"]
        separator = "&" if urlsplit(endpoint).query else "?"
        return f"{endpoint}{separator}{urlencode(query)}"

    async def claims(self, attempt: LoginAttempt, code: str, redirect_uri: str) -> Json:
        """Return the provider's claims about the person with this code.

        Args:
            attempt: The login, from the browser's cookie.
            code: The `code` that the provider sent back; it works once.
            redirect_uri: The same address as in `address`.

        Raises:
            Forbidden: if the code or the provider's token is not valid.
            Unavailable: if the provider cannot be asked, or answers wrongly.
        """
        document = await self._discover()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": attempt.verifier,
        }
        ways = document.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
        sign = None
        if "client_secret_basic" in ways:
            sign = httpx2.BasicAuth(quote_plus(self._client_id), quote_plus(self._secret))
        else:
            form |= {"client_id": self._client_id, "client_secret": self._secret}
        answer = await self._ask("POST", document["token_endpoint"], data=form, auth=sign)
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise Unavailable(
                "The login provider answered without an id_token. Ask the administrator to check "
                "it."
            )
        jwks = (await self._ask("GET", document["jwks_uri"])).get("keys")
        expected = Expected(self.issuer, self._client_id, attempt.nonce)
        if not isinstance(jwks, list):
            jwks = []
        return await asyncio.to_thread(verify_token, token, jwks, expected)

    def identifier(self, claims: Json) -> str:
        """Return the person's identifier: the configured claim, or `sub` after the issuer's name.

        Args:
            claims: The claims of the verified token.

        Raises:
            Forbidden: The claim is missing, is an unverified e-mail address, or has the form of a
                user's id.
            Invalid: No user can have this identifier.
        """
        name = self._claim or "sub"
        claim = claims.get(name)
        if (
            not isinstance(claim, str)
            or not claim
            or (name == "email" and claims.get("email_verified") is not True)
        ):
            raise Forbidden(
                f"The login provider sent no {name}, so this server cannot identify you. "
                "Ask the administrator."
            )
        identifier = claim
        if not self._claim:
            issuer = urlsplit(self.issuer)
            identifier = f"{issuer.netloc}{issuer.path.rstrip('/').replace('/', ':')}|{claim}"
        if is_id(identifier, "user"):  # it could be another user's id
            raise Forbidden(
                f"The provider's {name} looks like an id of a user here. Ask the administrator."
            )
        users.require_fit_name(identifier)
        return identifier

    async def _discover(self) -> dict[str, Any]:
        if self._fresh_until < time.monotonic():
            document = await self._ask(
                "GET", f"{self.issuer.rstrip('/')}/.well-known/openid-configuration"
            )
            if document.get("issuer") != self.issuer:
                raise Unavailable(
                    "The login provider's issuer differs from RICORDO_OIDC_ISSUER. Set "
                    "RICORDO_OIDC_ISSUER to the provider's issuer."
                )
            for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
                address = document.get(name)
                if not isinstance(address, str) or not address.startswith(
                    f"{urlsplit(self.issuer).scheme}://"
                ):
                    raise Unavailable(
                        f"The login provider's {name} is missing or is not a safe address. Ask the "
                        "administrator."
                    )
            self._document = document
            self._fresh_until = time.monotonic() + _FRESH
        return self._document

    async def _ask(self, method: str, address: str, **request_options: Any) -> dict[str, Any]:
        """Return the provider's answer, a JSON object.

        No error quotes any part of it.
        """
        body = bytearray()
        try:
            mounts = {f"all://{f'[{host}]' if ':' in host else host}": None for host in LOOPBACK}
            async with (
                asyncio.timeout(_TIMEOUT),
                httpx2.AsyncClient(
                    timeout=_TIMEOUT, mounts=mounts, follow_redirects=False
                ) as client,
                client.stream(
                    method, address, headers={"accept": "application/json"}, **request_options
                ) as response,
            ):
                async for piece in response.aiter_bytes():
                    body += piece
                    if len(body) > _MOST_BYTES:
                        raise Unavailable(
                            "The login provider's answer is too long. Ask the administrator to "
                            "check it."
                        )
            answer = orjson.loads(body)
        except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError, ValueError):
            raise Unavailable(
                "The login provider cannot be reached, or its answer is not JSON. Try again later."
            ) from None
        if (
            response.status_code == _BAD_REQUEST
            and isinstance(answer, dict)
            and answer.get("error") == "invalid_grant"
        ):
            raise Forbidden(
                "The login provider does not know this code, or it was used already. Start again "
                "at /login."
            )
        if response.status_code != _OK or not isinstance(answer, dict):
            raise Unavailable(
                f"The login provider answered with status {response.status_code}. Ask the "
                "administrator."
            )
        return answer


def open_session(
    tx: Transaction, secret: bytes, identifier: str, claims: Json, seconds: int
) -> tuple[str, Scope]:
    """Return the key of a new session of this person, with its scope.

    A new person becomes a user.

    Args:
        tx: The transaction.
        secret: The server's key for hashes of keys.
        identifier: The person's identifier, from `LoginProvider.identifier`.
        claims: The provider's claims, for the user's name and e-mail address.
        seconds: The lifetime of the session.

    Raises:
        Forbidden: if the user is disabled.
        Invalid: if no user can have this identifier.
    """
    everybody = Scope()
    user = users.named(tx, everybody.organization_id, identifier)
    is_new = user is None
    user = user or users.find_or_make(tx, everybody, identifier, is_subject=True)

    def described(stored: User) -> User:
        name = _name(claims, stored) if is_new else stored.name
        return replace(stored, name=name, email=_email(claims) or stored.email)

    if described(user) != user:
        user = users.change(tx, everybody, user.id, described)
    if user.disabled_at is not None:
        raise Forbidden("This user is disabled. Ask an administrator.")
    expires_at = tx.clock.now() + seconds * SECOND
    draft = KeyDraft(
        "login",
        role=invitations.role_without_invitation(tx, user.id),
        user=user.id,
        scopes=(),
        expires_at=expires_at,
        kind="session",
    )
    stored, key = keys.create(tx, replace(everybody, user_id=user.id), secret, draft)
    return key, keys.scope_of(stored, user)


def _name(claims: Json, user: User) -> str:
    for name in ("name", "preferred_username"):
        try:
            claim = str(claims.get(name) or "")
            users.require_fit_name(claim)
        except Invalid:
            continue
        return claim
    return user.name


def _email(claims: Json) -> str | None:
    """Return the verified e-mail address; None without one, or if it cannot be stored."""
    email = claims.get("email")
    is_verified = claims.get("email_verified") is True
    if isinstance(email, str) and is_verified and users.is_email(email):
        return email
    return None
